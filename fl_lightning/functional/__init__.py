"""Provide pure functions and small value classes on tensors, without Lightning or I/O; each is imported from its module."""

from fl_lightning.functional.partition import Partition
from fl_lightning.functional.sums import Sums

__all__ = ["Partition", "Sums"]
