"""Optimizers that torch does not have."""

from fl_lightning.optimizers.yogi import Yogi

__all__ = ["Yogi"]
