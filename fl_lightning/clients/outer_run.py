"""Let a client's module read what belongs to the run around it: names and folders of the logger, checkpoints, last metrics."""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from lightning.pytorch import Trainer
from lightning.pytorch.loggers import Logger
from lightning.pytorch.loggers.logger import DummyLogger
from torch import Tensor


class _Silence:
    """Absorb whatever is done with it: ``config.update(...)``, ``summary["best"] = 1``, ``run["loss"].append(1)``."""

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


class _SilentExperiment(_Silence):
    """Record nothing, but close figures, as a SummaryWriter does; open ones would pile up with each client."""

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
        silent: Any = _SilentExperiment()
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


class LastMetrics(dict[str, Tensor]):
    """Hold the metrics of a client's fit; ``metrics["name"]`` also finds those of the last validation of the run around it.

    ``get``, ``in`` and iteration see the client's own alone, so that a schedule that follows a metric is not stepped with them.

    Args:
        own: the client's metrics.
        outer: the user's Trainer.
    """

    def __init__(self, own: Mapping[str, Tensor], outer: Trainer | None) -> None:
        super().__init__(own)
        self._outer = outer

    def __deepcopy__(self, memo: dict[int, Any]) -> LastMetrics:
        """Return a copy of the client's metrics, for the same Trainer, which is not copied."""
        return LastMetrics(copy.deepcopy(dict(self), memo), self._outer)

    def __missing__(self, name: str) -> Tensor:
        """Return a metric of the run around the client."""
        if self._outer is None:
            raise KeyError(name)
        return self._outer.callback_metrics[name]


def silent_logger(wanted: bool, outer: Trainer | None) -> SilentLogger | None:
    """Return a logger for a client's module if the user's Trainer has one."""
    return SilentLogger(None if outer is None or not outer.loggers else outer.loggers[0]) if wanted else None
