"""Compute a calibration curve (reliability diagram) on common bins, whose states are sums."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric

from fl_lightning.errors import ConfigurationError, require
from fl_lightning.utilities.argument_types import ChecksTypes


class CalibrationCurve(ChecksTypes, Metric):
    """Compute the mean predicted probability and the observed share of class 1 in bins of equal width.

    scikit-learn's ``calibration_curve`` with the strategy ``uniform`` leaves out empty bins; here they are NaN, so that the
    bins of all clients are the same.

    Args:
        bins: the number of bins between 0 and 1, from 1 to 1000.
    """

    full_state_update = False
    takes_probabilities = True
    events: Tensor
    others: Tensor
    confidence: Tensor

    def __init__(self, bins: int = 10, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        require(1 <= bins <= 1000, "CalibrationCurve.bins", "from 1 to 1000", bins)
        self.bins = bins
        for name in ("events", "others"):
            self.add_state(name, torch.zeros(bins, dtype=torch.int64), dist_reduce_fx="sum")
        self.add_state("confidence", torch.zeros(bins, dtype=torch.float64), dist_reduce_fx="sum")

    def update(self, preds: Tensor, target: Tensor) -> None:
        """Add a batch.

        Args:
            preds: the probabilities of class 1, shape (N,).
            target: the classes, 0 or 1, shape (N,).

        Raises:
            ConfigurationError: if a number is not a probability: a batch of logits can lie within [0, 1] as well.
        """
        scores = preds.double()
        if not bool(((scores >= 0) & (scores <= 1)).all()):
            raise ConfigurationError(
                f"CalibrationCurve needs probabilities, but got numbers from {float(scores.min()):.3g} to "
                f"{float(scores.max()):.3g}. Pass `logits.sigmoid()`."
            )
        edges = torch.linspace(0, 1, self.bins + 1, dtype=torch.float64, device=scores.device)[1:-1].contiguous()
        places = torch.bucketize(scores, edges)
        self.events += torch.bincount(places[target == 1], minlength=self.bins)
        self.others += torch.bincount(places[target == 0], minlength=self.bins)
        self.confidence += torch.bincount(places, weights=scores, minlength=self.bins)

    def compute(self) -> tuple[Tensor, Tensor]:
        """Return the mean predicted probability and the observed share of class 1 of each bin, shape (bins,) each."""
        number = (self.events + self.others).double()
        return self.confidence / number, self.events / number
