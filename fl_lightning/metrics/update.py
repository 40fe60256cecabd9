"""Compare predictions and targets by a metric or a loss, with a helpful message if it rejects the data."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torchmetrics import Metric

from fl_lightning.errors import ConfigurationError, FederationError


def update_metric(metric: Metric, predictions: Tensor, target: Tensor, setting: str) -> None:
    """Update a metric with a batch.

    Args:
        metric: a metric of (predictions, target).
        predictions: the module's predictions.
        target: the true values.
        setting: the setting that asks for the metric, for the message.

    Raises:
        ConfigurationError: if the metric cannot compare such predictions and targets.
    """
    remedy = f"Set '{setting}' to a metric for such data, with the same number of classes if it counts classes."
    with comparing(getattr(metric, "metric", metric), predictions, target, remedy):
        metric.update(predictions, target)


@contextmanager
def comparing(judge: object, predictions: Tensor, target: Tensor, remedy: str) -> Iterator[None]:
    """Name the metric or loss that rejects predictions and targets, their shapes, and what to change.

    Raises:
        ConfigurationError: if it does; not for an error of the GPU.
    """
    try:
        yield
    except (FederationError, torch.OutOfMemoryError):
        raise
    except (ValueError, TypeError, RuntimeError, IndexError) as error:
        if "CUDA" in str(error):
            raise
        reason = str(error).partition("\n")[0] or repr(error)
        raise ConfigurationError(
            f"{type(judge).__name__} cannot compare predictions of {predictions.dtype}, shape {tuple(predictions.shape)}, with "
            f"targets of {target.dtype}, shape {tuple(target.shape)}: {reason} {remedy}"
        ) from error
