"""``--help TOPIC``: a section, a setting, a class, or all settings, in a few lines each."""

from __future__ import annotations

import argparse
import inspect
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Sequence
from difflib import get_close_matches
from importlib import import_module
from types import NoneType
from typing import Any, Literal, get_args, get_origin

from docstring_parser import ParseError, parse
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

import fl_lightning
from fl_lightning.cli.help_pages import SECTIONS, first_page, has_first_page
from fl_lightning.compat.jsonargparse import HelpAction, actions_of, is_setting, type_of
from fl_lightning.errors import ConfigurationError

_WIDTH = 118
_ORDER = ("federation", "data", "model", "trainer")
_MODULES = {"network": "fl_lightning.models", "loss": "fl_lightning.losses"}


class TopicHelp(HelpAction):
    """``--help`` with an optional topic: without one it shows what a user sets first, with ``all`` every setting."""

    def __init__(self, option_strings: Sequence[str], dest: str = argparse.SUPPRESS, **_: Any) -> None:
        super().__init__(option_strings, dest, argparse.SUPPRESS, "show this help message, or the help on TOPIC, and exit")
        self.nargs, self.metavar = "?", "TOPIC"

    def __call__(self, parser: argparse.ArgumentParser, namespace: Any, values: Any, option_string: str | None = None) -> None:
        """Print the help and exit."""
        command = str(getattr(parser, "subcommand", values))
        if not has_first_page(command):
            parser.print_help()
        elif values is None or values == command:
            print(first_page(command), end="")
        else:
            try:
                print(help_on(parser, str(values), command), end="")
            except ConfigurationError as error:
                print(f"fl-lightning: error: {error}", file=sys.stderr)
                sys.exit(2)
        parser.exit()


def help_on(parser: argparse.ArgumentParser, topic: str, command: str) -> str:
    """Return the help on a topic.

    Args:
        parser: parser of the command.
        topic: ``all``, a section, a setting, or a class by name or dotted path.
        command: name of the command, such as ``fit``.

    Raises:
        ConfigurationError: if the topic does not exist.
    """
    settings = [action for action in actions_of(parser) if is_setting(action)]
    name = topic.removeprefix("--").removesuffix(".help")
    if name == "all":
        return _all_settings(settings, command)
    chosen = [action for action in settings if f"{action.dest}.".startswith(f"{name}.")]
    if chosen:
        return _section(chosen, name, command)
    found = _find_class(name)
    if found is not None:
        return class_help(type(parser), found)
    above = next((action.dest for action in settings if name.startswith(f"{action.dest}.")), None)
    if above:
        raise ConfigurationError(
            f"'{name}' is a setting of the class given by '{above}'. Ask for that class: fl-lightning {command} --help CLASS."
        )
    known = [*SECTIONS, *(action.dest for action in settings), *fl_lightning.__all__]
    close = get_close_matches(name, known, n=1, cutoff=0.6)
    guess = f" Did you mean '{close[0]}'?" if close else ""
    raise ConfigurationError(
        f"There is no help on '{topic}', which is neither a setting nor a class.{guess} See fl-lightning {command} --help."
    )


def class_help(parser_class: Callable[[], Any], found: type) -> str:
    """Return the description of a class and its settings.

    Args:
        parser_class: function that creates a parser of signatures.
        found: class to describe.
    """
    parser = parser_class()
    skipped = {"params"} if issubclass(found, Optimizer) else {"optimizer"} if issubclass(found, LRScheduler) else set()
    parser.add_class_arguments(found, None, skip=skipped, fail_untyped=False, sub_configs=True)
    settings = [action for action in actions_of(parser) if is_setting(action)]
    own = list(inspect.signature(found).parameters)
    settings.sort(key=lambda a: own.index(a.dest.split(".")[0]) if a.dest.split(".")[0] in own else len(own))
    return _class_page(found, settings, "")


def nested_class_help(path: str, key: str, actions: Iterable[argparse.Action]) -> str:
    """Return the help that ``--<key>.help CLASS`` shows.

    Args:
        path: dotted path of the class.
        key: name of the setting.
        actions: actions of the parser that was made for the class.
    """
    found = _find_class(path)
    assert found is not None
    return _class_page(found, [action for action in actions if is_setting(action)], key)


def _class_page(found: type, settings: Sequence[argparse.Action], key: str) -> str:
    name = found.__name__ if getattr(fl_lightning, found.__name__, None) is found else f"{found.__module__}.{found.__name__}"
    lines = [name, "", *_wrapped(_description(found), "")]
    if not settings:
        known = _known(found, "")
        lines += ["", *_wrapped(f"Classes: {', '.join(known)}.", "")] if known else []
    lines += ["", "settings:" if settings else "It has no settings."]
    for action in settings:
        lines += _entry(action, action.dest.removeprefix(f"{key}."), full=True)
    return "\n".join(lines) + "\n"


def _all_settings(settings: Sequence[argparse.Action], command: str) -> str:
    groups = sorted(dict.fromkeys(map(_group, settings)), key=lambda group: (*_ORDER, group).index(group.split(".")[0]))
    lines = [f"All settings of fl-lightning {command}. For the full text: fl-lightning {command} --help SETTING."]
    for group in groups:
        lines += ["", f"{group}: {SECTIONS[group]}" if group in SECTIONS else group]
        for action in settings:
            if _group(action) == group:
                lines += _entry(action, f"--{action.dest}", full=False)
    return "\n".join(lines) + "\n"


def _section(chosen: Sequence[argparse.Action], name: str, command: str) -> str:
    """Return the settings directly in a section, and a line about each of its subsections."""
    below = sorted({group for group in SECTIONS if group.startswith(f"{name}.")})
    direct = [a for a in chosen if not any(a.dest.startswith(f"{group}.") for group in below)]
    lines = [f"{name}: {SECTIONS[name]}", ""] if name in SECTIONS else []
    for action in direct:
        lines += _entry(action, f"--{action.dest}", full=name != "trainer")
    if below:
        lines += ["", "sections:", *(f"  {group:<32}{SECTIONS[group]}" for group in below)]
        lines.append(f"Their settings: fl-lightning {command} --help {below[0]}.")
    return "\n".join(lines) + "\n"


def _group(action: argparse.Action) -> str:
    """Return the narrowest section that contains a setting."""
    return max((section for section in SECTIONS if f"{action.dest}.".startswith(f"{section}.")), key=len, default="others")


def _entry(action: argparse.Action, name: str, full: bool) -> list[str]:
    """Return a setting with its type and default, its meaning, and the classes that it accepts."""
    hint = type_of(action)
    default = "required" if action.required else _shown(action.default)
    text = _plain(action.help or "")
    lines = [f"  {name} <{_type_name(hint)}> {default}", *_wrapped(text if full else _first_sentence(text), "      ")]
    known = _known(hint, name.split(".")[-1])
    if known:
        lines += _wrapped(f"Classes: {', '.join(known)}.", "      ")
    return lines


def _shown(default: Any) -> str:
    if default is None:
        return "= null"
    if isinstance(default, bool):
        return f"= {str(default).lower()}"
    if isinstance(default, dict) and "class_path" in default:
        return f"= {default['class_path']}"
    if isinstance(default, int | float | str | list | dict):
        return f"= {default}"
    return f"= {type(default).__name__}"


def _type_name(hint: Any) -> str:
    """Return a type in words that a user knows."""
    arguments = get_args(hint)
    origin = get_origin(hint)
    if origin is Literal:
        return " | ".join(str(choice) for choice in arguments)
    if origin is Callable:
        return _type_name(arguments[-1]) if arguments else "function"
    if hint in (None, NoneType):
        return "null"
    if arguments and origin in (list, dict, tuple, set):
        return f"{origin.__name__}[{', '.join(_type_name(argument) for argument in arguments)}]"
    if arguments:
        return " | ".join(dict.fromkeys(_type_name(argument) for argument in arguments))
    return getattr(hint, "__name__", None) or re.sub(r"[\w.]+\.", "", str(hint))


def _classes(hint: Any) -> list[type]:
    if isinstance(hint, type) and get_origin(hint) is None:
        return [hint]
    return [found for argument in get_args(hint) if argument is not hint for found in _classes(argument)]


def _known(hint: Any, setting: str) -> list[str]:
    """Return the names of fl_lightning that a setting accepts; for torch modules, the setting's name decides which fit."""
    bases = tuple(base for base in _classes(hint) if base.__module__.split(".")[0] in ("fl_lightning", "lightning", "torch"))
    meant = _MODULES.get(setting, "none") if nn.Module in bases else "fl_lightning"
    found = ((name, getattr(fl_lightning, name)) for name in fl_lightning.__all__) if bases else ()
    return [
        name
        for name, value in found
        if inspect.isclass(value)
        and issubclass(value, bases)
        and value not in bases
        and not inspect.isabstract(value)
        and value.__module__.startswith(meant)
    ]


def _find_class(name: str) -> type | None:
    found: Any = None
    if name in fl_lightning.__all__:
        found = getattr(fl_lightning, name)
    elif "." in name:
        module, _, member = name.rpartition(".")
        try:
            found = getattr(import_module(module), member, None)
        except ImportError:
            return None
    return found if inspect.isclass(found) else None


def _description(found: type) -> str:
    """Return the part of the docstring above its Args."""
    try:
        parsed = parse(inspect.getdoc(found) or "")
    except ParseError:
        return ""
    return _plain("\n\n".join(part for part in (parsed.short_description, parsed.long_description) if part))


def _plain(text: str) -> str:
    """Remove the markup of reStructuredText."""
    text = re.sub(r":\w+:`[~!]?(?:[^`<]*\.)?([^`.<]+?)(?: <[^`]*>)?`", r"\1", text)
    return re.sub(r"``([^`]*)``", r"\1", text)


def _first_sentence(text: str) -> str:
    flat = " ".join(text.split())
    return re.split(r"(?<=[a-z)\]'\"\d])\. (?=[A-Z])", flat, maxsplit=1)[0]


def _wrapped(text: str, indent: str) -> list[str]:
    """Fill lines, and keep paragraphs and lists."""
    lines: list[str] = []
    for paragraph in re.split(r"\n\s*\n", text.strip()):
        if paragraph.startswith(".. "):  # a formula or note for the typeset documentation
            continue
        lines += [""] if lines else []
        for part in re.split(r"\n(?=\s*- )", paragraph):
            lines += textwrap.wrap(" ".join(part.split()), _WIDTH, initial_indent=indent, subsequent_indent=indent)
    return lines
