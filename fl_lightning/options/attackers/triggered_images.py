"""Measure a backdoor's success: the share of the server's images with a trigger that the model takes for the target."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric

from fl_lightning.attacks.backdoor import Backdoor


class TriggeredImages:
    """Serve another loader's batches without the target's own images, with the trigger on, labelled as the target.

    Args:
        loader: returns batches (inputs, labels, ...).
        backdoor: provides the trigger and the target.
    """

    def __init__(self, loader: Any, backdoor: Backdoor) -> None:
        self._loader, self._backdoor = loader, backdoor

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[Any]:
        for inputs, labels, *_ in self._loader:
            others = labels != self._backdoor.target
            if bool(others.any()):
                yield self._backdoor.stamp(inputs[others]), torch.full_like(labels[others], self._backdoor.target)


class Agreement(Metric):
    """Compute the share of correct predictions, for any number of classes."""

    hits: Tensor
    total: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.add_state("hits", torch.zeros((), dtype=torch.int64))
        self.add_state("total", torch.zeros((), dtype=torch.int64))

    def update(self, predictions: Tensor, target: Tensor) -> None:
        """Update with logits of shape (N, C) and classes of shape (N,)."""
        self.hits += (predictions.argmax(dim=1) == target).sum()
        self.total += target.numel()

    def compute(self) -> Tensor:
        """Return the share, in [0, 1]."""
        return self.hits / self.total
