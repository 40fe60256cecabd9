"""Share code among datamodules that serve sets of their own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from lightning.pytorch import LightningDataModule
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, TensorDataset

from fl_lightning.data.tensor_loader import TensorLoader
from fl_lightning.data.views import leave_out
from fl_lightning.errors import DataError, require
from fl_lightning.functional.partition import Partition
from fl_lightning.functional.splitting import hold_out
from fl_lightning.utilities.checkpoint_file import LoadsSafely


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
        require(batch_size >= 1, "data.datamodule.batch_size", "1 or above", batch_size)
        require(eval_batch_size >= 1, "data.datamodule.eval_batch_size", "1 or above", eval_batch_size)
        self.batch_size = batch_size
        self.eval_batch_size = eval_batch_size
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
        assert self._train is not None
        return self._train

    def train_dataloader(self) -> DataLoader[Any]:
        """Return shuffled batches of the training set."""
        workers = self._workers(self.train_set)
        return DataLoader(self.train_set, batch_size=self.batch_size, shuffle=True, num_workers=workers)

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


def named_dataset(tensors: Sequence[Tensor], **attributes: Any) -> TensorDataset:
    """Return a dataset in memory with further attributes: ``domains``, ``classes``, ``feature_names``, ``persons``."""
    dataset = TensorDataset(*tensors)
    vars(dataset).update(attributes)
    return dataset


def held_share(setting: str, share: float, strata: Tensor, draw: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return the positions of the images to train on, and of a share held out in the proportions of their strata.

    Args:
        setting: the setting of the share, for messages.
        share: the share, above 0.
        strata: the stratum of each image, int64, shape (n,).
        draw: draws the images.

    Raises:
        DataError: if none are left to train on.
    """
    size = torch.tensor([max(1, round(share * len(strata)))])
    rest, taken = hold_out(Partition.of_parts([torch.arange(len(strata))]), size, strata, draw)
    if not rest.order.numel():
        raise DataError(
            f"'data.datamodule.{setting}' is {share}, which leaves none of the {len(strata)} images to train on. Lower it."
        )
    return rest.order, taken.order
