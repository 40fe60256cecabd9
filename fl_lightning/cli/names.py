"""Suggestions for misspelled names, and the line of a configuration file with the mistake."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import fl_lightning
from fl_lightning.config.files import Entry, read
from fl_lightning.config.wrong_value import wrong_value
from fl_lightning.errors import ConfigurationError, did_you_mean
from fl_lightning.functional.description import constructor_arguments

_ELSEWHERE = {
    "optimizer": ("torch.optim",),
    "scheduler": ("torch.optim.lr_scheduler",),
    "loss": ("torch.nn",),
    "network": ("torch.nn",),
    "metric": ("torchmetrics", "torchmetrics.classification"),
    "logger": ("lightning.pytorch.loggers",),
    "callbacks": ("lightning.pytorch.callbacks",),
}
"""Modules besides ours whose classes fit a setting, by the last words of its name."""


def nearest_class(name: str, setting: str) -> str:
    """Return ' Did you mean ...?' for a class that does not exist, or nothing.

    Args:
        name: name as it was given: one of our classes, or a dotted path.
        setting: last part of the setting's name.
    """
    module, _, last = name.rpartition(".")
    if module and module != "fl_lightning":
        return _nearest_in_module(name)
    ours = [known for known in fl_lightning.__all__ if inspect.isclass(getattr(fl_lightning, known))]
    places = [place for word, places in _ELSEWHERE.items() if setting.endswith(word) for place in places]
    others = {known: f"{place}.{known}" for place in places for known in _classes(import_module(place))}
    known = [*ours, *(known for known in others if known not in ours)]
    return did_you_mean(last, known, show=lambda found: found if found in ours else others[found])


def _nearest_in_module(path: str) -> str:
    """Return the longest part of a dotted path that exists, with the names nearest to the rest of it."""
    parts = path.split(".")
    found: Any = None
    for number, part in enumerate(parts):
        above, found = found, _member(found, ".".join(parts[: number + 1]), part)
        if found is None:
            if above is None:
                return did_you_mean(part, ("fl_lightning", "torch", "torchmetrics", "torchvision", "lightning"))
            known = [name for name in dir(above) if not name.startswith("_")]
            prefix = ".".join(parts[:number])
            return did_you_mean(part, known, show=lambda name: f"{prefix}.{name}")  # noqa: B023  called at once
    return ""


def _member(above: Any, path: str, name: str) -> Any:
    if above is not None and hasattr(above, name):
        return getattr(above, name)
    try:
        return import_module(path) if above is None or isinstance(above, ModuleType) else None
    except Exception:  # a user's module may raise anything when it is imported
        return None


def _classes(module: ModuleType) -> Iterator[str]:
    yield from (name for name, value in vars(module).items() if inspect.isclass(value) and not name.startswith("_"))


def nearest_setting(name: str, class_path: str) -> str:
    """Return ' Did you mean ...?' for a setting that a class does not have.

    Args:
        name: name of the setting.
        class_path: dotted path of the class.
    """
    module, _, last = class_path.rpartition(".")
    try:
        known = constructor_arguments(getattr(import_module(module or "fl_lightning"), last))
    except Exception:
        return ""
    return did_you_mean(name, known)


def where(message: str, files: Sequence[str]) -> str:
    """Return the file and line that a parser's message is about; empty if no file contains the setting.

    Args:
        message: the parser's message.
        files: configurations in loading order.
    """
    holds = _holds(message)
    for path in reversed(files) if holds else ():
        try:
            settings = read(Path(path)).settings
        except ConfigurationError:
            continue
        for name, entry in settings.items():
            if holds and holds(name, entry):
                return f"'{path}', line {entry.line}: "
    return ""


def _holds(message: str) -> Callable[[str, Entry], bool] | None:
    """Return a test for the setting that a message is about, by its name and its entry in a file."""
    wrong = wrong_value(message)
    if wrong is not None:
        return lambda name, entry: _typed(name) == wrong.setting and entry.text in (None, wrong.value)
    keys = re.findall(r'Parser key "([\w.]+)"', message)
    root = keys[0] if keys else ""
    unknown = re.search(r"does not accept option '([\w.]+)'|[Kk]ey '([\w.]+)' is not expected", message)
    option = re.search(r"Option '([\w.]+)' is not accepted", message)
    value = wrong_name(message) or next(iter(re.findall(r"^\s*Given value: (.*)$", message, re.MULTILINE)), None)
    if unknown:
        wanted = unknown[1] or unknown[2]
        return lambda name, entry: name == wanted
    if option:
        return lambda name, entry: name.startswith(f"{root}.") and name.endswith(f".{option[1]}") if root else name == option[1]
    if value and root:
        return lambda name, entry: f"{name}.".startswith(f"{root}.") and entry.text == value
    return None


def _typed(name: str) -> str:
    """Return a setting's name as a user types it on the command line."""
    return ".".join(part for part in name.split(".") if part != "init_args" and not part.isdigit())


def wrong_name(message: str) -> str | None:
    """Return the name of the class that does not exist, from a parser's message."""
    found = re.search(r"Expected a dot import path string: ([\w.]+)", message)
    if found:
        return found[1].rstrip(".")
    missing = re.search(r"has no attribute '(\w+)'|No module named '([\w.]+)'", message)
    paths = re.findall(r"(?:class_path '|Got value: |Given value: )([\w.]+)", message)
    last = (missing[1] or missing[2].split(".")[-1]) if missing else ""
    return next((path.rstrip(".") for path in reversed(paths) if last in path.split(".")), None) if missing else None
