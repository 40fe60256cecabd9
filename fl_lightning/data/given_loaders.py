"""Present DataLoaders as a datamodule."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import LightningDataModule

from fl_lightning.data.views import leave_out


class GivenLoaders(LightningDataModule):
    """Return loaders that the user has built.

    Args:
        train: the training loader.
        val: the validation loader, if any.
        test: the test loader, if any.
    """

    def __init__(self, train: Any, val: Any = None, test: Any = None) -> None:
        super().__init__()
        self._train, self._val, self._test = train, val, test
        leave_out(self, *(name for name, given in (("val_dataloader", val), ("test_dataloader", test)) if given is None))

    def train_dataloader(self) -> Any:
        """Return the training loader."""
        return self._train

    def val_dataloader(self) -> Any:
        """Return the validation loader."""
        return self._val

    def test_dataloader(self) -> Any:
        """Return the test loader."""
        return self._test
