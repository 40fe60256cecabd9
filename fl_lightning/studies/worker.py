"""The process that executes one run of a study."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any


def context() -> Any:
    """Return how to create processes: by copying one that has imported everything, if the system can (Windows cannot)."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    made = multiprocessing.get_context("forkserver")
    made.set_forkserver_preload(["fl_lightning.cli.federation_cli", "fl_lightning.studies.worker"])
    return made


def work(arguments: Sequence[str], environment: Mapping[str, str], log: Path, ranks: int) -> None:
    """Run ``fl-lightning`` with some arguments, and exit with its status.

    Args:
        arguments: arguments of the command.
        environment: the whole environment; that of the process which this one copies may be older.
        log: file to which output is appended.
        ranks: number of processes of the run; several are started anew, as Lightning starts them.
    """
    if hasattr(os, "setsid"):
        os.setsid()  # the study passes Ctrl+C on, once; and ranks belong to this process
    _end_with_the_study()
    os.environ.clear()
    os.environ.update(environment)
    sink = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
        os.dup2(sink, stream.fileno())
    if ranks > 1:
        sys.exit(subprocess.run([sys.executable, "-m", "fl_lightning", *arguments], check=False).returncode)
    import torch

    from fl_lightning.cli.federation_cli import main
    from fl_lightning.compat.python import run_exit_functions

    if "OMP_NUM_THREADS" in os.environ:  # torch read it long ago
        torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    sys.argv = ["fl-lightning", *arguments]
    try:
        main()
    finally:
        run_exit_functions()  # multiprocessing skips them, and W&B ends its run there


def _end_with_the_study() -> None:
    """End this run if its study is killed."""
    study = multiprocessing.parent_process()
    assert study is not None

    def watch() -> None:
        wait([study.sentinel])
        kill(os.getpid(), signal.SIGTERM if sys.platform == "win32" else signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()


def kill(process: int, number: int) -> None:
    """Send a signal to a run's process and its ranks."""
    try:
        if hasattr(os, "killpg") and os.getpgid(process) == process:
            os.killpg(process, number)
        else:
            os.kill(process, number)
    except ProcessLookupError:
        pass
