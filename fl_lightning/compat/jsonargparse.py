"""Private names of jsonargparse, and of argparse and argcomplete around it."""

from __future__ import annotations

import argparse
import codecs
import copy
import functools
import inspect
import locale
import pathlib
import re
import traceback
import typing
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from importlib import import_module
from pydoc import locate
from typing import TYPE_CHECKING, Any, ClassVar
from unittest.mock import patch

import jsonargparse
from jsonargparse import ActionConfigFile  # type: ignore[attr-defined]  # documented, but not in __all__

from fl_lightning.compat.private import MISSING, Private

if TYPE_CHECKING:

    class HelpAction(argparse._HelpAction):
        """Stand for argparse's action of '--help' in type checks."""

else:
    # The action of '--help', which argparse knows by this word and not as a class to derive from.
    HelpAction = type(argparse.ArgumentParser(add_help=False).add_argument("--help", action="help"))

_ACTIONS = Private("Python", "argparse.ArgumentParser", "_actions", "looks for the options among the parser's attributes")
_TYPE = Private(
    "jsonargparse", "jsonargparse._typehints.ActionTypeHint", "_typehint", "looks for the type among the option's attributes"
)
_READS = Private("jsonargparse", "jsonargparse._paths", "Path.read_text", "reads configurations in the encoding of the locale")
_SUBCOMMANDS = Private(
    "jsonargparse", "jsonargparse.ArgumentParser", "_subcommands_action", "looks for the subcommands among the options"
)
_FINDS = Private(
    "jsonargparse", "jsonargparse._subcommands", "find_action_and_subcommand", "lets it compare all options again and again"
)
_KEYS = Private("jsonargparse", "jsonargparse.Namespace", "_parse_key", "lets it split the names of settings again and again")
_COPIES = Private("jsonargparse", "jsonargparse._typehints", "deepcopy", "lets it copy a whole list for each of its entries")
_ADDS = Private(
    "jsonargparse", "jsonargparse._typehints.ActionTypeHint", "add_sub_defaults", "lets it add the defaults of classes twice"
)
_RESOLVES = Private(
    "jsonargparse",
    "jsonargparse._typehints",
    "resolve_class_path_by_name",
    "needs the dotted path of a class if another package has one of the same name",
)


def actions_of(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    """Return all options of a parser; argparse can print them, but not list them."""
    found: Any = _ACTIONS.get(None, parser)
    if found is None:
        lists = [value for value in vars(parser).values() if isinstance(value, list)]
        found = max((one for one in lists if all(isinstance(item, argparse.Action) for item in one)), key=len, default=[])
    options: list[argparse.Action] = found
    return options


def is_setting(action: argparse.Action) -> bool:
    """Return whether an option sets a value that a class takes; those such as ``--help`` and ``--print_config`` leave none."""
    leaves_none = isinstance(action.default, str) and action.default == argparse.SUPPRESS
    return bool(action.option_strings) and not leaves_none and not isinstance(action, ActionConfigFile)


def type_of(action: argparse.Action) -> Any:
    """Return the type of a setting; jsonargparse keeps it apart from ``action.type``, without a public name."""
    if type(action).__name__ == "ActionTypeHint":
        found: Any = _TYPE.get(MISSING, action)
        known = vars(argparse.Action([], "")).keys()
        added = (value for name, value in vars(action).items() if name not in known)
        return next(filter(_is_type, added), action.type) if found is MISSING else found
    return getattr(action, _TYPE.name, action.type)


def _is_type(value: object) -> bool:
    return isinstance(value, type) or typing.get_origin(value) is not None


@contextmanager
def reading_utf8() -> Iterator[None]:
    """Let jsonargparse read configuration files as UTF-8, as this package writes them, and not in the locale's encoding."""
    known: Any = _READS.look_up()
    if known is MISSING:
        if codecs.lookup(locale.getpreferredencoding(False)).name != "utf-8":
            _READS.tell()
        yield
        return
    paths = import_module(_READS.owner)

    def read_text(self: Any) -> str:
        path = pathlib.Path(str(self.absolute))
        return path.read_text(encoding="utf-8") if path.is_file() else str(known(self))  # a URL or a pipe

    with patch.object(paths.Path, "read_text", read_text):
        yield


class _Finder:
    """Find an option as jsonargparse does, but only once."""

    def __init__(self, find: Callable[..., Any]) -> None:
        self.find = find
        self._known: dict[Any, tuple[int, Any]] = {}

    def __call__(self, parser: Any, dest: str, exclude: Any = None) -> Any:
        inner = (subcommand_parsers(parser) or {}).get(dest.partition(".")[0])
        options = len(actions_of(parser)) + (0 if inner is None else len(actions_of(inner)))
        then, found = self._known.get((parser, dest, exclude), (-1, None))
        if then != options:  # a parser that is being built gets more
            found = self.find(parser, dest, exclude)
            self._known[parser, dest, exclude] = options, found
        return found


@contextmanager
def remembering_options() -> Iterator[None]:
    """Let jsonargparse find each option, split each name and add the defaults of classes once, and not copy whole lists."""
    find: Any = _FINDS.get(None)
    if isinstance(find, _Finder):
        yield
        return
    remembered = _Finder(find)
    with ExitStack() as stack:
        for module in () if find is None else tuple(vars(jsonargparse).values()):  # several modules have imported it
            if inspect.ismodule(module) and vars(module).get(_FINDS.name) is find:
                stack.enter_context(patch.object(module, _FINDS.name, remembered))
        parse: Any = _KEYS.get(None)
        if parse is not None:
            stack.enter_context(patch.object(jsonargparse.Namespace, _KEYS.name, _splitting_once(parse)))
        if _COPIES.exists():
            stack.enter_context(patch.object(import_module(_COPIES.owner), _COPIES.name, _copied))
        add: Any = _ADDS.get(None)
        if add is not None:
            stack.enter_context(patch(_ADDS.path, staticmethod(_adding_once(add))))
        yield


def _adding_once(add: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
    """Return what adds the defaults of classes, as jsonargparse does, unless the parser of the subcommand has added them."""
    added = set[Any]()

    def add_once(parser: Any, namespace: Any) -> None:
        nested = subcommand_parsers(parser)
        if nested is None or nested.get(namespace.get("subcommand")) not in added:
            add(parser, namespace)
            added.add(parser)

    return add_once


def _copied(value: Any) -> Any:
    """Copy what jsonargparse copies; of how it checks an entry of a list, only what it may change there."""
    if not isinstance(value, dict) or not {"prev_val", "orig_val", "sub_add_kwargs"} <= value.keys():
        return copy.deepcopy(value)
    return {**value, "sub_add_kwargs": copy.deepcopy(value["sub_add_kwargs"])}


def _splitting_once(parse: Callable[..., tuple[str, Any, str]]) -> Callable[..., tuple[str, Any, str]]:
    """Return what finds the last part of a name and the namespace that has it, as jsonargparse does."""

    @functools.cache
    def split(key: str) -> tuple[list[str], str, str]:
        empty = jsonargparse.Namespace()  # type: ignore[no-untyped-call]
        *outer, last = (parse(empty, part)[0] for part in key.split("."))
        return outer, last, ".".join(outer)

    def parse_key(self: Any, key: str) -> tuple[str, Any, str]:
        try:
            outer, last, before = split(key)
        except (KeyError, AttributeError, TypeError):  # jsonargparse says what is wrong with the name
            return parse(self, key)
        found = self
        for part in outer:
            found = vars(found).get(part)
            if not isinstance(found, jsonargparse.Namespace):  # missing, or a dictionary
                return parse(self, key)
        return last, found, before

    return parse_key


def subcommand_parsers(parser: Any) -> Mapping[str, Any] | None:
    """Return a jsonargparse parser's subcommands; None where it has none. Its public methods only add them."""
    subcommands: Any = _SUBCOMMANDS.get(MISSING, parser)
    if subcommands is MISSING:
        with_parsers = (
            action
            for action in actions_of(parser)
            if isinstance(action.choices, Mapping) and all(isinstance(one, type(parser)) for one in action.choices.values())
        )
        subcommands = next(with_parsers, None)
    return None if subcommands is None else subcommands.choices


@contextmanager
def preferring(paths: Mapping[str, str]) -> Iterator[None]:
    """Let bare names in a block mean these classes where others have the same name, which jsonargparse refuses.

    Args:
        paths: the dotted path of each class by its name.
    """
    of_one_name: Any = _RESOLVES.get(None)
    if of_one_name is None:
        yield
        return

    def resolve(cls: Any, name: str) -> str:
        if name in paths and _is_made_by(locate(paths[name]), cls):  # all subclasses take long to list
            return paths[name]
        try:
            found: str = of_one_name(cls, name)
        except ValueError as error:
            if name not in paths or paths[name] not in str(error):  # the error names all that would fit
                raise
            return paths[name]
        return found

    with patch.object(import_module(_RESOLVES.owner), _RESOLVES.name, resolve):
        yield


def _is_made_by(found: object, cls: object) -> bool:
    """Return whether a class can be built where another one is expected."""
    return inspect.isclass(found) and inspect.isclass(cls) and issubclass(found, cls) and not inspect.isabstract(found)


def is_parsed_factory(value: object) -> bool:
    """Return whether jsonargparse made a value for an argument such as OptimizerCallable; it has no name for what it makes."""
    return isinstance(value, functools.partial) and str(getattr(value.func, "__module__", "")).startswith("jsonargparse")


class Completable:
    """Give a parser what argcomplete reads, and adds only to parsers that it finds itself: not to those of subcommands."""

    _action_conflicts: ClassVar[dict[Any, Any]] = {}
    active_actions: ClassVar[list[Any]] = []


_WORDS = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "str": "text",
    "list": "a list",
    "dict": "a mapping",
}


def entry_of(error: BaseException) -> str | None:
    """Return the key of the dictionary's entry whose class raised an error when it was built; None outside of one.

    jsonargparse builds all entries in one loop, and its own message names none.
    """
    frames = (frame for frame, _ in traceback.walk_tb(error.__traceback__) if frame.f_code.co_name == "adapt_typehints")
    for frame in frames:
        key, whole = frame.f_locals.get("k"), frame.f_locals.get("val")
        if isinstance(whole, Mapping) and isinstance(key, str) and key in whole:
            return key
    return None


def in_words(text: str) -> str:
    """Return a message of the parser with the types of Python in words, and several expected ones in one sentence."""
    text = re.sub(r"<class '(?:[\w.]*\.)?(\w+)'>", r"\1", text)
    text = re.sub(r"\ba (bool|int|float|str|list|dict)\b", lambda found: _WORDS[found[1]], text)
    first, expected, others = re.sub(r"\ba typing\.Literal\[(.*?)\]", r"one of \1", text).partition("Expected ")
    return first + expected + others.replace(" Expected ", " or ")
