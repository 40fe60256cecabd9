"""Run a federation over a network with Flower: each site holds its own data. Needs ``pip install 'fl_lightning[flower]'``."""

from fl_lightning.flower.pool import FlowerPool

__all__ = ["FlowerPool"]
