"""Clients that harm the federation, by their data or by their updates."""

from fl_lightning.options.attackers.settings import Attackers

__all__ = ["Attackers"]
