"""Say in one message what jsonargparse rejects: the setting's whole name, its value, and what is allowed."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterable
from contextlib import suppress
from importlib import import_module
from itertools import accumulate
from pydoc import locate
from types import NoneType
from typing import Any, get_args

from jsonargparse import ArgumentParser, Namespace

import fl_lightning
from fl_lightning.compat.jsonargparse import actions_of, is_setting, type_of
from fl_lightning.errors import ConfigurationError, did_you_mean
from fl_lightning.functional.description import constructor_arguments
from fl_lightning.utilities.argument_types import in_words

_KEY = re.compile(r'Parser key "([\w.]+)":\s*')
_NOISE = re.compile(
    r"[\s-]*(Does not validate|Subtypes:|Errors:|Given value|Expected a path but|Unable to load config|"
    r"Problem with given class_path|Expected an? (<class|typing)|$)"
)
_TYPE = re.compile(r"Expected an? (?:<class '(?:[\w.]+\.)?(?!NoneType)(\w+)'>|typing\.Literal\[(.*?)\])")
_WORDS = {kind.__name__: in_words(kind) for kind in (int, float, bool, str, list, dict)}
_MAPPING = re.compile(r"Given value: (\{'.*\})$", re.MULTILINE)
_ENTRY = re.compile(r"Given value: NestedArg\(key='([^'.]+)")
_CLASS = re.compile(r"There is no class '([\w.]+)'|module '([\w.]+)' has no attribute '(\w+)'|No module named")
_OPTION = re.compile(r"(?:unrecognized arguments: |[Oo]ption '|[Kk]ey ')(?:--)?([\w.]+)")
_PATH = re.compile(r"(?:fl_lightning|lightning)\.[\w.]+")
_ROOTS = ("lightning.LightningModule", "lightning.LightningDataModule", "torch.nn.Module")
"""Classes that jsonargparse takes for the one of a setting that names none."""
_OTHERS = ("torch.optim", "torch.optim.lr_scheduler", "torch.nn", "lightning.pytorch.callbacks", "lightning.pytorch.loggers")
"""Modules beside ours whose classes fit settings."""


def explain(message: str, options: Iterable[str] = ()) -> str:
    """Return a parser's message as one that says what is wrong, what is allowed, and how to see more.

    Args:
        message: the message of jsonargparse.
        options: all existing settings, to guess which one was meant.
    """
    setting = ""
    for key in dict.fromkeys(_KEY.findall(message)):
        setting = key if not setting or key.startswith(f"{setting}.") else f"{setting}.{key}"
    setting, inner = _with_entry(setting, message), _KEY.split(message)[-1]
    types = [f"one of {names}" if names else _WORDS.get(kind, kind) for kind, names in _TYPE.findall(inner)]
    lines = [line.strip(" -") for line in _KEY.sub("", message).splitlines() if not _NOISE.match(line)]
    said = " ".join(dict.fromkeys(lines))
    cause = re.sub(r"Type typing\.Callable.*? callable class: |\. Got value: .*", "", said).rstrip(".")
    classes = re.findall(r"class_path(?: |=)'(?:fl_lightning\.)?([\w.]+)'", _MAPPING.sub("", message))
    owner = classes[-1] if classes else ""
    see = f"All settings{f' of {owner}' * bool(owner)}: fl-lightning fit --help{f' {owner}' * bool(owner)}."
    if setting and types and (not cause or {_WORDS["int"], _WORDS["float"]} & set(types)):
        return f"'{setting}' must be {' or '.join(dict.fromkeys(types))}, but is {_value(inner)}. {see}"
    bases = [locate(path) for part in re.findall(r"Subtypes: .*", inner) for path in _PATH.findall(part)]
    if "is abstract" in cause or owner in _ROOTS:
        return _without_class(setting, _value(inner).strip("'"), bases)
    if setting and "are required: " in cause:
        needed = cause.rpartition(": ")[2]
        return f"'{setting}' needs a value for {needed}. Add --{setting}.{needed.split(', ')[0]} VALUE. {see}"
    empty = re.search(r"Unable to load config '(.*)'", message)
    if empty and not cause:
        return f"'{setting}' must contain settings, but is {empty[1]}. Leave it out, or set its settings one by one. {see}"
    cause = re.sub(r"Expected a dot import path string: ([\w.]+)", r"There is no class '\1'", cause)
    said = f"'{setting}': {cause}." if setting else f"{cause}."
    if wrong := _CLASS.search(cause):
        return _takes_settings(setting, wrong[1] or "", inner, bases) or said + _of_class(wrong, bases)
    if unknown := _OPTION.search(cause):
        near = did_you_mean(unknown[1], constructor_arguments(located(owner))) if owner else _instead(unknown[1], options)
        return said + (f"{near} {see}" if owner else near or f" {see}")
    if "are required: " in cause:
        return f"{said} Use a configuration that sets them: fl-lightning fit --config adafed_mnist. See fl-lightning configs."
    return f"{said} {see}"


def _without_class(setting: str, value: str, bases: list[Any]) -> str:
    """Say that a setting names an abstract class, or settings without a class."""
    if lacks := sorted(getattr(locate(value), "__abstractmethods__", ())):
        return f"'{setting}' is {value}, which does not define {' and '.join(map(repr, lacks))}. Add it to the class."
    such = f", with a class such as {known[0]}" if (known := kinds(*bases)) else ""
    return f"'{setting}' has settings, but no class. Write '{setting}: {{class_path: ..., init_args: ...}}'{such}."


def _takes_settings(setting: str, name: str, text: str, bases: list[Any]) -> str:
    """Say what a setting takes whose class has no others of its kind; empty if others fit, or the name is nearly its own."""
    kind = next((base for base in bases if inspect.isclass(base) and not kinds(base)), None)
    if kind is None or did_you_mean(name, [kind.__name__]):
        return ""
    takes = ", ".join(f"{argument}: ..." for argument in constructor_arguments(kind))
    return f"'{setting}' is {_value(text)}. It takes settings, or null for none: {{{takes}}}."


def _with_entry(setting: str, message: str) -> str:
    """Return a setting with the name of the entry, such as a client, that is wrong in a mapping of classes.

    jsonargparse does not name it, but prints the mapping, in which the entries before the wrong one are parsed already.
    """
    key, mapping, one = next(iter(_KEY.findall(message)), ""), _MAPPING.search(message), _ENTRY.search(message)
    if "Subtypes: [dict[str, " not in message:
        return setting
    name = one[1] if one else None
    with suppress(SyntaxError):
        given = ast.parse(mapping[1], mode="eval").body if mapping else None
        if isinstance(given, ast.Dict):
            pairs = zip(given.keys, given.values, strict=True)
            name = next((ast.unparse(k).strip("'") for k, value in pairs if k and not isinstance(value, ast.Call)), None)
    return setting if name is None else f"{key}.{name}{setting.removeprefix(key)}"


def _value(text: str) -> str:
    """Return the value that a part of a message is about, as a user writes it."""
    given = re.search(r"(?:Given|Got) value: (?!NestedArg)(.*?)(?:\. Got value: .*)?$|val='?(.*?)'?\)$", text, re.MULTILINE)
    value = (given[1] or given[2]) if given else ""
    value = value if len(value) <= 80 else f"{value[:75].rstrip()}[...]"
    return "null" if value == "None" else value if re.fullmatch(r"[-+.\deE]+|[\[{].*", value) else repr(value)


def _of_class(wrong: re.Match[str], bases: list[Any]) -> str:
    """Say what to write in place of a class that does not exist."""
    name, module, known = wrong[1] or wrong[3] or "", wrong[2], kinds(*bases)
    instead: str = vars(fl_lightning)["instead_of"](name.removeprefix("fl_lightning."))
    if instead:
        return instead
    wanted = tuple(filter(inspect.isclass, bases))
    ours = known or [base.__name__ for base in wanted] or ([] if module else fl_lightning.__all__)
    others = {
        each: f"{home}.{each}"
        for home in ([module] if module else _OTHERS)
        for each, found in vars(import_module(home)).items()
        if not each.startswith("_") and (module or (inspect.isclass(found) and issubclass(found, wanted or object)))
    }
    near = did_you_mean(name, [*ours, *others], show=lambda each: each if each in ours else others[each])
    others_too = f" Known: {', '.join(known)}; use any other by its" if known else " A class of your own is named by its"
    return f"{near}{others_too} dotted path, from this folder or PYTHONPATH."


def located(path: str) -> Any:
    """Return what a name of fl_lightning, or a dotted path, also within it, stands for; None if there is none."""
    if path in fl_lightning.__all__:
        return getattr(fl_lightning, path)
    return (locate(path) or locate(f"fl_lightning.{path}")) if "." in path else None


def _instead(name: str, options: Iterable[str]) -> str:
    """Say what to write in place of a setting that does not exist."""
    section, _, rest = name.partition(".")
    now = fl_lightning.FederatedOrchestrator.renamed.get(rest.partition(".")[0]) if section == "federation" else None
    instead: str = vars(fl_lightning)["instead_of"](section) or (f" It is now {now}." if now else "")
    if instead:
        return instead
    options, flag = list(options), name.removeprefix("federation.local.")
    if flag != name and f"--trainer.{flag}" in options:
        return f" '{flag}' is a setting of the federation's Trainer, not of a client's: set 'trainer.{flag}'."
    known = [one for one in options if not one.endswith((".help", "+")) and one != "--data"]
    near = did_you_mean(f"--{name}", known, cutoff=0.7)
    data = " Write 'data: {datamodule: {class_path: ..., init_args: ...}, partitioner: ...}'."
    return near or data * (section == "data")


def kinds(*bases: Any) -> list[str]:
    """Return the names of this package's classes of some kinds."""
    names = (name for name in fl_lightning.__all__ if name != "Study")  # it needs an extra
    wanted, ours = tuple(filter(inspect.isclass, bases)), ((name, getattr(fl_lightning, name)) for name in names)
    fitting = ((name, kind) for name, kind in ours if inspect.isclass(kind) and issubclass(kind, wanted) and kind not in wanted)
    return [name for name, kind in fitting if not inspect.isabstract(kind)]


def refuse_null(config: Namespace, parser: ArgumentParser) -> None:
    """Refuse a null in a configuration where a setting needs a value: jsonargparse does so only on the command line.

    Args:
        config: the parsed settings of a command; those inside of classes are left to the classes.
        parser: the parser of the command.

    Raises:
        ConfigurationError: naming the setting and its default.
    """
    for action in filter(is_setting, actions_of(parser)):
        wanted, above = type_of(action), accumulate(action.dest.split(".")[:-1], "{}.{}".format)
        needed = action.default is not None and wanted not in (None, Any) and NoneType not in get_args(wanted)
        if needed and config.get(action.dest) is None:
            section = next((name for name in above if not isinstance(config.get(name), Namespace)), None)
            if section is None:
                raise ConfigurationError(f"'{action.dest}' is null. Set it, or leave it out for its default, {action.default}.")
            raise ConfigurationError(f"'{section}' must contain settings, but is {config.get(section)}. Leave it out instead.")
