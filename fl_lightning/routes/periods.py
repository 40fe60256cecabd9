"""Run rounds of several periods, between which clients mix their models."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from fl_lightning.errors import ConfigurationError, require
from fl_lightning.functional.exact_sum import to_float64
from fl_lightning.routes.base import Cohort, Route
from fl_lightning.types import ClientUpdate


class PeriodRoute(Route):
    """Train every client and mix its model with others', P times; then hand the clients' models to the strategy.

    Each client keeps its own counters, such as BatchNorm's number of batches. Optimizers are built anew in each period.

    Args:
        periods: the number of periods P, >= 1; clients train P times a round.

    Raises:
        ConfigurationError: if a value is outside its range.
    """

    needs_all_clients = True
    passes_models = True

    def __init__(self, periods: int) -> None:
        require(periods >= 1, "federation.route.periods", "1 or above", periods)
        self.periods = periods

    @abstractmethod
    def mixing(self, cohort: Cohort, updates: Sequence[ClientUpdate], period: int) -> Tensor | None:
        """Return the mixing matrix after a period, shape (m, m), rows (receivers) sum to 1; None for no mixing."""

    def turns_before(self, round_idx: int) -> int:
        """Return P times the number of rounds; see :meth:`Route.turns_before`."""
        return self.periods * round_idx

    def peers(self, size: int) -> int:
        """Return how many other clients a client sends its model to, and receives one from, at each mixing."""
        return min(1, size - 1)

    def run(self, cohort: Cohort) -> None:
        """Run one round; see :meth:`Route.run`."""
        updates: list[ClientUpdate] = []
        chains = [[client] for client in cohort.clients]
        for period in range(self.periods):
            starts = {update.client: update.snapshot for update in updates}
            trained = cohort.train(chains, starts, period)
            if updates:  # only the first period's model came from the server, and only the last one's returns to it
                trained = [replace(new, bytes_down=0, bytes_up=0) for new in trained]
                trained = [new.after(old) for new, old in zip(trained, updates, strict=True)]
            updates = self._mixed(cohort, trained, period)
        cohort.hand_in(updates)

    def _mixed(self, cohort: Cohort, updates: list[ClientUpdate], period: int) -> list[ClientUpdate]:
        matrix = self.mixing(cohort, updates, period)
        if matrix is None:
            return updates
        states = mix(torch.stack([update.snapshot.vector for update in updates]), matrix)
        targets = _mixed_targets(updates, matrix)
        sent = cohort.model_bytes * self.peers(len(updates))
        return [
            replace(
                update,
                model=replace(update.with_state(state).snapshot, moved=moved),
                bytes_down=update.bytes_down + sent,
                bytes_up=update.bytes_up + sent,
            )
            for update, state, moved in zip(updates, states, targets, strict=True)
        ]


def _mixed_targets(updates: Sequence[ClientUpdate], matrix: Tensor) -> list[dict[str, Tensor]]:
    """Return the mixtures of the frozen tensors that the clients have changed, by name.

    Raises:
        ConfigurationError: if only some clients have changed one.
    """
    models = [update.snapshot.moved for update in updates]
    names = sorted({name for moved in models for name in moved})
    for name, update in ((name, update) for name in names for update in updates if name not in update.snapshot.moved):
        raise ConfigurationError(
            f"Client {update.client} has not changed the frozen tensor '{name}', but other clients have, so their models "
            "cannot be mixed. Use the route ServerRoute."
        )
    mixed = {name: mix(torch.stack([moved[name].reshape(-1) for moved in models]), matrix) for name in names}
    return [{name: mixed[name][k].view_as(moved[name]) for name in names} for k, moved in enumerate(models)]


def star_matrix(accuracy: Tensor) -> Tensor:
    """Return Fed-Star's normalised weights M(k, j) = 1 - Acc(w_j, D_k) (Fed-Cyclic and Fed-Star thesis, eq. 3.8 and 3.9).

    Args:
        accuracy: the accuracy of model j on client k's data, in [0, 1], shape (K, K), row k, column j.

    Returns:
        Rows that sum to 1, float64, shape (K, K). A row of perfect models weighs them equally.
    """
    errors = 1.0 - accuracy.double()
    totals = errors.sum(dim=1, keepdim=True)
    uniform = torch.full_like(errors, 1.0 / errors.shape[1])
    return torch.where(totals > 0, errors / totals.clamp_min(torch.finfo(torch.float64).tiny), uniform)


def ring_matrix(size: int, gamma: float) -> Tensor:
    """Return RingFed's weights: (1 - gamma) of the own model, gamma of the previous one; float64, shape (K, K)."""
    own = torch.eye(size, dtype=torch.float64)
    return (1.0 - gamma) * own + gamma * own.roll(1, dims=0)


def mix(states: Tensor, matrix: Tensor) -> Tensor:
    """Compute all mixtures at once.

    Args:
        states: the models, shape (K, d), any floating dtype.
        matrix: the weights of client k's mixture in row k, shape (K, K).

    Returns:
        The mixtures, computed in float64 and returned in the states' dtype, shape (K, d).
    """
    exact = to_float64(states)
    return (matrix.to(exact) @ exact).to(states)
