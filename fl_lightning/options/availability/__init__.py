"""Simulated clients that are absent, fail to deliver in time, or are slow."""

from fl_lightning.options.availability.settings import Availability

__all__ = ["Availability"]
