"""Mix every update into the model at once, as FedAsync does (Xie et al. 2019, Algorithm 1)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from torch import Tensor

from fl_lightning.errors import require
from fl_lightning.functional.exact_sum import to_float64
from fl_lightning.functional.staleness import Staleness, check_discount, discount
from fl_lightning.functional.sums import Sums
from fl_lightning.strategies.base import RunningStrategy
from fl_lightning.types import ClientUpdate, RoundStart


class FedAsync(RunningStrategy):
    """Mix each client's model into the global one as soon as it arrives: ``w <- (1 - alpha_t) w + alpha_t w_k``.

    ``alpha_t = alpha * s(tau)`` falls with the staleness tau, the number of new models since the client started: one less than
    the paper's t - tau, so that a fresh model mixes with alpha itself. Averaged buffers mix in the same way. It needs
    ``federation.asynchronous`` with ``buffer`` 1. The paper's clients have a proximal term, which is
    ``federation.local.proximal_mu``.

    Args:
        alpha: the weight of a fresh model, in (0, 1].
        staleness: the discount s of stale models: ``constant``, ``polynomial`` or ``hinge``; see
            :func:`~fl_lightning.functional.staleness.discount`.
        a: how fast the discount falls, >= 0; the paper uses 0.5 for ``polynomial`` and 10 for ``hinge``.
        b: the largest staleness without a discount, a whole number >= 0, for ``hinge``; the paper uses 4.
        mixes: ``models`` mixes the client's model, as in the paper, which also pulls w back towards the model that the client
            started from; ``changes`` mixes w plus the client's change: ``w <- w + alpha_t (w_k - w_start)``.

    Raises:
        ConfigurationError: for a value outside its range.

    Example:
        >>> from fl_lightning import Asynchronous, FedAsync, FederatedOrchestrator
        >>> federation = FederatedOrchestrator(FedAsync(alpha=0.6), asynchronous=Asynchronous(concurrency=4, buffer=1))
    """

    reads = ()
    private_with: tuple[str, ...] = ("local", "examples")
    needs_asynchronous = True
    largest_buffer = 1

    def __init__(
        self,
        alpha: float = 0.6,
        staleness: Staleness = "polynomial",
        a: float = 0.5,
        b: int = 4,
        mixes: Literal["models", "changes"] = "models",
    ) -> None:
        require(0 < alpha <= 1, "federation.strategy.alpha", "above 0 and at most 1", alpha)
        check_discount(a, b)
        self.alpha, self.staleness, self.a, self.b, self.mixes = alpha, staleness, a, b, mixes
        self.takes_stale_models = mixes == "models"

    def start_round(self, start: RoundStart) -> None:
        """Note w_t."""
        self._start = start.server_state

    def largest_weight(self, examples: Sequence[int]) -> float:
        """Return 1."""
        return 1.0

    def accumulate(self, update: ClientUpdate, sums: Sums) -> float:
        """Add the update, and return alpha_t."""
        share = self.alpha * discount(update.staleness or 0, self.staleness, self.a, self.b)
        sums.add("state", update.snapshot.vector, share)
        sums.add("share", share)
        return share

    def aggregate(self, sums: Sums) -> Tensor:
        """Return the mixture."""
        share = sums.scalar("share")
        state = sums.take("state")
        return state.add_(to_float64(self._start).to(state.device), alpha=1 - share)
