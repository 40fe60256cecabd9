"""Put a backdoor's trigger on the server's images, to measure the attack's success rate on the aggregated model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from fl_lightning.attacks.backdoor import Backdoor


class TriggeredLoader:
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
