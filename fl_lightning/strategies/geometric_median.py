"""Compute the geometric median of the models, RFA (Pillutla et al. 2022, Algorithm 2)."""

from __future__ import annotations

import torch
from torch import Tensor

from fl_lightning.errors import require
from fl_lightning.functional.robust import geometric_median
from fl_lightning.strategies.filtering import FilteringStrategy


class GeometricMedian(FilteringStrategy):
    """Return the point with the least sum of distances to the models, robust to up to half of them being arbitrary.

    Each model's weight is inversely proportional to its distance from the result.

    Args:
        examples: whether to weigh the distances by the number of training examples, as RFA does. Clients report these
            numbers themselves.
        smoothing: the smallest distance, > 0, in the units of the weights; smaller distances count as ``smoothing``.
        iterations: the maximum number of Weiszfeld iterations, >= 1; the algorithm stops early once nothing changes.

    Example:
        >>> from fl_lightning import FederatedOrchestrator, GeometricMedian
        >>> federation = FederatedOrchestrator(GeometricMedian(examples=True))
    """

    private_with: tuple[str, ...] = ("local", "examples")

    def __init__(self, examples: bool = False, smoothing: float = 1e-6, iterations: int = 1000) -> None:
        require(0 < smoothing < 1e6, "federation.strategy.smoothing", "above 0 and below 1e6", smoothing)
        require(iterations >= 1, "federation.strategy.iterations", "at least 1", iterations)
        self.examples, self.smoothing, self.iterations = examples, smoothing, iterations

    def weights(self, products: Tensor, examples: Tensor) -> Tensor:
        """Return the shares, which sum to 1."""
        weights = examples if self.examples else torch.ones_like(examples)
        return geometric_median(products, weights, self.smoothing, self.iterations)
