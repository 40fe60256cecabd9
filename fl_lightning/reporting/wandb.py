"""Weights & Biases without an account: runs are offline by default, and never prompt."""

from __future__ import annotations

import errno
import logging
import os
import shlex
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

from lightning.pytorch import Trainer
from lightning.pytorch.loggers import Logger, WandbLogger

from fl_lightning.compat.lightning import wandb_run
from fl_lightning.functional.metric_names import is_validation_figure


def prefer_offline() -> None:
    """Set ``WANDB_MODE=offline`` if W&B lacks an API key and the user left the mode open."""
    if "WANDB_MODE" not in os.environ and not has_api_key():
        os.environ["WANDB_MODE"] = "offline"


def sweep_folder(root: str) -> str:
    """Return the folder of a run that a W&B agent started: one for each run of the sweep, inside the requested folder."""
    if "WANDB_SWEEP_ID" not in os.environ or "WANDB_RUN_ID" not in os.environ:
        return root
    return str(Path(root) / os.environ["WANDB_SWEEP_ID"] / os.environ["WANDB_RUN_ID"])


def has_api_key() -> bool:
    """Look for a key where W&B does: in the environment, then netrc. Asking wandb would fix its mode for the process."""
    from requests.utils import get_netrc_auth  # wandb requires it

    server = os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai")
    return bool(os.environ.get("WANDB_API_KEY") or get_netrc_auth(server))


TOTALS = {
    "by_megabytes": "federation/megabytes_total",
    "by_seconds": "federation/seconds_total",
    "by_ticks": "federation/ticks",
}
"""Sections of W&B that show each ``val_*`` or ``val/*`` against the cost of the run so far."""

_LEAST_SPACE = 2**15
"""Free bytes below which W&B's next block of records does not fit."""
_LEFT_OUT = ("epoch", "federation/threads")
ONCE = ("client_examples", "client_steps", "client_weight", "client_bytes_down", "client_bytes_up")
"""Figures that hardly change over rounds or repeat others; the tables ``clients`` and ``client_rounds`` contain them."""


def workspace_figures(metrics: Mapping[str, Any], totals: Mapping[str, float], charts: bool = False) -> dict[str, Any]:
    """Choose which logged keys W&B gets: it shows a panel for each, in a section for each prefix.

    Args:
        metrics: metrics by the names that all loggers use.
        totals: the last values of the costs in ``TOTALS``.
        charts: whether charts show the clients' figures of a round, which are then left out.

    Returns:
        The metrics that no table contains, and each figure from validation again in the sections of ``TOTALS``.
    """
    kept = {name: x for name, x in metrics.items() if name not in _LEFT_OUT and name.partition("/")[0] not in ONCE}
    if charts and "federation/clients" in metrics:
        kept = {name: x for name, x in kept.items() if not name.startswith("client_")}
    measured = {name: x for name, x in metrics.items() if is_validation_figure(name) and _is_number(x)}
    for section, axis in TOTALS.items():
        if measured and axis in totals:
            kept |= {axis: totals[axis]} | {f"{section}/{name}": x for name, x in measured.items()}
    return kept


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float)  # neither a table nor a picture


class FederationWandbLogger(WandbLogger):
    """Log to W&B as Lightning's ``WandbLogger`` does, with a page that is readable without set-up.

    While a federation trains, ``round`` is the x-axis, costs are the x-axes of their sections, each metric from validation is
    summarised by its min, max and last value, and figures that other places show have no panel. With
    :class:`~fl_lightning.FederationReport`, charts with a line for each client replace a panel for each. While it is tested,
    figures go to the summary, and add no curves of one point. The command line uses it for ``WandbLogger``.
    """

    charts = False
    """Whether charts show the clients' figures instead of a panel for each."""
    _trainer: Trainer | None = None

    @contextmanager
    def following(self, trainer: Trainer) -> Iterator[None]:
        """Log the rounds or the test of a Trainer while a block runs.

        If two globs match, W&B applies either, and Lightning defines ``*``; so metrics from validation are defined by their
        full names, just before they are logged.

        Args:
            trainer: a Trainer that fits or tests; call this on the first rank.
        """
        run: Any = self.experiment
        if trainer.testing:  # without Lightning's x-axis for pictures and tables
            run.define_metric("*", step_metric="round", step_sync=False, overwrite=True)
        else:
            run.define_metric("round", hidden=True)
            run.define_metric("*", step_metric="round", step_sync=True)
        self._trainer, self._defined, self._totals = trainer, set[str](), dict[str, float]()
        try:
            yield
        finally:
            self._trainer, self.charts = None, False

    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        """Log metrics with their round, or put those of a test into the summary."""
        if self._trainer is None:
            super().log_metrics(metrics, step)
        elif self._trainer.testing:
            tested = {name: x for name, x in metrics.items() if name.startswith("test_") and _is_number(x)}
            self.experiment.summary.update(tested)
            others = {name: x for name, x in metrics.items() if not _is_number(x)}
            if others:
                super().log_metrics(others)
        else:
            self._totals |= {axis: metrics[axis] for axis in TOTALS.values() if axis in metrics}
            shown = workspace_figures(metrics, self._totals, self.charts)
            for name in shown.keys() - self._defined:
                _define(self.experiment, name, shown[name])
            self._defined |= shown.keys()
            super().log_metrics({"round": float(self._trainer.current_epoch)} | shown)  # the step is the number of rounds, too
            require_space(self)


def require_space(logger: Logger) -> None:
    """Check that the disk of a W&B run is not full, which W&B's own process does not tell; other loggers are not checked.

    Raises:
        OSError: if it is full.
    """
    run: Any = wandb_run(logger) if isinstance(logger, WandbLogger) else None
    folder = None if getattr(run, "disabled", True) else Path(run.dir)
    if folder is not None and folder.exists() and shutil.disk_usage(folder).free < _LEAST_SPACE:
        own = logging.getLogger("wandb")  # each line of its own log would print a traceback
        for handler in [*own.handlers]:
            own.removeHandler(handler)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))


def _define(run: Any, name: str, value: Any) -> None:
    section = name.partition("/")[0]
    if section in TOTALS:
        run.define_metric(name, step_metric=TOTALS[section], step_sync=True, summary="none")
    elif name in TOTALS.values():
        run.define_metric(name, step_metric="round", step_sync=True)
    elif name.startswith(("val_", "val/")) and _is_number(value):
        run.define_metric(name, step_metric="round", step_sync=True, summary="min,max,last")


def where_to_look(logger: Logger) -> str | None:
    """Return where to see a W&B run: its address, or the command that uploads it; None if W&B prints it, or without a run.

    The command names all parts of the run that were written offline and not uploaded; a resumed run has several, of which W&B
    names only the last one.
    """
    run: Any = wandb_run(logger) if isinstance(logger, WandbLogger) else None
    if not hasattr(run, "settings") or run.disabled:
        return None
    if not run.offline:
        return f"W&B: {run.url}" if run.url and (run.settings.silent or run.settings.quiet) else None
    own = Path(run.dir).absolute().parent
    parts = [part for part in own.parent.glob(f"offline-run-*-{run.id}") if not any(part.glob("*.synced"))]
    here = Path.cwd()
    shown = [part.relative_to(here) if part.is_relative_to(here) else part for part in sorted({*parts, own})]
    return "wandb sync " + " ".join(shlex.quote(str(part)) for part in shown)


def describe_run(logger: Logger, settings: dict[str, Any], origin: str) -> None:
    """Put all settings that define a run into the configuration of a W&B run; other loggers are not changed.

    Args:
        logger: logger of the Trainer.
        settings: the whole configuration, nested.
        origin: origin of the data, in words.
    """
    if isinstance(logger, WandbLogger):
        names = ("fl_lightning", "lightning", "torch", "torchmetrics")
        versions = {name: version(name) for name in names}
        run: Any = logger.experiment
        if hasattr(run, "config"):
            run.config.update({**settings, "versions": versions, "data_origin": origin}, allow_val_change=True)
