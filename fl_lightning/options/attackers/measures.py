"""Measure attacks: a backdoor's success on images with its trigger, and how well weights separate attackers."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torchmetrics import MeanMetric

from fl_lightning.attacks.backdoor import Backdoor
from fl_lightning.types import ClientUpdate


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


class Agreement(MeanMetric):
    """Compute the share of correct predictions, for any number of classes."""

    def update(self, predictions: Tensor, target: Tensor) -> None:  # type: ignore[override]
        """Update with logits of shape (N, C) and classes of shape (N,)."""
        super().update((predictions.argmax(dim=1) == target).float())


def detection(updates: Sequence[ClientUpdate], attackers: Collection[int]) -> dict[str, float]:
    """Return the figures of a round with attackers; empty without attackers, or on routes that do not weigh clients.

    Args:
        updates: updates of the round, with weights and shares.
        attackers: ids of all attackers.

    Returns:
        ``attackers``, their number; ``attacker_share``, the sum of their shares of the aggregate, in [0, 1];
        ``attacker_auroc``, if the round also has honest clients: the probability that a random attacker weighs less than a
        random honest client, with ties counting half (the area under the ROC curve of the weight as a test). 1 separates them
        perfectly, 0.5 is chance.
    """
    hostile = [update for update in updates if update.client in attackers]
    honest = [update for update in updates if update.client not in attackers]
    if not hostile or any(math.isnan(update.weight) for update in updates):
        return {}
    figures = {"attackers": float(len(hostile)), "attacker_share": sum(update.share for update in hostile)}
    if honest:
        pairs = [(bad.weight < good.weight) + 0.5 * (bad.weight == good.weight) for bad in hostile for good in honest]
        figures["attacker_auroc"] = sum(pairs) / len(pairs)
    return figures
