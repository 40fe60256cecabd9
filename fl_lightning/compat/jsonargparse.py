"""Private names of jsonargparse, and of argparse and argcomplete around it."""

from __future__ import annotations

import argparse
import copy
import functools
import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from pydoc import locate
from types import MappingProxyType
from typing import Any, ClassVar
from unittest.mock import patch

from jsonargparse import ActionConfigFile as ActionConfigFile  # type: ignore[attr-defined]  # documented, but not in __all__
from jsonargparse import Path as NamedPath  # type: ignore[attr-defined]

from fl_lightning.compat.private import Private

_ACTIONS = Private("Python", "argparse.ArgumentParser", "_actions")
_TYPE = Private("jsonargparse", "jsonargparse._typehints.ActionTypeHint", "_typehint")
_COPIES = Private("jsonargparse", "jsonargparse._typehints", "deepcopy", "lets it copy a whole list for each of its entries")
_RESOLVES = Private(
    "jsonargparse",
    "jsonargparse._typehints",
    "resolve_class_path_by_name",
    "needs the dotted path of a class if another package has one of the same name",
)


def actions_of(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    """Return all options of a parser; argparse can print them, but not list them."""
    options: list[argparse.Action] = _ACTIONS.require("The command line", parser)
    return options


def is_setting(action: argparse.Action) -> bool:
    """Return whether an option sets a value that a class takes; those such as ``--help`` and ``--print_config`` leave none."""
    leaves_none = isinstance(action.default, str) and action.default == argparse.SUPPRESS
    return bool(action.option_strings) and not leaves_none and not isinstance(action, ActionConfigFile)


def type_of(action: argparse.Action) -> Any:
    """Return the type of a setting; jsonargparse keeps it apart from ``action.type``, without a public name."""
    hinted = type(action).__name__ == "ActionTypeHint"
    return _TYPE.require("The command line", action) if hinted else getattr(action, _TYPE.name, action.type)


def subcommand_parsers(parser: Any) -> Mapping[str, Any] | None:
    """Return a jsonargparse parser's subcommands; None where it has none. Its public methods only add them."""
    choices = (action.choices for action in actions_of(parser) if isinstance(action.choices, Mapping))
    return next((found for found in choices if all(isinstance(one, type(parser)) for one in found.values())), None)


@contextmanager
def preferring(paths: Mapping[str, str]) -> Iterator[None]:
    """Let bare names in a block mean these classes where others have the same name, which jsonargparse refuses.

    In the block, jsonargparse also copies less: for each entry of a list it copies the whole list, which takes minutes for a
    table of a thousand clients.

    Args:
        paths: the dotted path of each class by its name.
    """
    of_one_name: Any = _RESOLVES.get(None)
    if of_one_name is None or not _COPIES.exists():
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

    with patch.dict(vars(import_module(_RESOLVES.owner)), {_RESOLVES.name: resolve, _COPIES.name: _copied}):
        yield


@contextmanager
def reading_utf8(texts: Mapping[Path, str] = MappingProxyType({})) -> Iterator[None]:
    """Read files in a block as UTF-8, for which jsonargparse takes the encoding of the locale.

    Args:
        texts: what to read instead of some files.
    """
    of_locale = NamedPath.read_text

    def read_text(path: NamedPath) -> str:
        file = Path(path.absolute)
        if not file.is_file():  # a URL or a pipe
            return of_locale(path)
        return texts[file] if file in texts else file.read_text(encoding="utf-8")

    with patch.object(NamedPath, "read_text", read_text):
        yield


def _copied(value: Any) -> Any:
    """Copy what jsonargparse copies; of how it checks an entry of a list, only what it may change there."""
    if not isinstance(value, dict) or not {"prev_val", "orig_val", "sub_add_kwargs"} <= value.keys():
        return copy.deepcopy(value)
    return {**value, "sub_add_kwargs": copy.deepcopy(value["sub_add_kwargs"])}


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
