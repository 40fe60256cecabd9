"""A run of a study in a process of its own: ``python -m fl_lightning.studies.worker fit ...``."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PARENT = "FL_LIGHTNING_STUDY"
"""Environment variable with the process number of the study."""


def end_with_the_study() -> None:
    """Let this process be told to end when the study's is gone, even if that was killed (on Linux)."""
    if sys.platform == "linux":
        parent = os.environ.pop(PARENT, None)
        set_death_signal = 1  # PR_SET_PDEATHSIG, see prctl(2)
        ctypes.CDLL(None).prctl(set_death_signal, signal.SIGKILL)
        if parent is not None and os.getppid() != int(parent):
            sys.exit("The study that started this run is gone.")


if __name__ == "__main__":
    end_with_the_study()
    from fl_lightning.cli import main

    main()
