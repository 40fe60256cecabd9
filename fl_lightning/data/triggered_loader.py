"""The server's images with a backdoor's trigger on: what the aggregated model makes of them is the attack's success rate."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from fl_lightning.attacks.backdoor import Backdoor


class TriggeredLoader:
    """Batches of another loader without the target's own images, the trigger on the rest, the target as their label.

    Args:
        loader: gives batches (inputs, labels, ...).
        backdoor: trigger and target.
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
