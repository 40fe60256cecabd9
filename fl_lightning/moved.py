"""Modules that moved in 0.2: their old names still work, with a warning, until 0.4."""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

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

_OLD = re.compile(rf"^fl_lightning\.({'|'.join(sorted(map(re.escape, MOVED), key=len, reverse=True))})(?=\.[A-Z])")


def current_name(path: str) -> str:
    """Return the dotted path of a class with the current name of its module."""
    return _OLD.sub(lambda match: f"fl_lightning.{MOVED[match[1]]}", path)


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
