"""Checkpoints that are written whole or not at all, and read without running what is in them."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.plugins import TorchCheckpointIO

from fl_lightning.checkpoint_file import read_checkpoint, refuse_unsafe, require_trusted
from fl_lightning.collectives import Collectives
from fl_lightning.compat.lightning import innermost_checkpoint_io
from fl_lightning.errors import CheckpointError, ConfigurationError
from fl_lightning.plugins.folder_lock import lock_folder

_UNFINISHED = ".*.ckpt.*.partial"
"""How checkpoints are called while they are written: ``.<name>.<process>.partial``."""


class AtomicCheckpointIO(TorchCheckpointIO):
    """Writes a checkpoint beside its target, syncs it to the disk, and renames it; reads tensors and plain values only.

    Lightning writes to the system's temp folder and moves: across file systems that is a copy, and a kill leaves an
    empty file. Here a kill at any moment, or a full disk, leaves the previous checkpoint or the new one. Paths with a
    protocol (``s3://``) are written by Lightning.

    A checkpoint is read with ``weights_only=True``, wherever it comes from: a URL is fetched first. Its checksums are
    compared before, which reads a local file once more.

    Args:
        trusted_classes: dotted paths of classes that a checkpoint may hold beside tensors and plain values.

    Raises:
        ConfigurationError: for one that cannot be imported or could run any code.
    """

    def __init__(self, trusted_classes: Sequence[str] | None = None) -> None:
        self.trusted_classes = require_trusted(trusted_classes)

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any | None = None) -> None:
        """Write the checkpoint; see the class.

        Raises:
            CheckpointError: if it cannot be written; the one before is still there.
        """
        if "://" in str(path):
            super().save_checkpoint(checkpoint, path, storage_options)
            return
        target = Path(path)
        unfinished = target.parent / f".{target.name}.{os.getpid()}.partial"
        buffer = io.BytesIO()
        torch.save(checkpoint, buffer)
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with open(unfinished, "wb") as file:
                file.write(buffer.getbuffer())
                file.flush()
                os.fsync(file.fileno())
            unfinished.replace(target)
        except OSError as error:
            kept = "The one before is as it was" if target.exists() else "There is none before it"
            raise CheckpointError(
                f"The checkpoint '{target}' of {buffer.tell() / 1e6:.0f} MB cannot be written ({error.strerror}). {kept}. Make "
                "room, or set 'trainer.default_root_dir' to another disk, and go on with '--ckpt_path last'."
            ) from error
        finally:
            with suppress(OSError):
                unfinished.unlink(missing_ok=True)
        _sync(target.parent)

    def load_checkpoint(
        self,
        path: str | Path,
        map_location: Any = lambda storage, location: storage,
        weights_only: bool | None = None,
    ) -> dict[str, Any]:
        """Read a checkpoint; see the class.

        Raises:
            CheckpointError: if the file is missing, damaged, or holds what is not trusted.
        """
        refuse_unsafe(weights_only)
        checkpoint: dict[str, Any] = read_checkpoint(path, map_location, self.trusted_classes)
        return checkpoint


def _sync(folder: Path) -> None:
    """Let the new name reach the disk."""
    try:
        opened = os.open(folder, os.O_RDONLY)
    except PermissionError:  # Windows opens no folders
        return
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def use_safe_checkpoints(trainer: Trainer, trusted: Sequence[str]) -> list[str] | None:
    """Let a Trainer save and load by :class:`AtomicCheckpointIO`, unless it has an IO of the user's own.

    Args:
        trainer: any; an IO that wraps another keeps its place.
        trusted: dotted paths of classes, see there.

    Returns:
        All that is trusted, or None where an IO of the user's own reads.
    """
    used, replace = innermost_checkpoint_io(trainer)
    if type(used) is TorchCheckpointIO:
        used = AtomicCheckpointIO()
        replace(used)
    if not isinstance(used, AtomicCheckpointIO):
        return None
    used.trusted_classes = list(dict.fromkeys([*used.trusted_classes, *trusted]))
    return used.trusted_classes


def checkpoint_folders(trainer: Trainer) -> list[Path]:
    """Return the local folders into which a Trainer saves checkpoints."""
    folders = (getattr(saver, "dirpath", None) for saver in trainer.checkpoint_callbacks)
    return sorted({Path(folder).absolute() for folder in folders if folder is not None and "://" not in str(folder)})


def lock_checkpoints(trainer: Trainer, cleanup: ExitStack) -> None:
    """Keep other runs out of the folders of checkpoints, and remove what killed processes have left half written there.

    Rank 0 does it; if it cannot, all ranks end.

    Args:
        trainer: about to fit; its checkpoint callbacks have been set up.
        cleanup: lets the folders go.

    Raises:
        ConfigurationError: if another run is at work in one, or one cannot be written.
    """
    failure: Exception | None = None
    try:
        if trainer.is_global_zero and not trainer.fast_dev_run:  # type: ignore[attr-defined]
            for folder in checkpoint_folders(trainer):
                if cleanup.enter_context(lock_folder(folder)):
                    for path in folder.glob(_UNFINISHED):
                        path.unlink(missing_ok=True)
    except ConfigurationError as error:
        failure = error
    Collectives(trainer).gather_or_raise(None, failure)
