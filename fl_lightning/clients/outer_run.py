"""Let a client's module find what it would in a run of its own: the logger's names and folders, its own optimizers."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any
from unittest.mock import patch

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.loggers import Logger
from lightning.pytorch.loggers.logger import DummyLogger
from lightning.pytorch.utilities.rank_zero import rank_zero_warn

from fl_lightning.compat.lightning import configured


class _Silence:
    """Absorb whatever is done with it: ``config.update(...)``, ``summary["best"] = 1``, ``run["loss"].append(1)``.

    Figures are closed, as a SummaryWriter does; open ones would pile up with each client.
    """

    def __getattr__(self, name: str) -> _Silence:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        return self

    def __call__(self, *args: Any, **kwargs: Any) -> _Silence:
        return self

    def __getitem__(self, key: object) -> _Silence:
        return self

    def __setitem__(self, key: object, value: object) -> None:
        return

    def __enter__(self) -> _Silence:
        return self

    def __exit__(self, *error: object) -> None:
        return

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def add_figure(self, tag: str, figure: Any, global_step: int | None = None, close: bool = True, **_: Any) -> None:
        """Close one or several figures of matplotlib."""
        pyplot = sys.modules.get("matplotlib.pyplot")
        if close and pyplot is not None:
            for one in figure if isinstance(figure, list) else [figure]:
                pyplot.close(one)


class SilentLogger(DummyLogger):
    """Record nothing, and answer with the names and folders of the user's logger.

    Args:
        outer: the first logger of the user's Trainer; None at a site, which has none.
    """

    def __init__(self, outer: Logger | None = None) -> None:
        super().__init__()
        self._outer = outer
        silent: Any = _Silence()
        self._experiment = silent

    def __deepcopy__(self, memo: dict[int, Any]) -> SilentLogger:
        """Return another one for the same logger, which is not copied."""
        return SilentLogger(self._outer)

    @property
    def name(self) -> str:
        """Return the name of the experiment."""
        return str(getattr(self._outer, "name", None) or "")

    @property
    def version(self) -> str | int:  # type: ignore[override]
        """Return the version of the experiment."""
        found: str | int | None = getattr(self._outer, "version", None)
        return "" if found is None else found

    @property
    def save_dir(self) -> str | None:
        """Return the folder in which the user's logger saves; None without one."""
        return getattr(self._outer, "save_dir", None)

    @property
    def root_dir(self) -> str | None:
        """Return the folder of the experiment; None without one."""
        return getattr(self._outer, "root_dir", None)

    @property
    def log_dir(self) -> str | None:
        """Return the folder of this version; for loggers that have none, that in which they save."""
        found: str | None = getattr(self._outer, "log_dir", None)
        return self.save_dir if found is None else found


def silent_logger(wanted: bool, outer: Trainer | None) -> SilentLogger | None:
    """Return a logger for a client's module if the user's Trainer has one."""
    return SilentLogger(None if outer is None or not outer.loggers else outer.loggers[0]) if wanted else None


class IdleOptimizers:
    """Answer ``self.optimizers()`` and ``self.lr_schedulers()`` as a Trainer that fits the module would at its start.

    Validation may read a rate or step a schedule. Clients' optimizers are in their turns, so these have no effect, which a
    warning says once.

    Args:
        module: the module.
        own: a context in which the module has its own ``configure_optimizers``.
    """

    def __init__(self, module: LightningModule, own: Callable[[], AbstractContextManager[None]] = nullcontext) -> None:
        self._module, self._own = module, own
        self._found: tuple[list[Any], list[Any]] | None = None

    def _configured(self) -> tuple[list[Any], list[Any]]:
        if self._found is None:
            with self._own():
                answer: Any = self._module.configure_optimizers() or []
                self._found = configured(answer, self._module)
            rank_zero_warn(
                f"The validation of {type(self._module).__name__} reads its optimizers or schedules. They are those of the "
                "first step and train nothing, because clients' schedules advance in their own turns. To lower the rate over "
                "rounds, set 'federation.local.lr_decay', or let the schedule follow a metric of training."
            )
        return self._found

    def optimizers(self, use_pl_optimizer: bool = True) -> Any:
        """Return the optimizer, or all of them if there are several; see :meth:`LightningModule.optimizers`."""
        found = self._configured()[0]
        return found[0] if len(found) == 1 else found

    def lr_schedulers(self) -> Any:
        """Return the scheduler, all of them if there are several, or None; see :meth:`LightningModule.lr_schedulers`."""
        found = [config.scheduler for config in self._configured()[1]]
        return found[0] if len(found) == 1 else found or None

    def attached(self) -> AbstractContextManager[Any]:
        """Return a context in which these are the module's methods."""
        return patch.multiple(self._module, optimizers=self.optimizers, lr_schedulers=self.lr_schedulers)
