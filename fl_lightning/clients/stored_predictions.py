"""Keep a model's predictions on a client's examples, to compute any metric of any resample of them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric


class StoredPredictions(Metric):
    """Keep predictions and targets on the CPU, in place of a metric."""

    full_state_update = False

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._kept: list[tuple[Tensor, Tensor]] = []

    def reset(self) -> None:
        """Forget what was kept."""
        super().reset()
        self._kept = []

    def update(self, preds: Tensor, target: Tensor) -> None:
        """Keep a batch."""
        wide = preds.float() if preds.dtype in (torch.float16, torch.bfloat16) else preds
        self._kept.append((wide.detach().cpu().clone(), target.detach().cpu().clone()))

    def compute(self) -> Tensor:
        """Return 0: the predictions are what counts."""
        return torch.zeros(())

    def take(self) -> tuple[Tensor, Tensor]:
        """Return all predictions and targets, and forget them."""
        predictions, targets = zip(*self._kept, strict=True)
        self.reset()
        return torch.cat(predictions), torch.cat(targets)
