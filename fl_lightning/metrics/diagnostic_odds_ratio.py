"""Compute the diagnostic odds ratio, which AdaFed suggests as a weight (AdaFed, section 3.1; Glas et al. 2003)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric

from fl_lightning.errors import require
from fl_lightning.functional.exact_sum import to_float64
from fl_lightning.utilities.argument_types import ChecksTypes


class DiagnosticOddsRatio(ChecksTypes, Metric):
    """Compute the diagnostic odds ratio of each class against the others, averaged over the classes.

    The ratio is ``(TP + 1/2) (TN + 1/2) / ((FP + 1/2) (FN + 1/2))``; the halves (Haldane and Anscombe) keep it finite. 1 is
    chance. It has no upper limit, so a good model outweighs others by far more than by its accuracy. Classes without
    examples do not count.

    Args:
        num_classes: the number of classes C, at least 2.
    """

    higher_is_better = True
    full_state_update = False
    confusion: Tensor

    def __init__(self, num_classes: int = 10, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        require(num_classes >= 2, "DiagnosticOddsRatio.num_classes", "at least 2", num_classes)
        self.num_classes = num_classes
        self.add_state("confusion", torch.zeros(num_classes, num_classes, dtype=torch.int64), dist_reduce_fx="sum")

    def update(self, preds: Tensor, target: Tensor) -> None:
        """Count a batch: scores or labels, shape (N, C) or (N,); true classes, shape (N,)."""
        labels = preds.argmax(dim=1) if preds.ndim > target.ndim else preds
        cells = target.flatten() * self.num_classes + labels.flatten()
        self.confusion += torch.bincount(cells, minlength=self.num_classes**2).view_as(self.confusion)

    def compute(self) -> Tensor:
        """Return the mean ratio, a scalar, > 0."""
        counts = to_float64(self.confusion)
        right = counts.diagonal()
        missed, false = counts.sum(dim=1) - right, counts.sum(dim=0) - right
        rest = counts.sum() - right - missed - false
        ratio = (right + 0.5) * (rest + 0.5) / ((false + 0.5) * (missed + 0.5))
        return ratio[counts.sum(dim=1) > 0].mean()
