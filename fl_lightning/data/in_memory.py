"""Serve sets from memory; scale, augment and normalise each batch of images on the model's device."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from lightning.pytorch import LightningDataModule
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import ConcatDataset, DataLoader, Dataset, TensorDataset
from tqdm import tqdm  # tqdm.auto warns in a notebook without ipywidgets

from fl_lightning.core.capabilities import ResumeRule
from fl_lightning.data.changes import scaled_to_one
from fl_lightning.data.labels import names_of
from fl_lightning.data.tensor_loader import TensorLoader
from fl_lightning.data.views import leave_out
from fl_lightning.errors import DataError, require, require_counts, require_texts
from fl_lightning.functional.partition import Partition
from fl_lightning.functional.seeding import generator
from fl_lightning.functional.splitting import hold_out
from fl_lightning.utilities.argument_types import ChecksTypes
from fl_lightning.utilities.checkpoints import LoadsSafely

_COLUMNS = ("classes", "domains", "domains_names")
_MANY = 20
"""The number of batches from which computing features shows its progress."""


class InMemoryDataModule(LoadsSafely, LightningDataModule):
    """Serve a training set and the server's sets, mostly from tensors. Subclasses read them in :meth:`load`.

    Args:
        batch_size: the examples per training batch, B.
        eval_batch_size: the examples per evaluation batch.

    Attributes:
        origin: the origin of the data, in words.
    """

    num_workers = 0

    def __init__(self, batch_size: int, eval_batch_size: int) -> None:
        super().__init__()
        require_counts("data.datamodule.", batch_size=batch_size, eval_batch_size=eval_batch_size)
        self.batch_size, self.eval_batch_size = batch_size, eval_batch_size
        self.origin = "not loaded yet"
        self._loaded = False
        self._train: Any = None
        self._val: Any = None  # set if it differs from the test set
        self._test: Any = None

    def load(self) -> tuple[Dataset[Any] | None, Dataset[Any] | None]:
        """Return the training set and the server's test set: TensorDatasets, or lazy datasets; None for one that is missing.

        Raises:
            DataError: if the data are not available.
        """
        raise NotImplementedError

    def setup(self, stage: str) -> None:
        """Read the sets, once."""
        if not self._loaded:
            self._train, self._test = self.load()
            self._loaded = True

    def without_server_set(self) -> None:
        """Let Lightning see that no validation, test or prediction set exists."""
        leave_out(self, "val_dataloader", "test_dataloader", "predict_dataloader")

    @property
    def train_set(self) -> Any:
        """Return the training set, after :meth:`setup`."""
        return self._train

    def train_dataloader(self) -> DataLoader[Any]:
        """Return shuffled batches of the training set."""
        return DataLoader(self._train, batch_size=self.batch_size, shuffle=True, num_workers=self._workers(self._train))

    def val_dataloader(self) -> Any:
        """Return the server's validation set if it has one, otherwise the test set."""
        return self._evaluation(self._test if self._val is None else self._val)

    def test_dataloader(self) -> Any:
        """Return the test set if it exists, otherwise the validation set."""
        return self._evaluation(self._val if self._test is None else self._test)

    def predict_dataloader(self) -> Any:
        """Return the test set if it exists, otherwise the validation set."""
        return self.test_dataloader()

    def _evaluation(self, dataset: Any) -> Any:
        if type(dataset) is TensorDataset:
            return TensorLoader(dataset, self.eval_batch_size)
        return DataLoader(dataset, batch_size=self.eval_batch_size, num_workers=self._workers(dataset))

    def _workers(self, dataset: Any) -> int:
        return 0 if type(dataset) is TensorDataset else self.num_workers


class ImageDataModule(InMemoryDataModule):
    """Share the code of image datamodules. Subclasses read the data in ``load``.

    Loaders return batches of images in uint8, shape (B, C, H, W), and labels. After the transfer to the device, images are
    scaled to [0, 1], augmented in training only, and normalised: ``(x - mean) / std`` for each channel.

    Args:
        batch_size: the examples per training batch, B.
        eval_batch_size: the examples per evaluation batch.
        mean: the mean of each channel, for images in [0, 1]; None leaves them in [0, 1].
        std: the standard deviation of each channel, above 0.
        augmentation: a transform of training images in [0, 1], applied to each independently, from
            ``torchvision.transforms.v2`` or any module.
        num_workers: the number of processes that read images that are not in memory.

    Attributes:
        origin: the origin of the data, in words.
    """

    renamed = MappingProxyType(
        {"schema": "'classes', a list of names", "test_root": "the folder 'test' in 'root', beside 'train'"}
    )
    on_resume = ResumeRule(free="num_workers")

    def __init__(
        self,
        batch_size: int = 100,
        eval_batch_size: int = 1000,
        mean: list[float] | tuple[float, ...] | None = None,
        std: list[float] | tuple[float, ...] | None = None,
        augmentation: nn.Module | None = None,
        num_workers: int = 0,
    ) -> None:
        super().__init__(batch_size, eval_batch_size)
        require(num_workers >= 0, "data.datamodule.num_workers", "0 or above", num_workers)
        both = (mean is None) == (std is None) and (mean is None or std is None or len(mean) == len(std))
        unit = "between 0 and 1 for each channel, since images are in [0, 1] (divide by 255)"
        require(all(0 <= value <= 1 for value in mean or ()), "data.datamodule.mean", unit, mean)
        require(all(value <= 1 for value in std or ()), "data.datamodule.std", unit, std)
        require(both and min(std or [1]) > 0, "data.datamodule.std", "above 0, with one value for each value of 'mean'", std)
        self.mean, self.std = mean, std
        self.augmentation = augmentation
        self.num_workers = num_workers
        self._images: tuple[Any, Any, Any] | None = None  # set while features replace them
        self._scale: tuple[Tensor, Tensor] | None = None

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        """Scale, augment and normalise images; return features computed from them unchanged."""
        images, *rest = batch
        if self._images is not None:
            return batch
        images = scaled_to_one(images)
        if self.augmentation is not None and self.trainer is not None and self.trainer.training:
            images = augment(images, self.augmentation)
        images = self._normalized(images)
        if self.trainer is not None:  # Lightning's own conversion runs earlier and leaves bytes unchanged
            images = self.trainer.precision_plugin.convert_input(images)
        return [images, *rest]

    def transfers_like(self, other: Any) -> bool:
        """Return whether another datamodule scales and normalises images in the same way, with the very same augmentation."""
        if not isinstance(other, ImageDataModule):
            return False
        numbers = [[x and tuple(x) for x in (one.mean, one.std)] for one in (self, other)]
        return numbers[0] == numbers[1] and self.augmentation is other.augmentation

    def _normalized(self, images: Tensor) -> Tensor:
        if self.mean is not None and self.std is not None:
            if self._scale is None or self._scale[0].device != images.device or self._scale[0].dtype != images.dtype:
                mean, std = (torch.tensor(x).to(images).view(-1, 1, 1) for x in (self.mean, self.std))
                self._scale = mean, std
            images = (images - self._scale[0]) / self._scale[1]
        return images

    def sample(self) -> tuple[Tensor, int]:
        """Return the first training image as the model sees it, shape (1, C, H, W), and the number of images in all sets."""
        sizes = [len(part) for part in (self._train, self._val, self._test) if part is not None]
        return self._normalized(scaled_to_one(self._train[0][0][None])), sum(sizes)

    def use_features(self, features: Callable[[Tensor], Tensor]) -> None:
        """Serve features computed from the images instead of the images, until :meth:`use_images`.

        Args:
            features: maps normalised images, shape (B, C, H, W), to features on the CPU, shape (B, D).
        """
        images = self._train, self._val, self._test
        computed = (None if part is None else self._computed(part, features) for part in images)
        self._train, self._val, self._test = computed
        self._images = images

    def _computed(self, dataset: Any, features: Callable[[Tensor], Tensor]) -> TensorDataset:
        own = torch.Generator()  # keeps the global generator's state
        loader = DataLoader(dataset, batch_size=self.batch_size, num_workers=self._workers(dataset), generator=own)
        computed, labels = [], []
        for inputs, targets in tqdm(loader, "Computing features", unit="batch", leave=False, disable=len(loader) < _MANY):
            computed.append(features(self._normalized(scaled_to_one(inputs))))
            labels.append(targets)
        columns = {name: getattr(dataset, name) for name in _COLUMNS if hasattr(dataset, name)}
        return named_dataset([torch.cat(computed), torch.cat(labels)], **columns)

    def use_images(self) -> None:
        """Serve the images again."""
        if self._images is not None:
            (self._train, self._val, self._test), self._images = self._images, None


class RandomCropFlip(ChecksTypes, nn.Module):
    """Pad with zeros, crop at random, flip half of the images left to right: the usual augmentation of CIFAR.

    It draws for all images of a batch at once, several times faster than transforms that are applied to one image at a time.

    Args:
        padding: the pixels added on each side, >= 0.
        flip: the probability of a flip, in [0, 1].

    Shapes:
        input and output (N, C, H, W).
    """

    per_example = True
    """Declares that the transform draws separately for each example of a batch."""

    def __init__(self, padding: int = 4, flip: float = 0.5) -> None:
        super().__init__()
        require(padding >= 0, "padding", "0 or above", padding)
        require(0 <= flip <= 1, "flip", "in [0, 1]", flip)
        self.padding = padding
        self.flip = flip

    def forward(self, images: Tensor) -> Tensor:
        """Return changed copies of the images."""
        size, _, height, width = images.shape
        device = images.device
        windows = F.pad(images, [self.padding] * 4).unfold(2, height, 1).unfold(3, width, 1)  # a view, not a copy
        top, left = torch.randint(2 * self.padding + 1, (2, size), device=device)
        cropped = windows[torch.arange(size, device=device), :, top, left]
        flipped = torch.rand(size, 1, 1, 1, device=device) < self.flip
        return torch.where(flipped, cropped.flip(3), cropped)


def augment(images: Tensor, augmentation: nn.Module) -> Tensor:
    """Apply a transform to each image independently.

    A torchvision transform draws once per call, so on a batch it would change all images in the same way. It is therefore
    called once for each image, unless its attribute ``per_example`` declares that it draws for each image separately.

    Args:
        images: the images, shape (N, C, H, W).
        augmentation: the transform of one image, or of a batch if it has ``per_example``.
    """
    if getattr(augmentation, "per_example", False):
        changed: Tensor = augmentation(images)
        return changed
    return torch.stack([augmentation(image) for image in images])


def named_dataset(tensors: Sequence[Tensor], **attributes: Any) -> TensorDataset:
    """Return a dataset in memory with further attributes: ``domains``, ``classes``, ``feature_names``, ``persons``."""
    dataset = TensorDataset(*tensors)
    vars(dataset).update(attributes)
    return dataset


def joined(sets: list[Any]) -> Any:
    """Return datasets as one; tensors of equal shapes are joined, so that batches are indexed at once, with equal names."""
    if all(type(own) is TensorDataset for own in sets):
        columns = list(zip(*(own.tensors for own in sets), strict=False))
        kinds = {tuple((t.dtype, t.shape[1:]) for t in own.tensors) for own in sets}
        if len(kinds) == 1:
            named = {kind: names_of(ConcatDataset(sets), kind) for kind in ("classes", "feature_names")}
            return named_dataset(
                [torch.cat(column) for column in columns], **{kind: names for kind, names in named.items() if names}
            )
    return ConcatDataset(sets)


def selected(dataset: Any, kept: Tensor) -> Any:
    """Return a dataset in memory with the examples at the given positions, and what it says of them."""
    said = {name: own[kept] if isinstance(own, Tensor) else own for name, own in vars(dataset).items() if name != "tensors"}
    return named_dataset([own[kept] for own in dataset.tensors], **said)


def held_share(setting: str, share: float, strata: Tensor) -> tuple[Tensor, Tensor]:
    """Return the positions of the images to train on, and of a share held out in the proportions of their strata.

    Args:
        setting: the setting of the share; its name draws the images, the same ones in every run.
        share: the share, above 0.
        strata: the stratum of each image, int64, shape (n,).

    Raises:
        DataError: if none are left to train on.
    """
    size = torch.tensor([max(1, round(share * len(strata)))])
    draw = generator(0, setting.replace("_", " "))
    rest, taken = hold_out(Partition.of_parts([torch.arange(len(strata))]), size, strata, draw)
    if not rest.order.numel():
        raise DataError(
            f"'data.datamodule.{setting}' is {share}, which leaves none of the {len(strata)} images to train on. Lower it."
        )
    return rest.order, taken.order


def client_paths(setting: str, given: str | os.PathLike[str] | Mapping[str, str]) -> Path | dict[str, Path]:
    """Return the path, or each client's path by its name.

    Args:
        setting: the name of the setting, for messages.
        given: its value.

    Raises:
        ConfigurationError: if a client's name is not text.
    """
    if not isinstance(given, Mapping):
        return Path(given)
    require_texts(setting, given)
    return {name: Path(own) for name, own in given.items()}
