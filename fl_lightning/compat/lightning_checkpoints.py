"""Private names of Lightning for checkpoints and the plugins that write them."""

from __future__ import annotations

from functools import partial
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.plugins import CheckpointIO

from fl_lightning.compat.private import Private

__all__ = ["FindsLastCheckpoint", "checkpoint_of", "innermost_checkpoint_io"]

_DUMP = Private(
    "lightning",
    "lightning.pytorch.Trainer",
    "_checkpoint_connector.dump_checkpoint",
    "saves a checkpoint to a plugin that keeps it",
)
_WRAPS = Private(
    "lightning",
    "lightning.pytorch.plugins.io.wrapper",
    "_WrappingCheckpointIO",
    "takes every plugin with a 'checkpoint_io' for a wrapper",
)
_WRAPPED = Private(
    "lightning",
    "lightning.pytorch.plugins.AsyncCheckpointIO",
    "_checkpoint_io",
    "looks for the inner plugin among the outer one's attributes",
)
_LAST = Private(
    "lightning",
    "lightning.pytorch.callbacks.ModelCheckpoint",
    "_find_last_checkpoints",
    "leaves the choice for ckpt_path='last' to Lightning",
)


class _Held(CheckpointIO):
    """Keep a checkpoint instead of writing it."""

    held: dict[str, Any]

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        """Keep the checkpoint."""
        self.held = checkpoint

    def load_checkpoint(self, path: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Return the checkpoint."""
        return self.held

    def remove_checkpoint(self, path: Any) -> None:
        """Remove nothing."""


def checkpoint_of(trainer: Trainer, weights_only: bool) -> dict[str, Any]:
    """Return what ``trainer.save_checkpoint`` would write, which in public goes to a plugin only."""
    dump: Any = _DUMP.get(None, trainer)
    if dump is not None:
        checkpoint: dict[str, Any] = dump(weights_only)
        return checkpoint
    before, holder = trainer.strategy.checkpoint_io, _Held()
    trainer.strategy.checkpoint_io = holder
    try:
        trainer.save_checkpoint("held", weights_only)
    finally:
        trainer.strategy.checkpoint_io = before
    return getattr(holder, "held", {})


def innermost_checkpoint_io(trainer: Trainer) -> tuple[CheckpointIO, Any]:
    """Return the plugin that writes a Trainer's checkpoints, and a function that replaces it.

    A plugin that wraps another, such as AsyncCheckpointIO, shows the other, but has no public base class, and its other is
    set only once.
    """
    used, replace = trainer.strategy.checkpoint_io, partial(setattr, trainer.strategy, "checkpoint_io")
    while isinstance(used, _WRAPS.get(CheckpointIO)):
        inner: Any = getattr(used, "checkpoint_io", None)
        if inner is None:
            break
        name = _WRAPPED.name
        if not _WRAPPED.exists(used):
            name = next(name for name, value in vars(used).items() if value is inner)
        used, replace = inner, partial(setattr, used, name)
    return used, replace


class FindsLastCheckpoint(ModelCheckpoint):
    """Let subclasses say which checkpoints ``ckpt_path="last"`` chooses from; ModelCheckpoint has a private method for it."""

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Set up as Lightning does, and tell if it no longer asks."""
        _LAST.exists(ModelCheckpoint)
        super().setup(trainer, pl_module, stage)

    def find_last(self, trainer: Trainer) -> set[str]:
        """Return the paths of checkpoints that may be the last one. Stands in for ``_find_last_checkpoints``."""
        return super()._find_last_checkpoints(trainer)

    def _find_last_checkpoints(self, trainer: Trainer) -> set[str]:
        return self.find_last(trainer)
