"""Present loaders as a datamodule: those of the user, a whole round, one client's examples, or the server's set."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any

from lightning.pytorch import LightningDataModule
from lightning.pytorch.utilities.model_helpers import is_overridden

TRANSFER_HOOKS = ("on_before_batch_transfer", "transfer_batch_to_device", "on_after_batch_transfer")


class View(LightningDataModule):
    """Present loaders to an inner Trainer, with the batch-transfer hooks and the attributes of the user's datamodule.

    Args:
        base: the user's datamodule.
        train: makes the training loader, if the view has one.
        val: makes the validation loader, if the view has one; called once, so that its workers are kept.
        lasts: whether the view is used again; otherwise its loaders are released, which a cycle of objects would keep.
    """

    def __init__(
        self,
        base: LightningDataModule,
        train: Callable[[], Any] | None = None,
        val: Callable[[], Any] | None = None,
        lasts: bool = False,
    ) -> None:
        super().__init__()
        self._base, self._inside, self._lasts = base, False, lasts
        for name, make in (("train_dataloader", train), ("val_dataloader", val)):
            if make is not None:
                vars(self)[name] = cache(make)
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
        if not self._lasts:
            for loader in ("train_dataloader", "val_dataloader"):
                vars(self).pop(loader, None)

    def on_exception(self, exception: BaseException) -> None:
        """Restore the outer Trainer: Lightning calls no ``teardown`` after an error."""
        self.teardown("")


class GivenLoaders(LightningDataModule):
    """Return loaders that the user has built.

    Args:
        train: the training loader.
        val: the validation loader, if any.
        test: the test loader, if any.
    """

    def __init__(self, train: Any, val: Any = None, test: Any = None) -> None:
        super().__init__()
        for name, given in (("train_dataloader", train), ("val_dataloader", val), ("test_dataloader", test)):
            if given is not None:
                vars(self)[name] = partial(as_it_is, given)


def as_it_is(given: Any) -> Any:
    """Return what is given: a function with a name, which processes of ``ddp_spawn`` can read."""
    return given


class Round:
    """Stand for a round; it carries no data."""


class RoundLoader:
    """Serve one round per epoch. Lightning broadcasts once per batch, so all ranks must have equally many."""

    def __len__(self) -> int:
        return 1

    def __iter__(self) -> Iterator[Round]:
        yield Round()


def unless_round(hook: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a batch-transfer hook so that it returns rounds unchanged and handles every other batch as before."""

    def pass_or_transfer(batch: Any, *args: Any) -> Any:
        return batch if isinstance(batch, Round) else hook(batch, *args)

    return pass_or_transfer


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
