"""Asynchronous rounds: the server does not wait for all clients, but for a number of updates."""

from fl_lightning.options.asynchronous.settings import Asynchronous

__all__ = ["Asynchronous"]
