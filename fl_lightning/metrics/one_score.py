"""Give metrics of two classes the one score for each example that they compare."""

from __future__ import annotations

import torch
from torch import Tensor
from torchmetrics import Metric


def takes_one_score(metric: Metric) -> bool:
    """Return whether a metric compares one score for each example: those of torchmetrics whose names begin with Binary."""
    return bool(getattr(metric, "takes_one_score", type(metric).__name__.startswith("Binary")))


def one_score(predictions: Tensor) -> Tensor:
    """Return the probability of class 1 of a model with two outputs, and the outputs of a model with one.

    Args:
        predictions: logits or probabilities, shape (N, 2); or one score for each example, shape (N, 1) or (N,).
    """
    if predictions.dim() == 2 and predictions.shape[1] == 1:
        return predictions[:, 0]
    if predictions.dim() != 2 or predictions.shape[1] != 2:
        return predictions
    inside = bool((predictions >= 0).all()) and torch.allclose(predictions.sum(1), predictions.new_ones(()), atol=1e-5)
    return (predictions if inside else predictions.softmax(1))[:, 1]
