"""Measure how near centroids are to their examples (survey, Table II)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F
from torchmetrics import Metric


class ClusterQuality(Metric):
    """Compute ``loss``, ``distance`` and ``empty`` of centroids; see :class:`~fl_lightning.KMeansTask`."""

    higher_is_better = False
    full_state_update = False
    squared: Tensor
    distance: Tensor
    members: Tensor

    def __init__(self, num_clusters: int) -> None:
        super().__init__()
        self.add_state("squared", torch.zeros(()), dist_reduce_fx="sum")
        self.add_state("distance", torch.zeros(()), dist_reduce_fx="sum")
        self.add_state("members", torch.zeros(num_clusters, dtype=torch.int64), dist_reduce_fx="sum")

    def update(self, nearest: Tensor, distances: Tensor) -> None:
        """Add a batch: clusters, int64, and distances, both of shape (N,)."""
        self.squared = self.squared + distances.square().sum()
        self.distance = self.distance + distances.sum()
        self.members = self.members + F.one_hot(nearest, len(self.members)).sum(dim=0)

    def compute(self) -> dict[str, Tensor]:
        """Return the figures, scalars."""
        examples = self.members.sum()
        return {
            "loss": self.squared / examples,
            "distance": self.distance / examples,
            "empty": (self.members == 0).sum().float(),
        }
