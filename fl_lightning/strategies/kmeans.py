"""Run federated K-means: Lloyd's step on the clients' examples without seeing them (Lloyd 1982)."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from fl_lightning.core.capabilities import ResumeRule
from fl_lightning.errors import ConfigurationError
from fl_lightning.functional.exact_sum import to_float64
from fl_lightning.functional.seeding import generator
from fl_lightning.functional.sums import Sums
from fl_lightning.strategies.base import RunningStrategy
from fl_lightning.types import ClientUpdate, RoundStart

_OFFSET = 0.01
"""The noise added to a cluster that splits off, in units of the centroids' spread."""


class FederatedKMeans(RunningStrategy):
    """Set each centroid to the mean of the cohort's examples assigned to it: ``c_j = sum_k n_kj c_kj / sum_k n_kj``.

    A client sends its centroids c_kj and the number n_kj of its examples nearest to each, as
    :class:`~fl_lightning.KMeansTask` stores them. With one local epoch and all clients, a round is one step of Lloyd's
    algorithm on the pooled data. After a round, the averaged buffer holds the cluster sizes over the cohort.

    Args:
        empty: how to treat a cluster that has no examples at any client of a round: ``keep`` leaves it in place;
            ``split`` moves it to the centroid of the largest cluster plus noise. The noise is normal, in each coordinate with a
            standard deviation of 1 % of the centroids' root mean square distance from their mean (0.01 if that is 0).
        seed: the seed of that noise.

    Example:
        >>> from fl_lightning import FederatedKMeans, FederatedOrchestrator
        >>> federation = FederatedOrchestrator(FederatedKMeans(empty="split"))
    """

    private_with: tuple[str, ...] = ()
    needs_own_training = True
    on_resume = ResumeRule(stays="seed")

    def __init__(self, empty: Literal["keep", "split"] = "keep", seed: int = 0) -> None:
        self.empty, self.seed = empty, seed
        self._start: RoundStart | None = None

    def start_round(self, start: RoundStart) -> None:
        """Keep the state at the start of the round.

        Raises:
            ConfigurationError: if the module does not hold centroids and their counts.
        """
        parameters, counts = start.num_parameters, start.server_state.numel() - start.num_parameters
        if not counts or parameters % counts:
            raise _foreign(f"this one has {parameters} parameters and {counts} numbers in averaged buffers")
        self._start = start

    def accumulate(self, update: ClientUpdate, sums: Sums) -> float:
        """Add ``n_kj c_kj`` and ``n_kj``; see :meth:`RunningStrategy.accumulate`.

        Returns:
            The client's number of examples.

        Raises:
            ConfigurationError: if the counts are not whole numbers >= 0.
        """
        assert self._start is not None
        centroids, counts = _parts(update.snapshot.vector, self._start.num_parameters)
        if bool(((counts < 0) | (counts != counts.round())).any()):
            raise _foreign(f"client {update.client} sent averaged buffers that are not counts")
        sums.add("sums", centroids * counts[:, None])
        sums.add("counts", counts)
        return float(update.num_examples)

    def aggregate(self, sums: Sums) -> Tensor:
        """Return the means, then the cluster sizes over the cohort, float64, shape (d,)."""
        assert self._start is not None
        counts = sums.value("counts")
        before = _parts(self._start.server_state, self._start.num_parameters)[0].to(counts)
        means = sums.value("sums").view_as(before) / counts.clamp(min=1)[:, None]
        centroids = torch.where(counts[:, None] > 0, means, before)
        if self.empty == "split":
            centroids = self._split(centroids, counts)
        return torch.cat([centroids.flatten(), counts])

    def _split(self, centroids: Tensor, counts: Tensor) -> Tensor:
        assert self._start is not None
        spread = float((centroids - centroids.mean(dim=0)).square().sum(dim=1).mean().sqrt())
        draw = generator(self.seed, self._start.round_idx, "empty clusters")
        noise = torch.randn(centroids.shape, generator=draw, dtype=torch.float64).to(centroids)
        near = centroids[counts.argmax()] + _OFFSET * (spread or 1.0) * noise
        return torch.where(counts[:, None] > 0, centroids, near)


def _parts(state: Tensor, num_parameters: int) -> tuple[Tensor, Tensor]:
    """Split a state into centroids, shape (K, D), and counts, shape (K,), both float64."""
    counts = to_float64(state[num_parameters:])
    return to_float64(state[:num_parameters]).view(counts.numel(), -1), counts


def _foreign(came: str) -> ConfigurationError:
    return ConfigurationError(
        f"FederatedKMeans needs a module with K centroids and their K counts, such as KMeansTask, but {came}. Set 'model' "
        "to KMeansTask, or 'federation.strategy' to another, such as FedAvg."
    )
