"""What a strategy is: how the server combines what arrives."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torchmetrics import Metric

from fl_lightning.errors import ClientError
from fl_lightning.functional.exact_sum import wide
from fl_lightning.functional.sums import Grid, Sums
from fl_lightning.types import ClientUpdate, RoundStart

ModelGrid = Callable[[float | None], Grid | None]


class Worth(Protocol):
    """Scores models on the server's set, spread over the ranks."""

    def __call__(self, models: Sequence[Callable[[], Tensor]]) -> list[float]:
        """The score of each model; a model is made by calling it, shape (d,), on the rank that scores it."""


class Strategy:
    """Combine the updates of a round into one state: what the two kinds of strategies have in common.

    Subclass :class:`RunningStrategy` where the rule can be written with sums (or :class:`WeightedAverage` where it is an
    average), :class:`JointStrategy` where it must see all updates at once.

    Attributes:
        metric: what the server measures of each client's model on its own set, for ``update.score``: the name of a
            metric that the module logs in validation, a torchmetrics metric of (predictions, target), or None.
        local_metric: likewise of the client's model on the client's validation part, for ``update.local_score``.
        global_metric: likewise of the global model on the client's training part, for ``update.global_score``.
        needs_own_training: whether the rule reads what a client did by itself on the way from w_t (its steps, its own
            losses): then it cannot follow routes on which clients pass models to each other.
        needs_full_batch: whether a client must train on all its examples in one batch.
        tolerates_broken: whether it copes with models and losses that are not finite; else they end the run.
        compares_clients: whether it makes a difference between clients: then it has nothing to do on a route that hands
            a single model to the server.
        averages: whether the new state is the average of the clients', each with its share of the logged weights.
    """

    metric: str | Metric | None = None
    local_metric: str | Metric | None = None
    global_metric: str | Metric | None = None
    needs_own_training: bool = False
    compares_clients: bool = True
    needs_full_batch: bool = False
    tolerates_broken: bool = False
    averages: bool = False

    def reset(self) -> None:
        """Called before round 0: forget an earlier run."""

    def start_round(self, start: RoundStart) -> None:
        """Called before the clients train, on every rank."""

    @property
    def control(self) -> Tensor | None:
        """SCAFFOLD's server control variate c, shape (p,), sent to the clients with w_t; None for every other rule."""
        return None

    def server_optimizer(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        """Steps on the pseudo-gradient ``w_t - aggregate``; SGD of rate 1 sets the aggregate."""
        return torch.optim.SGD(parameters, lr=1.0)

    def figures(self) -> dict[str, float]:
        """What of the last round is worth a line in the log, as ``federation/<name>``."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """What must outlive a checkpoint: tensors and plain Python types only. Empty for a stateless strategy."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what :meth:`state_dict` gave."""


class RunningStrategy(Strategy, ABC):
    """A rule of sums: it keeps nothing of an update but what it adds to them.

    A round calls :meth:`take_in` for each update on the rank that trained it, in any order, adds the ranks' sums, and
    calls :meth:`aggregate` on every rank with the total. The sums are exact, so the result cannot depend on the order
    or the number of ranks.
    """

    def largest_weight(self, examples: Sequence[int]) -> float | None:
        """Return about the largest weight of a round, as far as it is known before the round.

        Where it is, the sum named ``state`` takes 8 bytes a number instead of 16, and less time. A round whose weights turn
        out to be larger or much smaller is summed as exactly, only slower.

        Args:
            examples: behind each update of the round.

        Returns:
            The weight, > 0; None where nothing is known.
        """
        return None

    def grids(self, examples: Sequence[int], model_grid: ModelGrid) -> dict[str, Grid]:
        """Return how finely the sums of a round are kept, by name, after :meth:`start_round`; the others on the finest grid.

        Args:
            examples: behind each update of the round.
            model_grid: gives the grid for sums of models, from the largest weight.
        """
        try:
            largest = self.largest_weight(examples) if examples else None
        except OverflowError:  # a huge power: such weights are refused when they come
            largest = None
        models = model_grid(largest)
        return {} if models is None else {"state": models, "weight": Grid(((1, None),), models.largest)}

    @abstractmethod
    def take_in(self, update: ClientUpdate, sums: Sums) -> float:
        """Add one update to the round's sums.

        Args:
            update: with its ``state``, shape (d,), and the scores that the strategy asks for.
            sums: the sums of this round on this rank.

        Returns:
            The update's unnormalised weight p_k, >= 0, for the log.
        """

    @abstractmethod
    def aggregate(self, sums: Sums) -> Tensor:
        """The new state from the sums over all clients, float64, shape (d,)."""


class JointStrategy(Strategy, ABC):
    """A rule that sees all updates of a round at once, such as a median.

    Every rank gets every client's state: m * d numbers.

    Attributes:
        worth_metric: what ``worth`` of :meth:`combine` measures, as ``metric``; None if it is not called.
    """

    worth_metric: str | Metric | None = None

    @abstractmethod
    def combine(self, updates: Sequence[ClientUpdate], worth: Worth) -> tuple[Tensor, list[float]]:
        """Called once per round, on every rank with the same updates.

        Args:
            updates: with their states, in the order of clients.
            worth: scores models on the server's set, spread over the ranks: call it on every rank alike.

        Returns:
            The new state, float64, shape (d,), and the weight p_k of each update for the log.
        """


_LARGEST = 2.0**36
_SMALLEST = 2.0**-60
"""Below it a weight may vanish in the sum."""


class WeightedAverage(RunningStrategy):
    """``w_{t+1} = sum_k p_k w_k / sum_k p_k``. A subclass says what p_k is; where all p_k are 0 it is 1 for each."""

    averages = True

    @abstractmethod
    def weight(self, update: ClientUpdate) -> float:
        """The unnormalised weight p_k of one update, finite and >= 0."""

    def take_in(self, update: ClientUpdate, sums: Sums) -> float:
        """Add ``p_k * w_k`` and ``p_k``; see :meth:`RunningStrategy.take_in`.

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
        if weight > _LARGEST:
            raise ClientError(
                f"{type(self).__name__} gave client {update.client} the weight {weight:.3g} in round {update.round_idx}; those "
                f"above {_LARGEST:.3g} cannot be summed exactly. Lower the power, leave examples out, or take another metric."
            )
        if weight > 0:
            sums.add("state", update.state, weight)
            sums.add("weight", 1.0, weight)
        if weight < _SMALLEST and not sums.scalar("weight"):  # this rank has seen only zeros: all may turn out to be zero
            sums.add("plain state", update.state)
            sums.add("plain weight", 1.0)
        return weight

    def aggregate(self, sums: Sums) -> Tensor:
        """The weighted average; the plain one where every weight is 0."""
        prefix = "" if sums.scalar("weight") > 0 else "plain "
        return sums.take(f"{prefix}state").div_(sums.scalar(f"{prefix}weight"))


def average(updates: Sequence[ClientUpdate], weights: Sequence[float]) -> Tensor:
    """The states' weighted average in float64, added in the order of clients, shape (d,); uniform where all weights are 0."""
    total = math.fsum(weights)
    shares = [weight / total for weight in weights] if total > 0 else [1.0 / len(updates)] * len(updates)
    result: Tensor | None = None
    for update, share in zip(updates, shares, strict=True):
        assert update.state is not None
        if share == 0:
            continue
        result = wide(update.state) * share if result is None else result.add_(wide(update.state), alpha=share)
    assert result is not None
    return result
