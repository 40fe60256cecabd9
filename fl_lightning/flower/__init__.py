"""Run a federation over a network with Flower: each site holds its own data. Needs ``pip install 'fl_lightning[flower]'``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fl_lightning.flower.wire.pool import FlowerPool

__all__ = ["FlowerPool"]


def __getattr__(name: str) -> Any:
    """Import the pool on first use: the parent process of a site needs no torch."""
    if name != "FlowerPool":
        raise AttributeError(f"module 'fl_lightning.flower' has no attribute '{name}'")
    from fl_lightning.flower.wire.pool import FlowerPool

    return FlowerPool
