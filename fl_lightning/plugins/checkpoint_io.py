"""Checkpoints that are written completely or not at all, and read without running code that they contain."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any

import torch
from lightning.fabric.utilities.data import AttributeDict
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.plugins import TorchCheckpointIO

from fl_lightning.compat.lightning import innermost_checkpoint_io
from fl_lightning.errors import CheckpointError, ConfigurationError
from fl_lightning.utilities.argument_types import ChecksTypes
from fl_lightning.utilities.atomic_file import PARTIAL, fill_whole
from fl_lightning.utilities.checkpoint_file import read_checkpoint, refuse_unsafe, require_trusted
from fl_lightning.utilities.collectives import Collectives
from fl_lightning.utilities.folder_lock import lock_folder

_UNFINISHED = PARTIAL.format(name="*.ckpt", process="*")
"""Names of checkpoints while they are being written."""


class AtomicCheckpointIO(ChecksTypes, TorchCheckpointIO):
    """Write a checkpoint next to its target, sync it to disk, and rename it; read only tensors and plain values.

    Lightning writes to the system's temp folder and moves the file: across file systems that is a copy, and a kill leaves an
    empty file. Here a kill at any moment, or a full disk, leaves the previous checkpoint or the new one. Lightning still
    writes to paths with a protocol (``s3://``).

    Checkpoints are read with ``weights_only=True`` from any source: a URL is downloaded first. Checksums are compared
    before loading, which reads a local file one more time.

    Args:
        trusted_classes: dotted paths of classes that a checkpoint may hold besides tensors and plain values.

    Raises:
        ConfigurationError: if a class cannot be imported or could run arbitrary code.
    """

    def __init__(self, trusted_classes: Sequence[str] | None = None) -> None:
        self.trusted_classes = require_trusted(trusted_classes)

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any | None = None) -> None:
        """Write the checkpoint as the class describes.

        Raises:
            CheckpointError: if it cannot be written; the previous checkpoint is kept.
        """
        if "://" in str(path):
            super().save_checkpoint(checkpoint, path, storage_options)
            return
        target = Path(path)
        try:
            fill_whole(target, lambda file: _save(checkpoint, file))
        except OSError as error:
            what = f"Cannot write the checkpoint '{target}' ({error.strerror})."
            if target.exists() or (checkpoint.get("epoch", 0) > 0 and any(target.parent.glob("*.ckpt"))):
                advice = "The previous checkpoint is unchanged. Free some space, and resume with '--ckpt_path last'."
            else:
                other = "or set 'trainer.default_root_dir' to another disk"
                advice = f"No round is saved yet. Free some space, {other}, and start again."
            raise CheckpointError(f"{what} {advice}") from error

    def load_checkpoint(
        self,
        path: str | Path,
        map_location: Any = lambda storage, location: storage,
        weights_only: bool | None = None,
    ) -> dict[str, Any]:
        """Read a checkpoint as the class describes.

        Raises:
            CheckpointError: if the file is missing or damaged, or holds a class that is not trusted, or if
                ``weights_only`` is False.
        """
        refuse_unsafe(weights_only)
        checkpoint: dict[str, Any] = read_checkpoint(path, map_location, self.trusted_classes)
        return checkpoint


class _Noting:
    """Write to a file, and note the first error, which torch may replace by one of its own."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.error: OSError | None = None

    def write(self, content: Any) -> int:
        try:
            return self._file.write(content)
        except OSError as error:
            self.error = self.error or error
            raise

    def flush(self) -> None:
        self._file.flush()


def _save(checkpoint: dict[str, Any], file: IO[bytes]) -> None:
    """Write a checkpoint tensor by tensor, so that it is not in memory as a whole.

    Raises:
        OSError: if the file cannot be written.
    """
    target = _Noting(file)
    try:
        torch.save(checkpoint, target)  # type: ignore[arg-type]
    except Exception:
        if target.error is not None:
            raise target.error from None
        raise


def use_safe_checkpoints(trainer: Trainer, trusted: Sequence[str]) -> list[str] | None:
    """Make a Trainer save and load with :class:`AtomicCheckpointIO`, unless the user has set another IO.

    Args:
        trainer: any Trainer; an IO that wraps another stays the outer one.
        trusted: dotted paths of classes, as in :class:`AtomicCheckpointIO`.

    Returns:
        All trusted classes, or None if the user's own IO reads checkpoints.
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
    """Return the local folders in which a Trainer saves checkpoints."""
    folders = (getattr(saver, "dirpath", None) for saver in trainer.checkpoint_callbacks)
    return sorted({Path(folder).absolute() for folder in folders if folder is not None and "://" not in str(folder)})


def lock_checkpoints(trainer: Trainer, cleanup: ExitStack) -> None:
    """Keep other runs out of the checkpoint folders, and remove partial files that killed processes left there.

    Rank 0 does this; if it fails, all ranks end.

    Args:
        trainer: Trainer that is about to fit, with checkpoint callbacks set up.
        cleanup: exit stack that releases the folders.

    Raises:
        ConfigurationError: if another run uses a folder, or a folder is not writable.
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


def make_plain(checkpoint: dict[str, Any]) -> None:
    """Turn dictionaries of Lightning's own class inside the hyperparameters into plain ones, which can be read safely.

    A part of a module that has hyperparameters of its own hands them to the module as such dictionaries.

    Args:
        checkpoint: a checkpoint that is about to be saved; its hyperparameters are replaced, not changed in place.
    """
    key = LightningModule.CHECKPOINT_HYPER_PARAMS_KEY
    if key in checkpoint:
        checkpoint[key] = _plain(checkpoint[key])


def _plain(value: Any) -> Any:
    if type(value) in (dict, AttributeDict):
        return {name: _plain(held) for name, held in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_plain(held) for held in value)
    return value
