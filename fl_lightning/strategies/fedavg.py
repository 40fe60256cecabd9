"""Average the clients' models, as FedAvg does (McMahan et al. 2017, Algorithm 1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from fl_lightning.functional.sums import Grid
from fl_lightning.strategies.base import ModelGrid, WeightedAverage
from fl_lightning.types import ClientUpdate


class FedAvg(WeightedAverage):
    """Average the clients' models, weighted by their examples: ``w_{t+1} = sum_k n_k / n * w_k``.

    Args:
        weighting: ``examples`` weighs a client by its number of training examples n_k; ``uniform`` gives every
            client of the cohort the same weight 1/m, as FedProx's listing does.

    Example:
        >>> from fl_lightning import FedAvg, FederatedOrchestrator
        >>> federation = FederatedOrchestrator(FedAvg(weighting="uniform"), clients_per_round=0.5)
    """

    private_with: tuple[str, ...] = ("central", "local", "examples")
    compares_clients = False

    def __init__(self, weighting: Literal["examples", "uniform"] = "examples") -> None:
        self.weighting = weighting
        self.reads = ("examples",) if weighting == "examples" else ()

    def largest_weight(self, examples: Sequence[int]) -> float:
        """Return the largest n_k, or 1."""
        return float(max(examples)) if self.weighting == "examples" else 1.0

    def grids(self, examples: Sequence[int], model_grid: ModelGrid) -> dict[str, Grid]:
        """Return the grids of the sums, of which one client has the largest weight."""
        certain = type(self).weight is FedAvg.weight
        found = super().grids(examples, model_grid)
        return {name: replace(grid, certain=certain) for name, grid in found.items()}

    def weight(self, update: ClientUpdate) -> float:
        """Return n_k, or 1."""
        return float(update.num_examples) if self.weighting == "examples" else 1.0
