"""The cases: one federation of seven unequal clients, of which five take part in a round, and each algorithm's settings."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from common import CLASSES, INPUTS, Case, Net, norm_entries, vector

SIZES = (7, 20, 13, 9, 17, 12, 24)
COHORT, ROUNDS = 5, 3
_SGD = {"epochs": 2, "batch": 5, "lr": 0.1}
_FULL = {"epochs": 6, "batch": 100}
_ADAPTIVE = {"server_lr": 0.05, "tau": 0.01, "beta_1": 0.9, "beta_2": 0.95}
_ROBUST = {"attackers": 1, "weighting": "uniform"}

SETTINGS: dict[str, dict[str, Any]] = {
    "FedAvg": {},
    "FedAvgM": {"momentum": 0.7, "server_lr": 1.0},
    "FedProx": {"proximal_mu": 0.5, "weighting": "uniform"},
    "SCAFFOLD": {"weighting": "uniform"},
    "FedNova": {},
    "FedDyn": {"alpha": 0.3, "weighting": "uniform"},
    "MOON": {"mu": 1.0, "temperature": 0.5},
    "Ditto": {"strength": 0.4},
    "FedRep": {},
    "FedBN": {"batchnorm": True},
    "APFL": {"alpha": 0.3, "weighting": "uniform"},
    # Its K steps use one batch: the full one. The rate of w is that of theta, as some peers have a single one.
    "pFedMe": {"strength": 2.0, "steps": 3, "rate": 0.05, "lr": 0.05, "beta": 0.8, "weighting": "uniform", **_FULL},
    "q-FedAvg": {"q": 2.0},
    "FedAdam": _ADAPTIVE,
    "FedAdagrad": {**_ADAPTIVE, "beta_1": 0.0},
    "FedYogi": _ADAPTIVE,
    "FedBuff": {"server_lr": 0.8, "concurrency": 5, "buffer": 3, "weighting": "uniform"},
    "Krum": {**_ROBUST, "selected": 1},
    "multi-Krum": {**_ROBUST, "selected": 3},
    "trimmed mean": _ROBUST,
    "median": _ROBUST,
}


def build(algorithm: str) -> Case:
    """The case of an algorithm, still without cohorts: clients' labels are skewed, so that their models differ."""
    settings = _SGD | SETTINGS[algorithm]
    generator, parts = np.random.default_rng(5), []
    centres = generator.normal(size=(CLASSES, INPUTS))
    for client, size in enumerate(SIZES):
        odds = np.roll([0.7, 0.2, 0.1], client)
        y = generator.choice(CLASSES, size=size, p=odds)
        parts.append((centres[y] + generator.normal(size=(size, INPUTS)) + 0.2 * client, y))
    own = vector(Net("batchnorm" in settings)).copy()
    x, y = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    case = Case(algorithm, settings, own, x, y, list(SIZES), [], [])
    return replace(case, initial=np.where(norm_entries(case), own, generator.uniform(-0.5, 0.5, size=len(own))))
