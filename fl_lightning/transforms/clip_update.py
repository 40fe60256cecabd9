"""Clip updates so that no client moves the model too far (Sun et al. 2019, Can You Really Backdoor Federated Learning)."""

from __future__ import annotations

from dataclasses import replace

from fl_lightning.errors import require
from fl_lightning.transforms.base import Message, Sender, Transform


class ClipUpdate(Transform):
    """Clip each change to a norm, ``change * min(1, max_norm / |change|)``, against scaled updates and for privacy.

    Args:
        max_norm: the largest L2 norm of a client's change of all parameters, > 0, in the units of the weights.
    """

    def __init__(self, max_norm: float) -> None:
        require(0 < max_norm < 1e12, "federation.transforms.max_norm", "above 0 and below 1e12", max_norm)
        self.max_norm = max_norm

    @property
    def limit(self) -> float:
        """Return the norm to which changes are clipped now."""
        return self.max_norm

    def apply(self, message: Message, sender: Sender) -> Message:
        """Return the clipped message; see :meth:`Transform.apply`."""
        norm = float(message.change.norm())
        return message if norm <= self.limit else replace(message, change=message.change * (self.limit / norm))
