"""Share code among datamodules of numbers in memory."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import LightningDataModule
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from fl_lightning.data.class_names import names_of
from fl_lightning.data.tensor_loader import TensorLoader
from fl_lightning.errors import require
from fl_lightning.utilities.checkpoint_file import LoadsSafely


class InMemoryDataModule(LoadsSafely, LightningDataModule):
    """Serve a training set and the server's test set from tensors. Subclasses create them in :meth:`load`.

    Args:
        batch_size: the examples per training batch, B.
        eval_batch_size: the examples per evaluation batch.

    Attributes:
        origin: the origin of the data, in words.
    """

    def __init__(self, batch_size: int, eval_batch_size: int) -> None:
        super().__init__()
        require(batch_size >= 1, "data.datamodule.batch_size", "1 or above", batch_size)
        require(eval_batch_size >= 1, "data.datamodule.eval_batch_size", "1 or above", eval_batch_size)
        self.batch_size = batch_size
        self.eval_batch_size = eval_batch_size
        self.origin = "not loaded yet"
        self._loaded = False
        self._train: TensorDataset | None = None
        self._test: TensorDataset | None = None

    def without_server_set(self) -> None:
        """Let Lightning see that no validation, test or prediction set exists."""
        for loader in ("val_dataloader", "test_dataloader", "predict_dataloader"):
            vars(self)[loader] = getattr(LightningDataModule, loader).__get__(self)

    def load(self) -> tuple[TensorDataset | None, TensorDataset | None]:
        """Create the training set and the server's test set; None for one that does not exist.

        Raises:
            DataError: if the data are not available.
        """
        raise NotImplementedError

    def setup(self, stage: str) -> None:
        """Create the sets, once."""
        if not self._loaded:
            self._train, self._test = self.load()
            self._loaded = True

    @property
    def train_set(self) -> TensorDataset:
        """Return the training set, after :meth:`setup`."""
        assert self._train is not None
        return self._train

    def train_dataloader(self) -> DataLoader[Any]:
        """Return shuffled batches of features, shape (B, d), and of targets, shape (B,), if any."""
        return DataLoader(self.train_set, batch_size=self.batch_size, shuffle=True)

    def val_dataloader(self) -> Any:
        """Return the server's test set."""
        assert self._test is not None
        names = {kind: found for kind in ("classes", "feature_names") if (found := names_of(self._test, kind))}
        return TensorLoader(self._test.tensors, self.eval_batch_size, names=names)

    def test_dataloader(self) -> Any:
        """Return the server's test set."""
        return self.val_dataloader()

    def predict_dataloader(self) -> Any:
        """Return the server's test set."""
        return self.val_dataloader()


def named_dataset(tensors: list[Tensor], **attributes: Any) -> TensorDataset:
    """Return a dataset in memory with further attributes: ``domains``, ``classes``, ``feature_names``, ``persons``."""
    dataset = TensorDataset(*tensors)
    vars(dataset).update(attributes)
    return dataset
