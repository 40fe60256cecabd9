"""Private names of jsonargparse, and of argparse and argcomplete around it."""

from __future__ import annotations

import argparse
import functools
import pathlib
import re
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar

from jsonargparse import ActionConfigFile  # type: ignore[attr-defined]  # documented, but not in __all__

from fl_lightning.compat import private_names_of

with private_names_of("Python"):
    HelpAction = argparse._HelpAction
    """The action of ``--help``, which argparse knows as ``action="help"`` and not as a class to derive from."""
    _VersionAction = argparse._VersionAction

with private_names_of("jsonargparse"):
    from jsonargparse import _paths, _typehints

_BY_NAME = ("_ActionPrintConfig", "_ActionConfigLoad", "ActionFail")


def actions_of(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    """Return all options of a parser; argparse can print them, but not list them."""
    return parser._actions


def is_setting(action: argparse.Action) -> bool:
    """Return whether an option sets a value that a class takes; the parsers mix them with ``--help``, ``--config`` and such."""
    other = isinstance(action, HelpAction | _VersionAction | ActionConfigFile) or type(action).__name__ in _BY_NAME
    return not other and not action.dest.endswith(".help") and bool(action.option_strings)


def type_of(action: argparse.Action) -> Any:
    """Return the type of a setting; jsonargparse keeps it apart from ``action.type``, without a public name."""
    return getattr(action, "_typehint", action.type)


@contextmanager
def reading_utf8() -> Iterator[None]:
    """Let jsonargparse read configuration files as UTF-8, as this package writes them, and not in the locale's encoding."""
    known = _paths.Path.read_text

    def read_text(self: Any) -> str:
        path = pathlib.Path(str(self.absolute))
        return path.read_text(encoding="utf-8") if path.is_file() else str(known(self))  # a URL or a pipe

    _paths.Path.read_text = read_text  # type: ignore[method-assign]
    try:
        yield
    finally:
        _paths.Path.read_text = known  # type: ignore[method-assign]


def subcommand_parsers(parser: Any) -> Mapping[str, Any] | None:
    """Return a jsonargparse parser's subcommands; None where it has none. Its public methods only add them."""
    subcommands = parser._subcommands_action
    return None if subcommands is None else subcommands.choices


def prefer_classes(paths: Mapping[str, str]) -> None:
    """Let bare names mean these classes where other packages have some of the same name, which jsonargparse refuses.

    Args:
        paths: the dotted path of each class by its name.
    """
    of_one_name = _typehints.resolve_class_path_by_name

    def resolve(cls: Any, name: str) -> str:
        try:
            found: str = of_one_name(cls, name)
        except ValueError as error:
            if name not in paths or paths[name] not in str(error):  # the error names all that would fit
                raise
            return paths[name]
        return found

    _typehints.resolve_class_path_by_name = resolve


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
