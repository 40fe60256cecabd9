"""Weights & Biases without an account: offline by itself, never a prompt."""

from __future__ import annotations

import netrc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

from lightning.pytorch.loggers import Logger, WandbLogger


def prefer_offline() -> bool:
    """Set ``WANDB_MODE=offline`` where W&B has no API key and the user has not chosen a mode.

    Returns:
        Whether runs will be written offline.
    """
    if "WANDB_MODE" not in os.environ and not has_api_key():
        os.environ["WANDB_MODE"] = "offline"
    return os.environ.get("WANDB_MODE") in ("offline", "dryrun")


def sweep_folder(root: str) -> str:
    """The folder of a run that a W&B agent has started: one for each run of the sweep, inside of the one that was asked for."""
    if "WANDB_SWEEP_ID" not in os.environ or "WANDB_RUN_ID" not in os.environ:
        return root
    return str(Path(root) / os.environ["WANDB_SWEEP_ID"] / os.environ["WANDB_RUN_ID"])


def has_api_key() -> bool:
    """Look for a key where W&B does: in the environment, then netrc. Asking wandb itself would fix its mode for the process."""
    if os.environ.get("WANDB_API_KEY"):
        return True
    host = urlparse(os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai")).hostname or ""
    try:
        return netrc.netrc(os.environ.get("NETRC")).authenticators(host) is not None
    except (OSError, netrc.NetrcParseError):
        return False


@contextmanager
def plot_over_rounds(logger: Logger) -> Iterator[None]:
    """Make ``round`` the x-axis of a W&B run and summarise each ``val_*`` by its min, max and last value.

    Other loggers are left alone. Of two globs that match, W&B applies any: Lightning defines ``*``, so that each ``val_*`` is
    defined by its whole name, just before it is logged for the first time.
    """
    run: Any = logger.experiment if isinstance(logger, WandbLogger) else None
    if not hasattr(run, "define_metric"):
        yield
        return
    run.define_metric("round")
    run.define_metric("*", step_metric="round", step_sync=True)
    log, defined = logger.log_metrics, set()

    def define_and_log(metrics: dict[str, Any], step: int | None = None) -> None:
        for name, value in metrics.items():
            if name.startswith("val_") and name not in defined and isinstance(value, int | float):  # no table, no picture
                run.define_metric(name, step_metric="round", step_sync=True, summary="min,max,last")
                defined.add(name)
        log(metrics, step)

    vars(logger)["log_metrics"] = define_and_log
    try:
        yield
    finally:
        del vars(logger)["log_metrics"]


def describe_run(logger: Logger, settings: dict[str, Any], origin: str) -> None:
    """Put everything that makes a run what it is into a W&B run's configuration; other loggers are left alone.

    Args:
        logger: of the Trainer.
        settings: the whole configuration, nested.
        origin: where the data come from, in words.
    """
    if isinstance(logger, WandbLogger):
        names = ("fl_lightning", "lightning", "torch", "torchmetrics")
        versions = {name: version(name) for name in names}
        run: Any = logger.experiment
        if hasattr(run, "config"):
            run.config.update({**settings, "versions": versions, "data_origin": origin}, allow_val_change=True)
