"""Simulated clients that are absent, fail to deliver in time, or are slow, and simulated time."""

from fl_lightning.options.availability.settings import Availability, Clock

__all__ = ["Availability", "Clock"]
