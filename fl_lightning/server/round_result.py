"""Hold the result of a round, and merge the updates of a chain of clients."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from lightning.pytorch.utilities.rank_zero import rank_zero_warn
from torch import Tensor

from fl_lightning.errors import ClientError, ConfigurationError
from fl_lightning.functional.returned import described
from fl_lightning.strategies.base import JointStrategy, Strategy
from fl_lightning.types import ClientFailure, ClientUpdate

_SHOWN = 3
"""The largest number of failures in an error message."""


@dataclass(frozen=True)
class RoundResult:
    """Hold a round's new state (float64, shape (d,)), new counters, and updates and failures in the order of clients.

    ``moved`` holds the new values of frozen tensors that clients changed, by name, and ``lost`` the clients that dropped out.
    """

    aggregate: Tensor
    counters: Tensor
    updates: list[ClientUpdate]
    failures: list[ClientFailure]
    moved: Mapping[str, Tensor] = field(default_factory=dict)
    lost: tuple[int, ...] = ()


class Aggregate(NamedTuple):
    """Hold what a strategy makes of a round's updates, the same on every rank.

    Attributes:
        state: the new state, float64, shape (d,).
        updates: the updates with their weights.
        moved: the new values of frozen tensors that clients changed, by name.
    """

    state: Tensor
    updates: list[ClientUpdate]
    moved: dict[str, Tensor]


def as_one(chain: Sequence[ClientUpdate]) -> ClientUpdate:
    """Return a chain's updates as one: the last client's model, with the examples of all clients."""
    if len(chain) == 1:
        return chain[0]
    examples, steps = (sum(getattr(update, name) for update in chain) for name in ("num_examples", "num_steps"))
    return replace(chain[-1], num_examples=examples, num_steps=steps, normalizer=None)


def shared_out(handed: ClientUpdate, chain: Sequence[ClientUpdate]) -> list[ClientUpdate]:
    """Return the chain's updates for the log, with its weight divided by examples."""
    if len(chain) == 1:
        return [handed.without_state()]
    weights = [handed.weight * update.num_examples / handed.num_examples for update in chain]
    return [
        replace(
            update, weight=weight, score=handed.score, local_score=handed.local_score, update_norm=handed.update_norm
        ).without_state()
        for update, weight in zip(chain, weights, strict=True)
    ]


def influences(strategy: Strategy, updates: Sequence[ClientUpdate]) -> dict[int, float]:
    """Return each client's share of the aggregated change, by client; equal shares if all are 0."""
    factors = {update.client: strategy.influence(update) for update in updates}
    total = math.fsum(factors.values())
    return {client: factor / total if total > 0 else 1 / len(factors) for client, factor in factors.items()}


def with_shares(updates: list[ClientUpdate], strategy: Strategy) -> list[ClientUpdate]:
    """Return the updates with their shares of the total weight, which sum to 1."""
    total = sum(update.weight for update in updates)
    if math.isnan(total):  # the weights are masked
        return updates
    if not total > 0 and len(updates) > 1:
        rank_zero_warn(
            f"{type(strategy).__name__} gave all clients of a round the weight 0, so their plain average was used. Check the "
            "metric that the weights are computed from."
        )
    return [replace(u, share=u.weight / total if total > 0 else 1 / len(updates)) for u in updates]


def state_and_weights(strategy: JointStrategy, updates: Sequence[ClientUpdate], answer: Any) -> tuple[Tensor, list[float]]:
    """Return the answer of a strategy's ``combine`` after checking it, except for the state's shape.

    Raises:
        ConfigurationError: if the answer is not a state and weights.
        ClientError: if the weights are invalid; it names the strategy.
    """
    name = type(strategy).__name__
    if not (isinstance(answer, tuple) and len(answer) == 2 and isinstance(answer[1], Sequence | Tensor)):
        raise ConfigurationError(
            f"{name}.combine returned {described(answer)}, but a new state and a list of weights are needed. Return both, for "
            "example 'return state, [1.0] * len(updates)'."
        )
    weights = [float(weight) for weight in answer[1]]
    if len(weights) != len(updates) or not all(math.isfinite(weight) and weight >= 0 for weight in weights):
        raise ClientError(
            f"{name} gave {len(updates)} updates the weights {weights[:5]}. Return one weight for each update from its "
            "'combine', finite and 0 or above."
        )
    return answer[0], weights


def too_few(
    round_idx: int,
    good: int,
    drawn: int,
    needed: int,
    failures: Sequence[ClientFailure],
    name_of: Callable[[int], str] = str,
) -> ClientError:
    """Return the error that ends a run with too few valid updates."""
    causes = "; ".join(f"client {name_of(failure.client)}: {failure.cause}" for failure in failures[:_SHOWN])
    more = f"; and {len(failures) - _SHOWN} more" if len(failures) > _SHOWN else ""
    return ClientError(
        f"Round {round_idx}: {good} of {drawn} updates are valid, but the round needs {needed} "
        f"('federation.faults.min_updates'). Failed: {causes}{more}."
    )
