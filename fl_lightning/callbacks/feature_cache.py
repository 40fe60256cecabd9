"""A cache of a frozen backbone's features, computed once per example."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities.rank_zero import rank_zero_info
from torch import Tensor

from fl_lightning.callbacks.transfer_learning import TransferLearning
from fl_lightning.data.federated import FederatedDataModule
from fl_lightning.data.in_memory import ImageDataModule
from fl_lightning.errors import require
from fl_lightning.models.pretrained import FrozenBackbone
from fl_lightning.utilities.argument_types import ChecksTypes


class FeatureCache(ChecksTypes, Callback):
    """Train the head of a :class:`~fl_lightning.FrozenBackbone` on features that are computed once, before training.

    The cache works if the module's ``network`` is a FrozenBackbone and the data come from an
    :class:`~fl_lightning.ImageDataModule` whose images are the same in each epoch: no augmentation, and no noise at the
    clients. Otherwise nothing changes; the log says why, except if the network is not a FrozenBackbone or clients read with
    loaders of their own. The cache holds the features of the training set and the server's set as float32 in CPU memory;
    every rank computes them. The results equal those without the cache, up to rounding.

    Args:
        enabled: whether to cache features.
        memory_limit: largest size of the features of all images, in GiB.
    """

    def __init__(self, enabled: bool = True, memory_limit: float = 8.0) -> None:
        require(memory_limit >= 0, "feature_cache.memory_limit", "0 or above, in GiB", memory_limit)
        self.enabled = enabled
        self.memory_limit = memory_limit
        self._cleanup = ExitStack()

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Replace images with their features."""
        network = getattr(pl_module, "network", None)
        if not self.enabled or not isinstance(network, FrozenBackbone):
            return
        data = getattr(trainer, "datamodule", None)
        images: Any = data.datamodule if isinstance(data, FederatedDataModule) else data
        thaws = any(isinstance(other, TransferLearning) and other.changes for other in trainer.callbacks)  # type: ignore[attr-defined]
        if isinstance(data, FederatedDataModule) and not data.client_datasets.whole:
            return
        obstacle = "TransferLearning thaws parts" if thaws else _obstacle(network, data, images)
        obstacle = obstacle or self._too_large(network, images, trainer.strategy.root_device)
        if obstacle:
            rank_zero_info(f"Features of the frozen backbone are not cached, but recomputed in every epoch: {obstacle}.")
            return
        self._cleanup.callback(_reload, data)
        self._cleanup.callback(images.use_images)
        rank_zero_info("Computing the features of the frozen backbone, once for all rounds.")
        images.use_features(_computer(network, trainer.strategy.root_device))
        _reload(data)

    def _too_large(self, network: FrozenBackbone, images: ImageDataModule, device: torch.device) -> str:
        one, examples = images.sample()
        size = _computer(network, device)(one).numel() * examples * 4 / 2**30
        if size <= self.memory_limit:
            return ""
        return f"those of {examples} images take {size:.1f} GiB, above 'feature_cache.memory_limit' {self.memory_limit}"

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Restore the images."""
        self._cleanup.close()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Restore the images: Lightning calls no ``teardown`` after an error."""
        self._cleanup.close()


def _reload(data: Any) -> None:
    if isinstance(data, FederatedDataModule):
        data.reload()


def _computer(network: FrozenBackbone, device: torch.device) -> Callable[[Tensor], Tensor]:
    like = next(network.backbone.parameters(), torch.zeros(0))

    @torch.inference_mode()
    def features(batch: Tensor) -> Tensor:
        """Return the features of a batch of images, on the CPU."""
        computed: Tensor = network.backbone(batch.to(device, like.dtype))
        return computed.float().cpu()

    return features


def _obstacle(network: FrozenBackbone, data: Any, images: Any) -> str:
    if any(parameter.requires_grad for parameter in network.backbone.parameters()):
        return "some of its parameters are trained"
    if not isinstance(images, ImageDataModule):
        return f"{type(images).__name__} is not an ImageDataModule"
    if images.augmentation is not None:
        return "'data.datamodule.augmentation' changes the images"
    if isinstance(data, FederatedDataModule) and data.feature_noise:
        return "'data.feature_noise' changes the images"
    if isinstance(data, FederatedDataModule) and data.rebalancing is not None and data.rebalancing.augmentation is not None:
        return "'data.rebalancing.augmentation' changes the images"
    return ""
