"""Weights & Biases without an account: offline by itself, never a prompt."""

from __future__ import annotations

import netrc
import os
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
