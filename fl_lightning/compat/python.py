"""Private names of Python's standard library."""

from __future__ import annotations

import atexit

from fl_lightning.compat import private_names_of

with private_names_of("Python"):
    # pickle writes Python 2's names of modules; its table of today's names has no public place.
    from _compat_pickle import IMPORT_MAPPING as MODULES_TODAY

    # multiprocessing ends its processes without atexit's functions; atexit has no public way to run them.
    run_exit_functions = atexit._run_exitfuncs

__all__ = ["MODULES_TODAY", "run_exit_functions"]
