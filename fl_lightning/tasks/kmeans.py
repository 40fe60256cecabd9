"""Run K-means as a LightningModule: Lloyd's algorithm, on one machine or in a federation."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.trainer.states import RunningStage
from torch import Tensor, nn
from torch.nn import functional as F
from torchmetrics import Metric

from fl_lightning.compat.lightning import validation_loaders
from fl_lightning.errors import ClientError, ConfigurationError, DataError, require
from fl_lightning.functional.exact_sum import to_float64
from fl_lightning.functional.seeding import generator
from fl_lightning.routes.server import ServerRoute
from fl_lightning.strategies.kmeans import FederatedKMeans
from fl_lightning.tasks.base import EQUAL
from fl_lightning.utilities.checkpoints import LoadsSafely

_WITHOUT_EFFECT = {"proximal_mu": 0.0, "lr_decay": 1.0, "gradient_clip_val": None, "accumulate_grad_batches": 1}
"""Settings of local training that act on gradients, and the values at which they have no effect."""


class KMeansTask(LoadsSafely, LightningModule):
    """Move K centroids to the means of their examples (Lloyd 1982; survey, Table II).

    A training epoch is one pass. Each example belongs to the centroid nearest to it at the start of the pass. At the end
    each centroid moves to the mean of its examples, summed in float64; a centroid without examples stays. Batches are
    (inputs, ...) or inputs alone, which are flattened; targets are ignored. In a federation, use the strategy
    :class:`~fl_lightning.FederatedKMeans`. Under a plain Trainer this is Lloyd's algorithm on all data.

    The task logs ``train_loss`` (mean squared distance from the nearest centroid before the move), ``val_loss`` (the same on
    the validation set: inertia / n), ``val_distance`` (mean distance) and ``val_empty`` (clusters without an example of the
    validation set). It logs the same for ``test``.

    Args:
        num_clusters: the number of clusters K, at least 1.
        num_features: the number of features D in one example, at least 1.
        init: the first centroids: ``kmeans++`` draws them from the server's validation set, once at the start of a fit
            (Arthur and Vassilvitskii 2007); ``random`` draws each number from N(0, 1).
        seed: the seed of that draw.

    Attributes:
        centroids: the centroids, shape (K, D).
        counts: the number of examples of each cluster in the last pass, shape (K,); after a round, of the whole cohort. The
            dtype is that of the centroids: in float32, counts are exact up to 2**24.
        started: whether the first centroids have been set.
    """

    counts: Tensor
    started: Tensor

    def __init__(
        self, num_clusters: int, num_features: int, init: Literal["kmeans++", "random"] = "kmeans++", seed: int = 0
    ) -> None:
        super().__init__()
        require(num_clusters >= 1, "model.num_clusters", "at least 1", num_clusters)
        require(num_features >= 1, "model.num_features", "at least 1", num_features)
        require(init in ("kmeans++", "random"), "model.init", "kmeans++ or random", init)
        self.automatic_optimization = False
        self.num_clusters, self.num_features = num_clusters, num_features
        self.init, self.seed = init, seed
        first = torch.randn(num_clusters, num_features, generator=generator(seed, "random centroids"))
        self.centroids = nn.Parameter(first)
        self.register_buffer("counts", torch.zeros(num_clusters))
        self.register_buffer("started", torch.tensor(init == "random"))
        self._sums: tuple[Tensor, Tensor] | None = None
        self.val_quality, self.test_quality = ClusterQuality(num_clusters), ClusterQuality(num_clusters)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the cluster of each example, int64, shape (N,)."""
        return self._assign(inputs)[1]

    def _assign(self, inputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the examples, shape (N, D), their clusters and the distances to their centroids, shapes (N,)."""
        points = self._flat(inputs)
        return points, *nearest_centroids(points, self.centroids)  # autocast keeps distances in full precision

    def _flat(self, inputs: Tensor) -> Tensor:
        points = inputs.reshape(len(inputs), -1)
        if points.shape[1] != self.num_features:
            raise ConfigurationError(
                f"'model.num_features' is {self.num_features}, but an example has {points.shape[1]} numbers. Set it to "
                f"{points.shape[1]}, or use other data."
            )
        return points.to(self.centroids)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return an optimizer without gradients; its steps count the batches for Lightning and for stragglers."""
        return torch.optim.SGD([self.centroids], lr=1.0)

    # ---------------------------------------------------------------- the start

    def on_fit_start(self) -> None:
        """Check the configuration, and draw the first centroids; clients get them from the server.

        Raises:
            ConfigurationError: if strategy, settings, clusters and data do not match.
            DataError: if the server's validation set has numbers that are not finite, or too few different examples.
        """
        self._check_precision()
        data: Any = getattr(self.trainer, "datamodule", None)
        federation = _federation(self.trainer)
        if federation is not None:
            _check_federation(federation)
        elif self.trainer.world_size > 1:
            raise ConfigurationError(
                f"K-means without a federation runs in one process, but this run has {self.trainer.world_size}. Set "
                "'trainer.devices' to 1."
            )
        if hasattr(data, "splits"):
            training = data.splits.training.order.numel() + data.splits.public.numel()
            wanted = f"at most the clients' {training} training examples"
            require(self.num_clusters <= training, "model.num_clusters", wanted, self.num_clusters)
        if not self.started:
            self._initialize_centroids(data)

    def _check_precision(self) -> None:
        if self.centroids.dtype not in (torch.float32, torch.float64):
            raise ConfigurationError(
                f"K-means counts examples, but {self.centroids.dtype} cannot represent large counts exactly. Set "
                "'trainer.precision' and 'federation.local.precision' to 32-true or 64-true."
            )

    @torch.no_grad()
    def _initialize_centroids(self, data: Any) -> None:
        loaders = _validation_loaders(self.trainer, data)
        if not loaders:
            raise ConfigurationError(
                "'model.init' is kmeans++, which draws the first centroids from the server's validation set, but there is no "
                "such set. Add a 'val_dataloader' to the datamodule and keep 'trainer.limit_val_batches' above 0, set "
                "'data.server_set' to clients, or set 'model.init' to random."
            )
        points = torch.cat([self._flat(_inputs(batch)).cpu() for batch in _batches(self.trainer, loaders)])
        if not bool(torch.isfinite(points).all()):
            raise DataError("The validation set has numbers that are not finite. Correct or remove those examples.")
        draw = generator(self.seed, "kmeans++")
        self.centroids.copy_(kmeans_plus_plus(points, self.num_clusters, draw))
        self.started.fill_(True)

    # ---------------------------------------------------------------- a pass

    def on_train_epoch_start(self) -> None:
        """Begin a pass."""
        self._sums = None
        self.counts.zero_()

    @torch.no_grad()
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        """Assign a batch to clusters and return its mean squared distance."""
        points, nearest, distances = self._assign(_inputs(batch))
        mine = cluster_sums(points, nearest, self.num_clusters)
        before = self._sums or (torch.zeros_like(mine[0]), torch.zeros_like(mine[1]))
        self._sums = before[0] + mine[0], before[1] + mine[1]
        loss = distances.square().mean()
        self.log("train_loss", loss, on_step=False, on_epoch=True, batch_size=len(points))
        self.centroids.grad = torch.zeros_like(self.centroids)  # a gradient scaler requires one
        optimizer: Any = self.optimizers()
        optimizer.step()
        return loss

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Move the centroids after the last batch, because a plain Trainer validates before its epoch ends."""
        if self.trainer.is_last_batch:
            self._move()

    def on_train_epoch_end(self) -> None:
        """Move the centroids after a pass that ended early."""
        self._move()

    @torch.no_grad()
    def _move(self) -> None:
        """Move each centroid to the mean of its examples, once a pass."""
        if self._sums is None:
            return
        (sums, counts), self._sums = self._sums, None
        if not bool(torch.isfinite(sums).all()):
            raise ClientError(
                "The training examples have numbers that are not finite. Correct or remove them ('data.datamodule')."
            )
        means = sums / counts.clamp(min=1)[:, None]
        self.centroids.copy_(torch.where(counts[:, None] > 0, means.to(self.centroids), self.centroids))
        self.counts.copy_(counts)

    # ---------------------------------------------------------------- evaluation

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        """Measure a batch."""
        self.val_quality.update(*self._assign(_inputs(batch))[1:])

    def test_step(self, batch: Any, batch_idx: int) -> None:
        """Measure a batch."""
        self.test_quality.update(*self._assign(_inputs(batch))[1:])

    def on_validation_epoch_end(self) -> None:
        """Log the measurements."""
        self._log("val", self.val_quality)

    def on_test_epoch_end(self) -> None:
        """Log the measurements."""
        self._log("test", self.test_quality)

    def _log(self, stage: str, quality: ClusterQuality) -> None:
        for name, value in quality.compute().items():
            self.log(f"{stage}_{name}", value, prog_bar=name == "loss", **EQUAL)
        quality.reset()

    def predict_step(self, batch: Any, batch_idx: int) -> Tensor:
        """Return the cluster of each example, int64, shape (N,)."""
        clusters: Tensor = self(_inputs(batch))
        return clusters


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


def _inputs(batch: Any) -> Tensor:
    inputs: Tensor = batch[0] if isinstance(batch, list | tuple) else batch
    return inputs


def _federation(trainer: Trainer) -> Any:
    """Return the callback that makes this fit a federation; None at a client, or without a federation."""
    callbacks: list[Any] = trainer.callbacks  # type: ignore[attr-defined]
    found = (one for one in callbacks if hasattr(one, "strategy") and hasattr(one, "local"))
    return next((one for one in found if getattr(one, "enabled", True)), None)


def _check_federation(federation: Any) -> None:
    """Reject anything that would aggregate centroids wrongly, and settings without effect."""
    strategy = federation.strategy
    if not isinstance(strategy, FederatedKMeans):
        raise ConfigurationError(
            f"{type(strategy).__name__} does not know how many examples each centroid represents. Set 'federation.strategy' "
            "to FederatedKMeans."
        )
    if federation.server_optimizer is not None or type(federation.route) is not ServerRoute:
        raise ConfigurationError(
            "K-means sets each centroid to the mean of its examples at all clients. Remove 'federation.server_optimizer', "
            "and set 'federation.route' to ServerRoute."
        )
    for setting, neutral in _WITHOUT_EFFECT.items():
        value = getattr(federation.local, setting, neutral)
        wanted = f"{'null' if neutral is None else neutral} with KMeansTask, which has no gradients"
        require(value == neutral, f"federation.local.{setting}", wanted, value)


def _validation_loaders(trainer: Trainer, data: Any) -> list[Any]:
    """Return the loaders of the whole validation set on every rank, or an empty list if none exists."""
    if hasattr(data, "server_view"):
        loaders = data.server_view().val_dataloader() if data.has_validation_set else []
    elif trainer.enable_validation:
        loaders = validation_loaders(trainer)
    else:
        return []
    if isinstance(loaders, dict):
        return list(loaders.values())
    return list(loaders) if isinstance(loaders, list | tuple) else [loaders]


def _batches(trainer: Trainer, loaders: list[Any]) -> Iterable[Any]:
    """Yield the batches as validation gets them: on the device, and not augmented."""
    stage, trainer.state.stage = trainer.state.stage, RunningStage.VALIDATING
    try:
        for number, loader in enumerate(loaders):
            for batch in loader:
                yield trainer.strategy.batch_to_device(trainer.precision_plugin.convert_input(batch), dataloader_idx=number)
    finally:
        trainer.state.stage = stage


def nearest_centroids(points: Tensor, centroids: Tensor) -> tuple[Tensor, Tensor]:
    """Return the nearest centroid of each point, the first one in a tie.

    Args:
        points: the points, shape (n, D).
        centroids: the centroids, shape (K, D), of the same dtype.

    Returns:
        The centroid's number, int64, shape (n,), and the Euclidean distance to it, shape (n,).
    """
    # Not by |x|^2 - 2xc + |c|^2: far from the origin, the difference of the squares loses most digits.
    distances = torch.cdist(points, centroids, compute_mode="donot_use_mm_for_euclid_dist")
    nearest = distances.argmin(dim=1)
    return nearest, distances.gather(1, nearest[:, None]).squeeze(1)


def cluster_sums(points: Tensor, nearest: Tensor, num_clusters: int) -> tuple[Tensor, Tensor]:
    """Return the sum and the number of the points of each cluster.

    Args:
        points: the points, shape (n, D).
        nearest: the cluster of each point, int64, shape (n,).
        num_clusters: the number of clusters K.

    Returns:
        Sums, float64, shape (K, D), and counts, float64, shape (K,).
    """
    members = to_float64(F.one_hot(nearest, num_clusters))  # as a product: bitwise reproducible, also on a GPU
    return members.T @ to_float64(points), members.sum(dim=0)


def kmeans_plus_plus(points: Tensor, num_clusters: int, generator: torch.Generator) -> Tensor:
    """Draw the first centroids by k-means++ (Arthur and Vassilvitskii 2007, section 2.2).

    The first centroid is a random point. Each further one is a point drawn with a probability proportional to its squared
    distance from the nearest centroid so far.

    Args:
        points: the points, shape (n, D), n at least 1 and below 2**24.
        num_clusters: the number of clusters K, at least 1.
        generator: a generator on the CPU.

    Returns:
        The centroids, shape (K, D), float64, on the CPU.

    Raises:
        DataError: if fewer than K of the points differ.
    """
    points = to_float64(points.cpu())
    chosen = [int(torch.randint(len(points), (1,), generator=generator))]
    squared = (points - points[chosen[0]]).square().sum(dim=1)
    while len(chosen) < num_clusters:
        if not float(squared.max()) > 0:
            raise DataError(
                f"k-means++ found {len(chosen)} different examples among the {len(points)} of the validation set, but "
                f"'model.num_clusters' is {num_clusters}. Lower it, use a larger validation set, or set "
                "'model.init' to random."
            )
        chosen.append(int(torch.multinomial(squared, 1, generator=generator)))
        squared = torch.minimum(squared, (points - points[chosen[-1]]).square().sum(dim=1))
    return points[chosen]
