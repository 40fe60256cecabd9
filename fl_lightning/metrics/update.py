"""Update a metric, and raise a helpful message if it rejects the data."""

from __future__ import annotations

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
    try:
        metric.update(predictions, target)
    except (FederationError, torch.OutOfMemoryError):
        raise
    except (ValueError, TypeError, RuntimeError, IndexError) as error:
        name = type(getattr(metric, "metric", metric)).__name__
        raise ConfigurationError(
            f"{name} cannot compare predictions of {predictions.dtype}, shape {tuple(predictions.shape)}, with targets of "
            f"{target.dtype}, shape {tuple(target.shape)}: {str(error).splitlines()[0] if str(error) else error!r} Set "
            f"'{setting}' to a metric for such data, with the same number of classes if it counts classes."
        ) from error
