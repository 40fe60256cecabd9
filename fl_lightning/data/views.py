"""Present a user's datamodule to inner Trainers: one client's examples, or the server's set."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from lightning.pytorch import LightningDataModule
from lightning.pytorch.utilities.model_helpers import is_overridden

TRANSFER_HOOKS = ("on_before_batch_transfer", "transfer_batch_to_device", "on_after_batch_transfer")


class _View(LightningDataModule):
    """Present loaders to an inner Trainer, with the batch-transfer hooks of the user's datamodule."""

    def __init__(self, base: LightningDataModule) -> None:
        super().__init__()
        self._base = base
        self._inside = False
        for hook in TRANSFER_HOOKS:
            if is_overridden(hook, base, LightningDataModule):
                vars(self)[hook] = getattr(base, hook)

    def __getattr__(self, name: str) -> Any:
        """Return the user's attribute, which a module may read from ``self.trainer.datamodule``."""
        return from_base(self, "_base", name)

    def setup(self, stage: str) -> None:
        """Give the user's hooks the Trainer that runs: the inner one."""
        self._outer_trainer, self._base.trainer = self._base.trainer, self.trainer
        self._inside = True

    def teardown(self, stage: str) -> None:
        """Restore the outer Trainer."""
        if self._inside:
            self._base.trainer, self._inside = self._outer_trainer, False

    def on_exception(self, exception: BaseException) -> None:
        """Restore the outer Trainer: Lightning calls no ``teardown`` after an error."""
        self.teardown("")


class _ClientView(_View):
    def __init__(self, base: LightningDataModule, loader: Any) -> None:
        super().__init__(base)
        self._loader = loader

    def teardown(self, stage: str) -> None:
        """Restore the outer Trainer, and release the examples, which a cycle of objects would keep for a while."""
        super().teardown(stage)
        self._loader = None


class TrainingView(_ClientView):
    """Serve one client's examples to train on."""

    def train_dataloader(self) -> Any:
        """Return one client's examples."""
        return self._loader


class ServerView(_View):
    """Serve the server's validation set, not split over ranks; created once, so that its workers are kept."""

    def __init__(self, base: LightningDataModule, make: Callable[[], Any]) -> None:
        super().__init__(base)
        self._make = make
        self._made: Any = None

    def val_dataloader(self) -> Any:
        """Return the server's validation set."""
        if self._made is None:
            self._made = self._make()
        return self._made


class EvaluationView(_ClientView):
    """Serve a part of one client's examples to evaluate on."""

    def val_dataloader(self) -> Any:
        """Return a part of one client's examples, in order."""
        return self._loader


def from_base(view: LightningDataModule, base: str, name: str) -> Any:
    """Return an attribute of the datamodule behind a view."""
    if base not in vars(view) or name.startswith("__"):
        raise AttributeError(f"'{type(view).__name__}' object has no attribute '{name}'")
    return getattr(vars(view)[base], name)


def leave_out(datamodule: LightningDataModule, *loaders: str) -> None:
    """Let Lightning see that a datamodule lacks loaders: it looks whether their methods are overridden.

    A bound method would come back overridden in the processes of ``ddp_spawn``, which gets the datamodule pickled.
    """
    for loader in loaders:
        vars(datamodule)[loader] = partial(getattr(LightningDataModule, loader), datamodule)
