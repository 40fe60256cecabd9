"""Load the image data sets of the papers through torchvision."""

from __future__ import annotations

import contextlib
import socket
from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset
from torchvision import datasets

from fl_lightning.core.resume_rule import ResumeRule
from fl_lightning.data.images import ImageDataModule, image_dataset
from fl_lightning.errors import DataError, require
from fl_lightning.functional.partition import Partition
from fl_lightning.functional.seeding import generator
from fl_lightning.functional.splitting import hold_out

_TIMEOUT = 20
"""Seconds to wait for an answer, so that a network that swallows packets does not block the run."""


class TorchvisionDataModule(ImageDataModule):
    """Load a data set of torchvision into memory; download it if the folder lacks it.

    The server validates on its test set, as many papers do, or on a share of the training set that no client gets.

    Args:
        root: the folder that holds the data in torchvision's layout, or into which they are downloaded.
        batch_size: the examples per training batch, B.
        eval_batch_size: the examples per evaluation batch.
        normalize: whether to subtract the mean of each channel of the training set and divide by its standard deviation;
            otherwise images are in [0, 1].
        augmentation: a transform of training images in [0, 1], applied to each independently, from
            ``torchvision.transforms.v2`` or any module.
        validation_share: the share of the training images, in [0, 1), held out in the proportions of the classes as the
            server's validation set; the same images in every run. With 0 the server validates on the test set.
    """

    MEAN: Sequence[float]
    STD: Sequence[float]
    on_resume = ResumeRule(free="root num_workers")

    def __init__(
        self,
        root: str = "data",
        batch_size: int = 100,
        eval_batch_size: int = 1000,
        normalize: bool = True,
        augmentation: nn.Module | None = None,
        validation_share: float = 0.0,
    ) -> None:
        mean, std = (self.MEAN, self.STD) if normalize else (None, None)
        super().__init__(batch_size, eval_batch_size, mean, std, augmentation)
        require(0 <= validation_share < 1, "data.datamodule.validation_share", "at least 0 and below 1", validation_share)
        self.validation_share = validation_share
        self.root = root
        self.normalize = normalize
        self._failure = ""

    @abstractmethod
    def open(self, train: bool, download: bool = False) -> Any:
        """Return torchvision's dataset."""

    @abstractmethod
    def read(self, dataset: Any) -> tuple[Tensor, Tensor]:
        """Return the dataset's images in uint8, shape (n, C, H, W), and its labels, int64."""

    def prepare_data(self) -> None:
        """Download missing data."""
        timeout = socket.getdefaulttimeout()
        socket.setdefaulttimeout(_TIMEOUT)
        try:
            for train in (True, False):
                self._fetch(train)
        finally:
            socket.setdefaulttimeout(timeout)

    def _fetch(self, train: bool) -> None:
        try:
            self.open(train)
        except (OSError, RuntimeError):  # missing, or left incomplete by a broken download
            try:
                with contextlib.redirect_stdout(None):  # hides the URLs that it tries
                    self.open(train, download=True)
            except (OSError, RuntimeError) as error:
                reason = str(error).strip().partition("\n")[0].rstrip(":")
                self._failure = f", and the download failed ({type(error).__name__}: {reason})"

    def setup(self, stage: str) -> None:
        """Read the images, once, and hold out the validation set."""
        if self._train is None:
            train, self._test = self.load()
            self._train, self._val = _held_out(train, self.validation_share) if self.validation_share else (train, None)

    @property
    def validated_on(self) -> str:
        """Describe the data on which the server validates."""
        if self._val is None:
            return (
                f"the {len(self._test):,} test images, as papers often do. To tune settings, hold out a validation set: "
                "--data.datamodule.validation_share 0.1"
            )
        return f"{len(self._val):,} training images that no client has"

    def load(self) -> tuple[TensorDataset, TensorDataset]:
        """Read the training and test set.

        Raises:
            DataError: if they are not in the folder and could not be downloaded.
        """
        name = type(self).__name__.removesuffix("DataModule")
        try:
            train, test = (self.open(train) for train in (True, False))
        except (OSError, RuntimeError) as error:
            raise DataError(
                f"{name} is not in '{self.root}'{self._failure}. Set 'data.datamodule.root' to a folder that contains it in "
                "torchvision's layout, or train once with a network connection."
            ) from error
        sets = [image_dataset(*self.read(part), classes=getattr(part, "classes", None)) for part in (train, test)]
        self.origin = f"{name} from {Path(self.root)} ({len(sets[0])} + {len(sets[1])} images)"
        return sets[0], sets[1]


def _held_out(dataset: TensorDataset, share: float) -> tuple[TensorDataset, TensorDataset]:
    """Split a training set into the remaining and the held-out examples, in the proportions of its classes."""
    images, labels = dataset.tensors
    everything = Partition.of_parts([torch.arange(len(labels))])
    size = torch.tensor([max(1, round(share * len(labels)))])
    if int(size) >= len(labels):
        raise DataError(
            f"'data.datamodule.validation_share' is {share}, which leaves none of {len(labels)} images to train on. Lower it."
        )
    parts = hold_out(everything, size, labels, generator(0, "validation share"))
    classes = getattr(dataset, "classes", None)
    left, held = (image_dataset(images[part[0]], labels[part[0]], classes=classes) for part in parts)
    return left, held


class FashionMNISTDataModule(TorchvisionDataModule):
    """Load Fashion-MNIST: 60,000 and 10,000 grey images of 28 x 28, ten classes."""

    MEAN, STD = (0.2860,), (0.3530,)
    on_resume = ResumeRule(free="root num_workers")

    def open(self, train: bool, download: bool = False) -> Any:
        """Return torchvision's dataset."""
        return datasets.FashionMNIST(self.root, train=train, download=download)

    def read(self, dataset: Any) -> tuple[Tensor, Tensor]:
        """Return images and labels."""
        return dataset.data.unsqueeze(1), dataset.targets.long()


class CIFAR10DataModule(TorchvisionDataModule):
    """Load CIFAR-10: 50,000 and 10,000 colour images of 32 x 32, ten classes."""

    MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
    on_resume = ResumeRule(free="root num_workers")

    def open(self, train: bool, download: bool = False) -> Any:
        """Return torchvision's dataset."""
        return datasets.CIFAR10(self.root, train=train, download=download)

    def read(self, dataset: Any) -> tuple[Tensor, Tensor]:
        """Return images and labels."""
        return torch.from_numpy(dataset.data).permute(0, 3, 1, 2).contiguous(), torch.tensor(dataset.targets)


class CIFAR100DataModule(CIFAR10DataModule):
    """Load CIFAR-100: 50,000 and 10,000 colour images of 32 x 32, a hundred classes."""

    MEAN, STD = (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)
    on_resume = ResumeRule(free="root num_workers")

    def open(self, train: bool, download: bool = False) -> Any:
        """Return torchvision's dataset."""
        return datasets.CIFAR100(self.root, train=train, download=download)


class SVHNDataModule(TorchvisionDataModule):
    """Load Street View House Numbers: 73,257 and 26,032 colour images of 32 x 32, ten digits. Reading requires scipy."""

    MEAN, STD = (0.4377, 0.4438, 0.4728), (0.1980, 0.2010, 0.1970)
    on_resume = ResumeRule(free="root num_workers")

    def open(self, train: bool, download: bool = False) -> Any:
        """Return torchvision's dataset."""
        try:
            import scipy.io  # noqa: F401 (torchvision reads the .mat files by it)
        except ImportError as error:
            raise DataError("Reading SVHN needs the package scipy: pip install 'fl_lightning[svhn]'.") from error
        return datasets.SVHN(self.root, split="train" if train else "test", download=download)

    def read(self, dataset: Any) -> tuple[Tensor, Tensor]:
        """Return images and labels."""
        return torch.from_numpy(dataset.data), torch.from_numpy(dataset.labels).long()


class USPSDataModule(TorchvisionDataModule):
    """Load USPS: 7,291 and 2,007 grey images of 16 x 16, ten digits."""

    MEAN, STD = (0.2469,), (0.2989,)
    on_resume = ResumeRule(free="root num_workers")

    def open(self, train: bool, download: bool = False) -> Any:
        """Return torchvision's dataset."""
        return datasets.USPS(self.root, train=train, download=download)

    def read(self, dataset: Any) -> tuple[Tensor, Tensor]:
        """Return images and labels."""
        return torch.from_numpy(dataset.data).unsqueeze(1), torch.tensor(dataset.targets).long()
