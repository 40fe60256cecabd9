"""Run a federation over a network with Flower: each site holds its own data. Needs ``pip install 'fl_lightning[flower]'``."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fl_lightning.flower.wire.pool import FlowerPool

__all__ = ["FlowerPool"]


def __getattr__(name: str) -> Any:
    """Import the pool, which loads the server's half, on first use: a site needs neither, and its parent process no torch."""
    if name not in __all__:
        raise AttributeError(f"module 'fl_lightning.flower' has no attribute '{name}'")
    return getattr(import_module("fl_lightning.flower.wire.pool"), name)
