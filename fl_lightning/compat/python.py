"""Private names of Python's standard library."""

from __future__ import annotations

import copy
import gc
import sys
import types
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from fl_lightning.compat.private import MISSING, Private

__all__ = ["copying", "modules_today", "run_exit_functions"]

# pickle writes Python 2's names of modules; its table of today's names has no public place.
_MODULES = Private(
    "Python", "_compat_pickle", "IMPORT_MAPPING", "takes the names of Python 2's modules from a table of its own"
)
# multiprocessing ends its processes without atexit's functions; atexit has no public way to run them.
_EXIT = Private("Python", "atexit", "_run_exitfuncs", "ends the run of W&B, and calls no other function registered with atexit")
_COPIERS = Private("Python", "copy", "_deepcopy_dispatch", "looks for each copied object among all functions of the process")
_ATOMIC = "_atomic_types"
"""From Python 3.14 on, these types come before all others."""

_RENAMED = (
    "__builtin__ builtins copy_reg copyreg Queue queue SocketServer socketserver ConfigParser configparser repr reprlib "
    "tkFileDialog tkinter.filedialog tkSimpleDialog tkinter.simpledialog tkColorChooser tkinter.colorchooser tkCommonDialog "
    "tkinter.commondialog Dialog tkinter.dialog Tkdnd tkinter.dnd tkFont tkinter.font tkMessageBox tkinter.messagebox "
    "ScrolledText tkinter.scrolledtext Tkconstants tkinter.constants Tix tkinter.tix ttk tkinter.ttk Tkinter tkinter "
    "markupbase _markupbase _winreg winreg thread _thread dummy_thread _dummy_thread dbhash dbm.bsd dumbdbm dbm.dumb dbm "
    "dbm.ndbm gdbm dbm.gnu xmlrpclib xmlrpc.client SimpleXMLRPCServer xmlrpc.server httplib http.client htmlentitydefs "
    "html.entities HTMLParser html.parser Cookie http.cookies cookielib http.cookiejar BaseHTTPServer http.server "
    "test.test_support test.support commands subprocess urlparse urllib.parse robotparser urllib.robotparser urllib2 "
    "urllib.request anydbm dbm _abcoll collections.abc cPickle pickle _elementtree xml.etree.ElementTree FileDialog "
    "tkinter.filedialog SimpleDialog tkinter.simpledialog DocXMLRPCServer xmlrpc.server SimpleHTTPServer http.server "
    "CGIHTTPServer http.server UserDict collections UserList collections UserString collections whichdb dbm StringIO io "
    "cStringIO io"
)
"""The names of modules in Python 2, each with its name in Python 3."""


def modules_today() -> Mapping[str, str]:
    """Return the names of modules in Python 3 by those in Python 2."""
    names = _RENAMED.split()
    today = dict(zip(names[::2], names[1::2], strict=True))
    if sys.version_info >= (3, 13):
        del today["Tix"]  # Python 3.13 has removed it
    return _MODULES.get(today)


def run_exit_functions() -> None:
    """Call what was registered with atexit, such as the end of W&B's run, in a process that skips it."""
    _EXIT.get(_end_wandb)()


def _end_wandb() -> None:
    wandb = sys.modules.get("wandb")
    if wandb is not None:
        wandb.finish()


Memo = dict[int, Any]


@contextmanager
def copying(function: Callable[..., Any], reference: Callable[..., Any]) -> Iterator[Callable[[Memo], Memo]]:
    """Let ``copy.deepcopy`` copy functions and weak references in a block, which it otherwise shares.

    Args:
        function: returns the copy of a function, given deepcopy's memo.
        reference: returns the copy of a weak reference.

    Yields:
        A function that returns the memo to give to deepcopy for one that is to begin with.
    """
    own = {types.FunctionType: function, weakref.ref: reference}
    copiers: Any = _COPIERS.get(MISSING)
    if copiers is MISSING:
        if hasattr(copy, _ATOMIC):
            _COPIERS.refuse("Copying a module for the clients")
        yield lambda memo: _Memo(memo, {id(one): one for one in gc.get_objects() if type(one) in own}, own)
        return
    before = {kind: copiers.get(kind) for kind in own}
    atomic = getattr(copy, _ATOMIC, None)
    copiers.update(own)
    if atomic is not None:
        setattr(copy, _ATOMIC, atomic - own.keys())
    try:
        yield dict
    finally:
        if atomic is not None:
            setattr(copy, _ATOMIC, atomic)
        for kind, copier in before.items():
            if copier is None:
                del copiers[kind]
            else:
                copiers[kind] = copier


class _Memo(Memo):
    """Know the copies of functions and weak references before deepcopy, which asks its memo first, shares them.

    Args:
        memo: the copies that are known.
        candidates: all functions and weak references, by id.
        copiers: returns the copy of one, by its type.
    """

    def __init__(self, memo: Memo, candidates: Mapping[int, Any], copiers: Mapping[Any, Callable[..., Any]]) -> None:
        super().__init__(memo)
        self._candidates, self._copiers = candidates, copiers

    def get(self, key: int, default: Any = None) -> Any:
        """Return the copy of the object with this id."""
        if key not in self and key in self._candidates:
            value = self._candidates[key]
            self[key] = self._copiers[type(value)](value, self)
        return super().get(key, default)
