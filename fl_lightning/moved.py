"""Modules and settings that version 0.2 renamed: their old names still work, with a warning, until 0.4."""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

import yaml

MOVED = {
    "callbacks.checkpoint_io": "plugins.checkpoint_io",
    "clients.attackers": "settings.attackers",
    "clients.availability": "settings.availability",
    "clients.client_evaluation": "settings.client_evaluation",
    "clients.example_privacy": "settings.example_privacy",
    "clients.faults": "settings.faults",
    "clients.local_training": "settings.local_training",
    "clients.partial_work": "settings.partial_work",
    "clients.secure_aggregation": "settings.secure_aggregation",
    "clients.server_evaluation": "settings.server_evaluation",
}
"""The new name of each module, without ``fl_lightning.``."""

SETTINGS = {"federation.updates_in_memory": "federation.memory_limit", "data.device_memory": None}
"""The new name of each setting; None if it has none. ``data.device_memory`` was a share, ``data.memory_limit`` is in GiB."""

_OLD = re.compile(rf"^fl_lightning\.({'|'.join(sorted(map(re.escape, MOVED), key=len, reverse=True))})(?=\.[A-Z])")


def current_name(path: str) -> str:
    """Return the dotted path of a class with the current name of its module."""
    return _OLD.sub(lambda match: f"fl_lightning.{MOVED[match[1]]}", path)


def current_settings(text: str) -> str:
    """Return the text of a configuration with the current names of its settings; warn about each old one.

    Args:
        text: YAML, whose settings are nested, as in the ``config.yaml`` of a run.
    """
    for old, new in SETTINGS.items():
        *sections, name = old.split(".")
        node = yaml.compose(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        for section in sections:
            node = dict(_pairs(node)).get(section, (None, None))[1]
        if (found := dict(_pairs(node)).get(name)) is not None:
            key, value = found
            _warn_of(old, new)
            # A removed setting leaves a key that YAML ignores: an empty section would be an error.
            last = key.end_mark.index if new else value.end_mark.index
            text = text[: key.start_mark.index] + (new.rpartition(".")[2] if new else "<<: {}") + text[last:]
    return text


def current_flag(argument: str) -> str:
    """Return an argument of the command line with the current name of its setting; warn about an old one."""
    name, equals, value = argument.removeprefix("--").partition("=")
    new = SETTINGS.get(name) if argument.startswith("--") else None
    if new is None:
        return argument
    _warn_of(name, new)
    return f"--{new}{equals}{value}"


def _pairs(node: yaml.Node | None) -> list[tuple[str, tuple[yaml.Node, yaml.Node]]]:
    pairs = node.value if isinstance(node, yaml.MappingNode) else []
    return [(key.value, (key, value)) for key, value in pairs if isinstance(key, yaml.ScalarNode)]


def _warn_of(old: str, new: str | None) -> None:
    outcome = f"is now '{new}'. The old name works until version 0.4" if new else "no longer exists and is ignored"
    hint = "" if new else ". See 'data.memory_limit'"
    warnings.warn(f"The setting '{old}' {outcome}{hint}.", FutureWarning, stacklevel=3)


class _Redirect(MetaPathFinder, Loader):
    """Import the new module under the old name."""

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Return a spec for a module that moved; None for any other."""
        package, _, name = fullname.partition(".")
        return ModuleSpec(fullname, self) if package == "fl_lightning" and name in MOVED else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Return the module under its new name."""
        new = f"fl_lightning.{MOVED[spec.name.partition('.')[2]]}"
        warnings.warn(f"'{spec.name}' is now '{new}'. The old name works until version 0.4.", FutureWarning, stacklevel=2)
        module = import_module(new)
        self._own_spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Give the module back its own spec, which the import system has replaced; it has been executed already."""
        module.__spec__ = self._own_spec


def redirect() -> None:
    """Let old names be imported; they come last, so that no existing module is shadowed."""
    if not any(isinstance(finder, _Redirect) for finder in sys.meta_path):
        sys.meta_path.append(_Redirect())
