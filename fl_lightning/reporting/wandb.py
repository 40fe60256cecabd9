"""Weights & Biases without an account: offline by itself, never a prompt."""

from __future__ import annotations

import netrc
import os
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
    if "WANDB_MODE" not in os.environ and not _has_api_key():
        os.environ["WANDB_MODE"] = "offline"
    return os.environ.get("WANDB_MODE") in ("offline", "dryrun")


def sweep_folder(root: str) -> str:
    """The folder of a run that a W&B agent has started: one for each run of the sweep, inside of the one that was asked for."""
    if "WANDB_SWEEP_ID" not in os.environ or "WANDB_RUN_ID" not in os.environ:
        return root
    return str(Path(root) / os.environ["WANDB_SWEEP_ID"] / os.environ["WANDB_RUN_ID"])


def _has_api_key() -> bool:
    """Where W&B looks: the environment, then netrc. Asking wandb itself would fix its mode for the process."""
    if os.environ.get("WANDB_API_KEY"):
        return True
    host = urlparse(os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai")).hostname or ""
    try:
        return netrc.netrc(os.environ.get("NETRC")).authenticators(host) is not None
    except (OSError, netrc.NetrcParseError):
        return False


def plot_over_rounds(logger: Logger) -> None:
    """Make ``round`` the x-axis of a W&B run; other loggers are left alone."""
    if isinstance(logger, WandbLogger):
        run: Any = logger.experiment
        if hasattr(run, "define_metric"):
            run.define_metric("round")
            run.define_metric("*", step_metric="round", step_sync=True)
            run.define_metric("val_*", step_metric="round", step_sync=True, summary="min,max,last")


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
