"""What a strategy is: how the server combines what arrives."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any

from torch import Tensor
from torchmetrics import Metric

from fl_lightning.errors import ClientError
from fl_lightning.functional.exact_sum import Sums
from fl_lightning.types import ClientUpdate


class Strategy(ABC):
    """Combine the updates of a round into one state.

    A round calls :meth:`start_round` once, :meth:`take_in` for each update on the rank that trained it, in any order,
    adds the ranks' sums, and calls :meth:`aggregate` on every rank with the total. The strategy keeps nothing of an
    update but what it adds to the sums, so its result cannot depend on the order or the number of ranks.

    Attributes:
        metric: what the server measures of each client's model on its own set before :meth:`take_in`: the name of a
            metric that the module logs in validation, a torchmetrics metric of (predictions, target), or None.
    """

    metric: str | Metric | None = None

    def start_round(self, round_idx: int, server_state: Tensor) -> None:  # noqa: B027 (optional)
        """Called before the clients train.

        Args:
            round_idx: from 0.
            server_state: the global weights w_t as one vector, shape (d,).
        """

    @abstractmethod
    def take_in(self, update: ClientUpdate, sums: Sums) -> float:
        """Add one update to the round's sums.

        Args:
            update: with its ``state``, shape (d,), and its ``score`` where :attr:`metric` asks for one.
            sums: the sums of this round on this rank.

        Returns:
            The update's unnormalised weight p_k, >= 0, for the log.
        """

    @abstractmethod
    def aggregate(self, sums: Sums) -> Tensor:
        """The new state from the sums over all clients, float64, shape (d,)."""

    def state_dict(self) -> dict[str, Any]:
        """What must outlive a checkpoint: tensors and plain Python types only. Empty for a stateless strategy."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:  # noqa: B027 (optional)
        """Take back what :meth:`state_dict` gave."""


class WeightedAverage(Strategy):
    """``w_{t+1} = sum_k p_k w_k / sum_k p_k``. A subclass says what p_k is; where all p_k are 0 it is 1 for each."""

    @abstractmethod
    def weight(self, update: ClientUpdate) -> float:
        """The unnormalised weight p_k of one update, finite and >= 0."""

    def take_in(self, update: ClientUpdate, sums: Sums) -> float:
        """Add ``p_k * w_k`` and ``p_k``; see :meth:`Strategy.take_in`.

        Raises:
            ClientError: if the weight is negative or not finite.
        """
        assert update.state is not None
        weight = self.weight(update)
        if not (math.isfinite(weight) and weight >= 0):
            raise ClientError(
                f"{type(self).__name__} gave client {update.client} the weight {weight} in round {update.round_idx}; weights "
                "must be finite and 0 or above. Choose a metric that is, or state its mode ('min' or 'max')."
            )
        if weight > 0:
            sums.add("state", update.state, weight)
            sums.add("weight", weight)
        if not sums.scalar("weight"):  # this rank has seen only zeros: all may turn out to be zero
            sums.add("plain state", update.state)
            sums.add("plain weight", 1.0)
        return weight

    def aggregate(self, sums: Sums) -> Tensor:
        """The weighted average; the plain one where every weight is 0."""
        prefix = "" if sums.scalar("weight") > 0 else "plain "
        return sums.value(f"{prefix}state") / sums.scalar(f"{prefix}weight")
