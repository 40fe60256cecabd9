"""Refuse ``null`` for settings that need a value: jsonargparse checks it on the command line, but not in files."""

from __future__ import annotations

import functools
import inspect
import types
from argparse import Action
from collections.abc import Iterator
from pydoc import locate
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

from jsonargparse import ArgumentParser, Namespace

from fl_lightning.compat.jsonargparse import actions_of, is_setting, type_of
from fl_lightning.errors import ConfigurationError
from fl_lightning.utilities.argument_types import in_words

_WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "text", list: "a list", dict: "a mapping"}
"""The words of a YAML."""


def refuse_null(config: Namespace, parser: ArgumentParser) -> None:
    """Refuse a null in a configuration where the setting's type does not include it.

    Args:
        config: the parsed settings of a command.
        parser: the parser of the command.

    Raises:
        ConfigurationError: naming the setting, its type and its default.
    """
    for action in filter(is_setting, actions_of(parser)):
        value = config.get(action.dest)
        if value is None:
            _require_optional(action, action.dest)
        else:
            for part, path in _classes(value, action.dest):
                _refuse_in_class(part, path)


def _require_optional(action: Action, path: str) -> None:
    if action.default is None or _takes_none(type_of(action)):
        return
    needs = in_words(type_of(action), _WORDS)
    raise ConfigurationError(
        f"'{path}' is null, but needs {needs}. Set it, or leave it out for its default, {_shown(action.default)}."
    )


def _shown(default: Any) -> str:
    return str(default.get("class_path")) if isinstance(default, Namespace | dict) else repr(default)


def _classes(value: Any, path: str) -> Iterator[tuple[Namespace, str]]:
    """Yield the settings of each class in a value, with the path that a user types."""
    if isinstance(value, Namespace) and "class_path" in value:
        yield value, path
        value = value.get("init_args")
    if isinstance(value, Namespace | dict):
        pairs = vars(value).items() if isinstance(value, Namespace) else value.items()
        for name, inner in pairs:
            yield from _classes(inner, f"{path}.{name}")
    elif isinstance(value, list | tuple):
        for number, inner in enumerate(value):
            yield from _classes(inner, f"{path}[{number}]")


def _refuse_in_class(part: Namespace, path: str) -> None:
    held = part.get("init_args")
    given = vars(held) if isinstance(held, Namespace) else {}
    if all(value is not None for value in given.values()):
        return
    for action in _settings_of(locate(part.class_path)):
        if action.dest in given and given[action.dest] is None:
            _require_optional(action, f"{path}.{action.dest}")


@functools.lru_cache(maxsize=256)
def _settings_of(kind: Any) -> list[Action]:
    """Return the settings of a class, whose signature and docstring take long to read."""
    if not inspect.isclass(kind):  # jsonargparse also takes a function that returns an instance
        return []
    parser = ArgumentParser()
    parser.add_class_arguments(kind, fail_untyped=False)
    return list(filter(is_setting, actions_of(parser)))


def _takes_none(wanted: Any) -> bool:
    """Return whether a type includes None."""
    if wanted in (None, Any, object, types.NoneType) or isinstance(wanted, TypeVar):
        return True
    origin, inner = get_origin(wanted), get_args(wanted)
    if origin is Literal:
        return None in inner
    if origin is Annotated:
        return _takes_none(inner[0])
    return origin in (Union, types.UnionType) and any(map(_takes_none, inner))
