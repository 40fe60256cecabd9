"""Plugins for Lightning's Trainer: checkpoints that are complete or absent."""

from fl_lightning.plugins.checkpoint_io import AtomicCheckpointIO

__all__ = ["AtomicCheckpointIO"]
