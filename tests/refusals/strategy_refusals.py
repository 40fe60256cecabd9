"""Strategies and rules: wrong settings and what they do not go with."""

from __future__ import annotations

from refusing import Refusal

from fl_lightning import FedAvgM

REFUSALS = [
    Refusal(lambda: FedAvgM(1.0), "'federation.strategy.momentum' must be"),
]
