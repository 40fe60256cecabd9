"""What a federation does where a client fails: raises, runs out of memory, diverges, stalls or has no data."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from lightning.pytorch.utilities.exceptions import MisconfigurationException

from fl_lightning.errors import ClientError, ConfigurationError, require
from fl_lightning.functional.exact_sum import magnitude
from fl_lightning.functional.model_state import ModelState
from fl_lightning.types import ClientFailure, ClientUpdate

_NAME = "federation.faults."
_SHOWN = 3


@dataclass(frozen=True)
class Faults:
    """Configure what happens when a client fails in a round.

    A failure is any error in the client's own training or data, MemoryError and the GPU's included; a loss or weights that are
    not finite (unless the strategy copes with them); weights of another shape than the global model's; training beyond the
    deadline; no examples. Wrong settings are none: they end the run.

    Args:
        policy: ``fatal`` ends the run with the client's error; ``skip`` leaves the client out of the round, and says so.
        retries: how often a client that failed tries again from the same model with the same random numbers, >= 0, before the
            policy counts: after a moment's lack of memory it comes to what it would have come to.
        min_updates: good updates that a round needs, of those that it was drawn to have: a whole number >= 1, or a share in
            (0, 1], rounded up. With fewer the run ends; it can be resumed from the round before.
        deadline: seconds that a client's training may take in a round, > 0, looked at between steps; null for any.

    Raises:
        ConfigurationError: for a value outside its range.
    """

    policy: Literal["fatal", "skip"] = "fatal"
    retries: int = 0
    min_updates: int | float = 1
    deadline: float | None = None

    def __post_init__(self) -> None:
        require(self.policy in ("fatal", "skip"), _NAME + "policy", "fatal or skip", self.policy)
        whole = isinstance(self.retries, int) and self.retries >= 0
        require(whole, _NAME + "retries", "a whole number of 0 or above", self.retries)
        least = self.min_updates
        fits = least >= 1 if isinstance(least, int) else 0 < least <= 1
        require(fits, _NAME + "min_updates", "a number of 1 or above, or a share in (0, 1]", least)
        require(self.deadline is None or self.deadline > 0, _NAME + "deadline", "above 0 seconds, or null", self.deadline)

    @property
    def skips(self) -> bool:
        """Whether a round goes on without those who fail."""
        return self.policy == "skip"

    def needed(self, drawn: int) -> int:
        """The good updates that a round of ``drawn`` clients needs."""
        return self.min_updates if isinstance(self.min_updates, int) else math.ceil(self.min_updates * drawn - 1e-9)

    def check(self, drawn: int) -> None:
        """Refuse more good updates than a round has clients.

        Raises:
            ConfigurationError: naming the setting.
        """
        wanted = f"at most the {drawn} clients of a round"
        require(self.needed(drawn) <= drawn, _NAME + "min_updates", wanted, self.min_updates)


def too_few(round_idx: int, good: int, drawn: int, needed: int, failures: Sequence[ClientFailure]) -> ClientError:
    """The error that ends a run for lack of good updates."""
    causes = "; ".join(f"client {failure.client}: {failure.cause}" for failure in failures[:_SHOWN])
    more = f"; and {len(failures) - _SHOWN} more" if len(failures) > _SHOWN else ""
    return ClientError(
        f"Round {round_idx}: {good} of {drawn} updates are good, but the round needs {needed} "
        f"('federation.faults.min_updates'). Failed: {causes}{more}."
    )


def is_clients_fault(error: Exception) -> bool:
    """Whether an error is the client's, not that of the settings."""
    return not isinstance(error, ConfigurationError | MisconfigurationException)


def describe(error: Exception) -> str:
    """An error in a line."""
    text = " ".join(str(error).split())
    return text if isinstance(error, ClientError) else f"{type(error).__name__}: {text}"


def check_update(
    update: ClientUpdate, server: ModelState, size: int, tolerates_broken: bool, largest: float, reach: float
) -> ClientUpdate:
    """Refuse an update that cannot be aggregated, and measure how far it moves: in one pass over its weights.

    Args:
        update: with its state.
        server: the view of the global model.
        size: d, the length of its state.
        tolerates_broken: whether the strategy copes with what is not finite.
        largest: a weight beyond it is refused: sums of such would not be exact.
        reach: the largest absolute value of the server's parameters.

    Returns:
        The update with its norm, where that is finite.

    Raises:
        ClientError: if the loss or the new weights are not finite, or have another shape.
    """
    who = f"Client {update.client} (of {update.num_examples} examples) in round {update.round_idx}"
    assert update.state is not None
    if update.state.shape != (size,) or not update.state.is_floating_point():
        raise ClientError(
            f"{who}: it sent {update.state.dtype} of shape {tuple(update.state.shape)}; the model has {size} weights. Let "
            "'training_step' and the callbacks leave the network's layers as they are."
        )
    moved = server.distance(update.state)
    measured = replace(update, update_norm=moved if math.isfinite(moved) else None)
    if tolerates_broken:
        return measured
    remedy = "Lower its learning rate, clip with 'federation.local.gradient_clip_val', or look at its data."
    if update.train_loss is not None and not math.isfinite(update.train_loss):
        raise ClientError(f"{who}: the training loss is {update.train_loss}; finite losses are needed. {remedy}")
    weights = server.num_parameters
    if math.isfinite(moved) and reach + 1.01 * moved <= largest and math.isfinite(magnitude(update.state[weights:])):
        return measured  # no weight has moved further than all together
    low, high = map(float, torch.aminmax(update.state)) if size else (0.0, 0.0)
    if not (math.isfinite(low) and math.isfinite(high)):  # NaN comes out of aminmax
        raise ClientError(f"{who}: the weights that it sent are not finite. {remedy}")
    extreme = magnitude(update.state[:weights])  # buffers may be larger
    if extreme > largest:
        raise ClientError(f"{who}: it sent a weight of {extreme:.3g}, too large to be summed (above {largest:.3g}). {remedy}")
    return measured
