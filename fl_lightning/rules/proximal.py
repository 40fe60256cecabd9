"""Keep a client near the model that it starts from, as in FedProx (Li et al. 2020, eq. 2)."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from fl_lightning.errors import require
from fl_lightning.functional.proximal import add_proximal_gradient
from fl_lightning.rules.base import ClientRule, LocalStart
from fl_lightning.types import Pull


class ProximalRule(ClientRule):
    """Add ``mu * (w - w_start)`` to the gradients, unless a route's pull replaces it.

    Args:
        mu: the strength, > 0.
    """

    def __init__(self, mu: float) -> None:
        require(mu > 0, "ProximalRule.mu", "above 0", mu)
        self.mu = mu

    def begin(self, start: LocalStart) -> list[Tensor]:
        """Return copies of the parameters at the start."""
        return [] if start.pull is not None else [parameter.detach().clone() for parameter in start.parameters]

    def correct_gradients(
        self, parameters: Sequence[Tensor], terms: Sequence[Tensor], scale: float = 1.0, pull: Pull | None = None
    ) -> None:
        """Add the term's gradient; see :meth:`ClientRule.correct_gradients`."""
        add_proximal_gradient(parameters, terms, self.mu * scale)

    def strength(self, pull: Pull | None) -> float:
        """Return mu."""
        return self.mu if pull is None else 0.0
