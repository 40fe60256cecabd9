"""Define strategies: how the server combines the clients' updates."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor, nn
from torchmetrics import Metric

from fl_lightning.core.capabilities import Capability, Need, Removal, Unassuming
from fl_lightning.errors import ClientError
from fl_lightning.functional.exact_sum import to_float64
from fl_lightning.functional.returned import as_number
from fl_lightning.functional.sums import Grid, Sums
from fl_lightning.rules.base import ClientRule
from fl_lightning.types import ClientUpdate, RoundStart
from fl_lightning.utilities.argument_types import ChecksTypes

ModelGrid = Callable[[float | None], Grid | None]
_OTHER_SCORES = (
    "Use a strategy without such scores, such as FedAvg, or one that reads the clients' own scores ('local_metric'), such as "
    "FedLoss or AdaFed with 'scored_by' clients"
)
ONLY_SUMS = "Use a strategy that needs only sums, such as FedAvg, FedAvgM, FedNova, FedLoss or Scaffold"


class ModelScorer(Protocol):
    """Score models on the server's set, distributed over the ranks."""

    def __call__(self, models: Sequence[Callable[[], Tensor]]) -> list[float]:
        """Return the score of each model. Calling a model creates it, shape (d,), on the rank that scores it."""


class Strategy(Unassuming, ChecksTypes):
    """Combine the updates of a round into one state; the base of both kinds of strategies.

    Subclass :class:`RunningStrategy` if sums are enough for the rule (or :class:`WeightedAverage` if it is an average), and
    :class:`JointStrategy` if it must see all updates at once.

    Attributes:
        metric: the metric of each client's model on the server's set, for ``update.score``: the name of a metric that the
            module logs in validation, a torchmetrics metric of (predictions, target), or None.
        local_metric: the metric of the client's model on the client's validation part, for ``update.local_score``.
        global_metric: the metric of the global model on the client's training part, for ``update.global_score``.
        reads: what the rule reads of each update beside the model and these metrics, by the names of ``policy.tells``, with
            which sites let it leave.
        needs_fresh_optimizers: whether the rule is not defined for optimizers that clients keep from round to round.
        needs_own_training: whether the rule reads facts about a client's own training from w_t (its steps, its own losses).
            Such a rule cannot follow routes on which clients pass models to each other.
        needs_full_batch: whether a client must train on all its examples in one batch.
        tolerates_broken: whether the rule copes with models and losses that are not finite. If not, such an update is a
            client failure; see :class:`~fl_lightning.Faults`.
        compares_clients: whether the rule treats clients differently. Such a rule has no effect on a route that hands a
            single model to the server.
        needs_all_clients: whether every client must take part in every round.
        needs_held_parts: whether the rule distinguishes what is shared from what clients hold (``federation.personal``).
        own_models: whether clients keep complete models of their own, which the clients' evaluation then measures.
        averages: whether the new state is the average of the clients' states, weighted by the logged weights.
        clients_may_join: whether a resumed run may have further clients: whether no state of the rule is a mean over all.
        needs_asynchronous: whether the rule is defined only for asynchronous rounds (``federation.asynchronous``).
        takes_stale_models: whether the rule reads the models of asynchronous clients as they are. Otherwise it reads w_t plus
            the change from the model that the client started from.
        largest_buffer: the largest number of updates in an asynchronous round; None if any number is defined.
        private_with: the noise under which the reported epsilon holds for the rule. ``central`` (of
            :class:`~fl_lightning.ClientPrivacy`): the aggregate is the plain mean of the clients' models, if ``weighting``,
            where the rule has one, is ``uniform``. ``local`` (of the same) and ``examples``
            (:class:`~fl_lightning.ExamplePrivacy`): the rule, and its client rule, read and send nothing else that depends
            on a client's data. Numbers of examples and steps are public. A subclass does not inherit it: every class that is
            used with such noise must set it in its own body.
    """

    metric: str | Metric | None = None
    local_metric: str | Metric | None = None
    global_metric: str | Metric | None = None
    reads: tuple[str, ...] = ("examples",)
    needs_fresh_optimizers: bool = False
    needs_own_training: bool = False
    compares_clients: bool = True
    needs_full_batch: bool = False
    tolerates_broken: bool = False
    needs_all_clients: bool = False
    needs_held_parts: bool = False
    own_models: bool = False
    averages: bool = False
    clients_may_join: bool = True
    needs_asynchronous: bool = False
    takes_stale_models: bool = False
    largest_buffer: int | None = None
    private_with: tuple[str, ...] = ()

    if not TYPE_CHECKING:  # mypy would accept any attribute

        def __getattr__(self, name: str) -> Any:
            """Say why an attribute may be missing that a constructor sets."""
            kind = type(self).__name__
            raise AttributeError(
                f"'{kind}' object has no attribute '{name}'. If {kind} has an '__init__', call 'super().__init__()' in it.",
                name=name,
                obj=self,
            )

    @property
    def least_epochs(self) -> int:
        """Return 1, or more if the rule is defined only for more local epochs."""
        return 1

    def needs(self) -> Iterator[Need]:
        """Return what the strategy needs of other parts of a federation."""
        if self.metric is not None:
            why = f"{type(self).__name__} weighs every client's model by its score at the server"
            yield Need(Capability.SINGLE_UPDATES, why, ONLY_SUMS)
        yield from self._needs_of_scores(self.metric)
        name, other = type(self).__name__, "Use another strategy, such as FedAvg"
        if self.needs_held_parts:
            why = f"{name} needs a head of each client, but 'federation.personal' is empty"
            yield Need(Capability.HELD_PARTS, why, "Name the head's parameters there, such as [{names: 'head.*'}]")
        if self.needs_all_clients:
            yield Need(Capability.EVERY_CLIENT, f"{name} needs every client in every round", other)
        if self.needs_own_training:
            start = f"{name} needs each client to train from the current global model"
            yield Need(Capability.WHOLE_ROUNDS, start, "Use FedBuff, FedAsync, FedAvg, AdaFed or FedMedian")
        if type(self).broadcast is not Strategy.broadcast:
            sent = f"{name} sends tensors with each model ('broadcast'), which belong to the current model"
            yield Need(Capability.WHOLE_ROUNDS, sent, "Use FedBuff")
        if self.needs_asynchronous:
            remedy = "Set 'federation.asynchronous', for example to {concurrency: 10, buffer: 1}"
            yield Need(Capability.OWN_PACE, f"{name} combines updates of asynchronous rounds", remedy)

    def _needs_of_scores(self, metric: str | Metric | None) -> Iterator[Need]:
        """Return what it needs to score clients' models at the server, if it does."""
        if metric is not None:
            why = f"{type(self).__name__} scores clients' models on the server's set"
            yield Need(Capability.COMPLETE_MODEL, why, _OTHER_SCORES)

    def removes(self) -> Iterator[Removal]:
        """Return what the strategy takes away from other parts of a federation."""
        if self.own_models:
            name = type(self).__name__
            why = f"{name} keeps a complete model of each client's own"
            yield Removal(Capability.GLOBAL_STARTS, why, "use another strategy, such as FedAvg")

    def reset(self) -> None:
        """Forget an earlier run. Called before round 0."""

    def start_round(self, start: RoundStart) -> None:
        """Prepare for a round. Called on every rank before the clients train."""

    def broadcast(self) -> dict[str, Tensor]:
        """Return the tensors that clients get with w_t, by name, each of shape (p,); none by default."""
        return {}

    def client_rule(self) -> ClientRule | None:
        """Return the client's half of the algorithm, which reads :meth:`broadcast` and sends ``update.extras``; or None."""
        return None

    def server_optimizer(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        """Return the optimizer that steps on the pseudo-gradient ``w_t - aggregate``; SGD of rate 1 sets the aggregate."""
        return torch.optim.SGD(parameters, lr=1.0)

    def influence(self, update: ClientUpdate) -> float:
        """Return the factor with which the aggregate contains a client's change, up to one that all clients share.

        It is asked after the round, when updates have no models any more. The default is the logged weight.
        """
        return update.weight

    def figures(self) -> dict[str, float]:
        """Return figures of the last round to log as ``federation/<name>``."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """Return the state to save in a checkpoint: tensors and plain Python types only. Empty for a stateless strategy.

        Override :meth:`load_state_dict` as well.
        """
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state that :meth:`state_dict` returned."""


class RunningStrategy(Strategy, ABC):
    """Combine updates through running sums, without keeping the updates.

    A round calls :meth:`accumulate` for each update on the rank that trained it, in any order, adds the ranks' sums, and
    calls :meth:`aggregate` on every rank with the total. The sums are exact, so the result does not depend on the order
    or the number of ranks.
    """

    @property
    def weight_power(self) -> float:
        """Return the largest power with which weights grow by what clients measure or have."""
        return 1.0

    def largest_weight(self, examples: Sequence[int]) -> float | None:
        """Return roughly the largest weight of a round, if it is known before the round.

        If it is known, the sum named ``state`` takes 8 bytes per number instead of 16, and less time. A round whose weights
        turn out larger or much smaller is summed just as exactly, but more slowly.

        Args:
            examples: the number of examples behind each update of the round.

        Returns:
            The weight, > 0, or None if it is unknown.
        """
        return None

    def grids(self, examples: Sequence[int], model_grid: ModelGrid) -> dict[str, Grid]:
        """Return the grid of each named sum of a round, after ``start_round``; other sums use the finest grid.

        Args:
            examples: the number of examples behind each update of the round.
            model_grid: returns the grid for sums of models, given the largest weight.
        """
        try:
            largest = self.largest_weight(examples) if examples else None
        except OverflowError:  # a huge power
            largest = _LARGEST
        if largest is not None and largest > _LARGEST:  # larger weights are rejected, and smaller ones need a finer grid
            largest = _LARGEST
        models = model_grid(largest)
        return {} if models is None else {"state": models, "weight": Grid(((1, None),), models.largest)}

    def sum_sizes(self, size: int, parameters: int) -> dict[str, int] | None:
        """Return the length of each sum that :meth:`accumulate` adds to, for clients that mask their part of them.

        The method then runs where the client trains, after ``start_round``. So it must not read what only the server knows.

        Args:
            size: the length d of a state.
            parameters: the number p of parameters.

        Returns:
            The lengths by name; None if clients cannot mask their parts, which is the default.
        """
        return None

    @abstractmethod
    def accumulate(self, update: ClientUpdate, sums: Sums) -> float:
        """Add one update to the round's sums.

        Args:
            update: the update with its ``state``, shape (d,), and the scores that the strategy asks for.
            sums: the sums of this round on this rank.

        Returns:
            The update's unnormalised weight p_k, >= 0, for the log.
        """

    @abstractmethod
    def aggregate(self, sums: Sums) -> Tensor:
        """Return the new state from the sums over all clients, float64, shape (d,)."""


class JointStrategy(Strategy, ABC):
    """Combine all updates of a round at once, as a median does.

    Every rank receives every client's state: m * d numbers.

    Attributes:
        worth_metric: the metric that ``scorer`` of :meth:`combine` measures, as ``metric``; None if it is not called.
    """

    worth_metric: str | Metric | None = None

    def needs(self) -> Iterator[Need]:
        """Return what the strategy needs of other parts of a federation."""
        why = f"{type(self).__name__} needs every client's model to combine them"
        yield Need(Capability.SINGLE_UPDATES, why, ONLY_SUMS)
        yield from super().needs()
        yield from self._needs_of_scores(self.worth_metric)
        if not self.averages or self.worth_metric is not None:  # no weights, or models of its own making would lack them
            name = type(self).__name__
            yield Need(Capability.FIXED_TENSORS, f"{name} does not cover such tensors", "Use FedAvg")

    @abstractmethod
    def combine(self, updates: Sequence[ClientUpdate], scorer: ModelScorer) -> tuple[Tensor, list[float]]:
        """Combine the updates. Called once per round on every rank, with the same updates.

        Args:
            updates: the updates with their states, in the order of clients.
            scorer: scores models on the server's set, distributed over the ranks. Every rank must make the same calls.

        Returns:
            The new state, float64, shape (d,), and the weight p_k of each update for the log.
        """


_LARGEST = 2.0**36
_SMALLEST = 2.0**-60
"""Weights below it may vanish in the sum."""


class WeightedAverage(RunningStrategy):
    """Average models: ``w_{t+1} = sum_k p_k w_k / sum_k p_k``. Subclasses define p_k; if all p_k are 0, each counts as 1."""

    averages = True

    @abstractmethod
    def weight(self, update: ClientUpdate) -> float:
        """Return the unnormalised weight p_k of one update, finite and >= 0."""

    def sum_sizes(self, size: int, parameters: int) -> dict[str, int] | None:
        """Return the length of each sum.

        A subclass with further sums, or with a weight that only the server knows, overrides it.
        """
        return {"state": size, "weight": 1}

    def accumulate(self, update: ClientUpdate, sums: Sums) -> float:
        """Add ``p_k * w_k`` and ``p_k``; see :meth:`RunningStrategy.accumulate`.

        Raises:
            ClientError: if the weight is negative or not finite.
            ConfigurationError: if the weight is not a number.
        """
        remedy = (
            "'update.score' is known only if the constructor sets 'metric'; 'local_score' needs 'local_metric', and "
            "'global_score' needs 'global_metric'."
        )
        weight = as_number(self.weight(update), f"{type(self).__name__}.weight returns", remedy)
        if not (math.isfinite(weight) and weight >= 0):
            raise ClientError(
                f"{type(self).__name__} gave client {update.client} the weight {weight} in round {update.round_idx}, but "
                "weights must be finite and 0 or above. Choose a metric with such values, or set 'mode' to 'min' or 'max'."
            )
        if weight > _LARGEST:
            raise ClientError(
                f"{type(self).__name__} gave client {update.client} the weight {weight:.3g} in round {update.round_idx}, but "
                f"weights above {_LARGEST:.3g} cannot be summed exactly. Lower 'power', set 'examples' to false, or choose "
                "another metric."
            )
        if weight > 0:
            sums.add("state", update.snapshot.vector, weight)
            sums.add("weight", 1.0, weight)
        if (
            weight < _SMALLEST and not sums.for_masks and not sums.scalar("weight")
        ):  # this rank has seen only zeros: all weights may be zero
            sums.add("plain state", update.snapshot.vector)
            sums.add("plain weight", 1.0)
        return weight

    def aggregate(self, sums: Sums) -> Tensor:
        """Return the weighted average, or the plain average if every weight is 0.

        Raises:
            ClientError: if every weight is 0, and masks hide the models of which the plain average would consist.
        """
        total = sums.scalar("weight")
        if sums.for_masks and not total > 0:
            raise ClientError(
                f"{type(self).__name__} gave all clients of the round the weight 0, and masks hide their models. Check the "
                "metric that the weights are computed from, or use FedAvg."
            )
        prefix = "" if total > 0 else "plain "
        return sums.take(f"{prefix}state").div_(sums.scalar(f"{prefix}weight"))


def average(updates: Sequence[ClientUpdate], weights: Sequence[float]) -> Tensor:
    """Return the states' weighted average, float64, shape (d,), added in client order; uniform if all weights are 0."""
    total = math.fsum(weights)
    shares = [weight / total for weight in weights] if total > 0 else [1.0 / len(updates)] * len(updates)
    result: Tensor | None = None
    for update, share in zip(updates, shares, strict=True):
        if share == 0:
            continue
        state = to_float64(update.snapshot.vector)
        result = state * share if result is None else result.add_(state, alpha=share)
    assert result is not None
    return result
