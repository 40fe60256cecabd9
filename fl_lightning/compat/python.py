"""Private names of Python's standard library."""

from __future__ import annotations

import atexit
import copy
import types
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from fl_lightning.compat import private_names_of

with private_names_of("Python"):
    # pickle writes Python 2's names of modules; its table of today's names has no public place.
    from _compat_pickle import IMPORT_MAPPING as MODULES_TODAY

    # multiprocessing ends its processes without atexit's functions; atexit has no public way to run them.
    run_exit_functions = atexit._run_exitfuncs

    _copiers: dict[type, Callable[..., Any]] = copy._deepcopy_dispatch  # type: ignore[attr-defined]

__all__ = ["MODULES_TODAY", "copying", "run_exit_functions"]


@contextmanager
def copying(function: Callable[..., Any], reference: Callable[..., Any]) -> Iterator[None]:
    """Let ``copy.deepcopy`` copy functions and weak references in a block, which it otherwise shares.

    Args:
        function: returns the copy of a function, given deepcopy's memo.
        reference: returns the copy of a weak reference.
    """
    own = {types.FunctionType: function, weakref.ref: reference}
    before = {kind: _copiers.get(kind) for kind in own}
    atomic = getattr(copy, "_atomic_types", None)  # from Python 3.14 on, these come before all others
    _copiers.update(own)
    if atomic is not None:
        copy._atomic_types = atomic - own.keys()  # type: ignore[attr-defined]
    try:
        yield
    finally:
        if atomic is not None:
            copy._atomic_types = atomic  # type: ignore[attr-defined]
        for kind, copier in before.items():
            if copier is None:
                del _copiers[kind]
            else:
                _copiers[kind] = copier
