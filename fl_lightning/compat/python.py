"""Private names of Python's standard library."""

from __future__ import annotations

import copy
import sys
import types
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any
from unittest.mock import patch

from fl_lightning.compat.private import Private

# pickle writes Python 2's names of modules; its table of today's names has no public place.
_MODULES = Private("Python", "_compat_pickle", "IMPORT_MAPPING")
# multiprocessing ends its processes without atexit's functions; atexit has no public way to run them.
_EXIT = Private("Python", "atexit", "_run_exitfuncs", "ends the run of W&B, and calls no other function registered with atexit")
_COPIERS = Private("Python", "copy", "_deepcopy_dispatch")
_ATOMIC = "_atomic_types"
"""From Python 3.14 on, these types come before all others."""


def modules_today() -> Mapping[str, str]:
    """Return the names of modules in Python 3 by those in Python 2."""
    names: Mapping[str, str] = _MODULES.require("Reading a checkpoint")
    return names


def run_exit_functions() -> None:
    """Call what was registered with atexit, such as the end of W&B's run, in a process that skips it."""
    _EXIT.get(_end_wandb)()


def _end_wandb() -> None:
    wandb = sys.modules.get("wandb")
    if wandb is not None:
        wandb.finish()


@contextmanager
def copying(function: Callable[..., Any], reference: Callable[..., Any]) -> Iterator[None]:
    """Let ``copy.deepcopy`` copy functions and weak references in a block, which it otherwise shares.

    Args:
        function: returns the copy of a function, given deepcopy's memo.
        reference: returns the copy of a weak reference.
    """
    own = {types.FunctionType: function, weakref.ref: reference}
    copiers, atomic = _COPIERS.require("Copying a module for the clients"), getattr(copy, _ATOMIC, None)
    before = {kind: copiers[kind] for kind in own if kind in copiers}
    copiers.update(own)
    try:
        with nullcontext() if atomic is None else patch.object(copy, _ATOMIC, atomic - own.keys()):
            yield
    finally:
        copiers.update(before)
        for kind in own.keys() - before.keys():
            del copiers[kind]
