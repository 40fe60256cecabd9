"""Let a fit that is stopped, by Ctrl+C or at the end of a SLURM job, be resumed from its last finished round.

On SLURM, Lightning would save a checkpoint in the middle of a round, in which some clients have trained already, and prefer
that to any other checkpoint from then on. A round is repeated instead: finished rounds are in ``last.ckpt``.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import threading
from contextlib import ExitStack

from lightning.pytorch import Trainer
from lightning.pytorch.trainer.states import TrainerFn

from fl_lightning.compat.lightning import slurm_environment
from fl_lightning.utilities.checkpoints import checkpoint_folders


def requeued() -> bool:
    """Return whether SLURM has started this job again."""
    return os.environ.get("SLURM_RESTART_COUNT", "0") not in ("", "0")


def requeue_whole_rounds(trainer: Trainer, cleanup: ExitStack) -> None:
    """Requeue the job when SLURM's signal arrives, SIGUSR1 by default, instead of what Lightning would do.

    A Trainer whose ``SLURMEnvironment`` has ``auto_requeue=False`` is left alone.

    Args:
        trainer: the user's Trainer, before it fits.
        cleanup: an exit stack that restores signal and settings.
    """
    environment = slurm_environment(trainer)
    if environment is None or not environment.auto_requeue or threading.current_thread() is not threading.main_thread():
        return
    environment.auto_requeue = False
    cleanup.callback(setattr, environment, "auto_requeue", True)
    number = environment.requeue_signal or signal.SIGTERM
    cleanup.callback(signal.signal, number, signal.getsignal(number) or signal.SIG_DFL)
    signal.signal(number, lambda *_: _requeue(trainer.is_global_zero))


def _requeue(first: bool) -> None:
    if not first:
        return
    job = os.environ.get("SLURM_JOB_ID", "")
    if "SLURM_ARRAY_JOB_ID" in os.environ:
        job = f"{os.environ['SLURM_ARRAY_JOB_ID']}_{os.environ.get('SLURM_ARRAY_TASK_ID', '')}"
    print(f"SLURM will stop job {job} soon. It starts again from its last finished round.", file=sys.stderr, flush=True)
    try:
        status = subprocess.run(["scontrol", "requeue", job], check=False).returncode
    except OSError as error:
        status = error.errno or 1
    if status:
        print(f"'scontrol requeue {job}' failed with {status}. Submit the job again.", file=sys.stderr, flush=True)


def interrupted(error: BaseException | None) -> bool:
    """Return whether an error comes from Ctrl+C; Lightning raises SystemExit if a client's Trainer was running."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__context__
    return error is not None


def tell_how_to_resume(trainer: Trainer, error: BaseException) -> None:
    """Print how to resume a fit that Ctrl+C ended, on rank 0; print nothing after other errors."""
    if not interrupted(error) or trainer.state.fn is not TrainerFn.FITTING or not trainer.is_global_zero:
        return
    kept = [path for folder in checkpoint_folders(trainer) for path in folder.glob("*.ckpt")]
    if not kept:
        said = "no checkpoint was saved. Run it again from the start."
    else:
        path = max(kept, key=lambda kept: kept.stat().st_mtime)
        said = (
            f"the finished rounds are in '{path}'. Resume with --ckpt_path {shlex.quote(str(path))}, or in Python with "
            f"fit(..., ckpt_path='{path}')."
        )
    print(f"Stopped by Ctrl+C: {said}", file=sys.stderr, flush=True)
