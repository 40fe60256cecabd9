"""Explain how to resume after Ctrl+C."""

from __future__ import annotations

import sys

from lightning.pytorch import Trainer
from lightning.pytorch.trainer.states import TrainerFn

from fl_lightning.plugins.checkpoint_io import checkpoint_folders


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
            f"the finished rounds are in '{path}'. Resume with --ckpt_path last, or in Python with "
            f"fit(..., ckpt_path='{path}')."
        )
    print(f"Stopped by Ctrl+C: {said}", file=sys.stderr, flush=True)
