"""Provide optimizers that torch lacks."""

from fl_lightning.optimizers.yogi import Yogi

__all__ = ["Yogi"]
