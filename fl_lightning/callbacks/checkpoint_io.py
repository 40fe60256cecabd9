"""Checkpoints that are never half there."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.utilities.types import _PATH
from lightning.pytorch.plugins import TorchCheckpointIO

from fl_lightning.errors import CheckpointError

_PARTIAL = ".partial-checkpoint"


class AtomicCheckpointIO(TorchCheckpointIO):
    """Writes a checkpoint beside its target, syncs it to the disk, and renames it.

    Lightning writes to the system's temp folder and moves: across file systems that is a copy, and a kill leaves an
    empty file. Here a kill at any moment, or a full disk, leaves the previous checkpoint or the new one. Paths with a
    protocol (``s3://``) are left to Lightning.
    """

    def save_checkpoint(self, checkpoint: dict[str, Any], path: _PATH, storage_options: Any | None = None) -> None:
        """Write the checkpoint; see the class.

        Raises:
            CheckpointError: if it cannot be written; the one before is still there.
        """
        if "://" in str(path):
            super().save_checkpoint(checkpoint, path, storage_options)
            return
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = target.parent / _PARTIAL
        buffer = io.BytesIO()
        torch.save(checkpoint, buffer)
        try:
            with open(partial, "wb") as file:
                file.write(buffer.getbuffer())
                file.flush()
                os.fsync(file.fileno())
            partial.replace(target)
        except OSError as error:
            partial.unlink(missing_ok=True)
            kept = "The one before is as it was" if target.exists() else "There is none before it"
            raise CheckpointError(
                f"The checkpoint '{target}' of {buffer.tell() / 1e6:.0f} MB cannot be written ({error.strerror}). {kept}. Make "
                "room, or set 'trainer.default_root_dir' to another disk, and go on with '--ckpt_path last'."
            ) from error
        folder = os.open(target.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def load_checkpoint(self, path: _PATH, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Read a checkpoint.

        Raises:
            CheckpointError: if the file is missing or is not a readable checkpoint.
        """
        try:
            return super().load_checkpoint(path, *args, **kwargs)
        except Exception as error:
            raise unreadable(path, error) from error


def unreadable(path: _PATH, cause: Exception) -> CheckpointError:
    """The error for a checkpoint that cannot be read, with what else there is in its folder."""
    target = Path(path)
    others = sorted(other.name for other in target.parent.glob("*.ckpt") if other.name != target.name)
    reason = (str(cause).splitlines()[0] if str(cause) else type(cause).__name__)[:200]
    if "weights_only" in str(cause):  # torch's advice, to load it all the same, would let whoever made it run code here
        reason = "it holds other things than tensors and plain values, which might run code and are not loaded"
    return CheckpointError(
        f"'{path}' is not a readable checkpoint ({reason}). Use another"
        + (f"; the same folder holds {', '.join(others)}." if others else ", or start again without 'ckpt_path'.")
    )
