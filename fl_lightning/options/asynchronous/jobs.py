"""Keep the jobs that asynchronous clients have begun with the models of their starts, and train the clients from these."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fl_lightning.core.federation import Chain, Federation
from fl_lightning.errors import ConfigurationError
from fl_lightning.functional.event_queue import EventQueue, Flight
from fl_lightning.functional.exact_sum import to_float64
from fl_lightning.functional.model_state import ModelState
from fl_lightning.routes.base import Chains
from fl_lightning.server.round import FederationRound
from fl_lightning.types import ClientUpdate, Snapshot


@dataclass(frozen=True)
class StartModel:
    """Hold the tensors of an earlier global model that clients may change, or the server sets.

    Attributes:
        round_idx: the round that began with the model.
        tensors: its parameters and buffers by name, without frozen and personal ones.
    """

    round_idx: int
    tensors: Mapping[str, Tensor]


class JobsInProgress:
    """Hold the jobs that have begun, on the simulated clock or at sites, and the models of their starts, at most one for each.

    Attributes:
        queue: the jobs at the end of a round.
        running: the rounds of the starts of the jobs at sites, by client; a new process of the server has to take them up.
        asked: what asks once more for each job at a site, by client, at the end of a round.
        ends: the jobs at sites that have ended in this round, in order.
    """

    queue: EventQueue
    running: dict[int, int]
    asked: dict[int, bytes]
    ends: list[Flight]
    _models: dict[int, StartModel]

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Start anew."""
        self.queue, self._models, self.running, self.asked, self.ends = EventQueue(), {}, {}, {}, []

    def start_of(self, round_idx: int, server: ModelState) -> StartModel:
        """Return the model of an earlier round, on the device of the current one.

        Raises:
            ConfigurationError: if other parameters are trained now.
        """
        names = _names(server)
        model = self._models[round_idx]
        if set(names) != set(model.tensors):
            changed = sorted(set(names) ^ set(model.tensors))
            raise ConfigurationError(
                f"The trained parameters changed since round {round_idx}, for example '{changed[0]}', but asynchronous clients "
                "still train from the model of that round. Freeze the same parts in all rounds ('thaw_after' null), or remove "
                "'federation.asynchronous'."
            )
        return StartModel(round_idx, {name: tensor.to(server.device) for name, tensor in model.tensors.items()})

    def follow(self, queue: EventQueue, round_idx: int, federation: Federation) -> None:
        """Move on to the jobs after a round, and keep only the models that they need, the current one as a copy.

        Args:
            queue: the clock after the round.
            round_idx: the current round, before the server changes its model.
            federation: the parts of the federation.
        """
        self.queue, self.asked = queue, dict(federation.pool.under_way())
        needed = {flight.version for flight in queue.flights}
        self._models = {known: model for known, model in self._models.items() if known in needed}
        if round_idx in needed:
            self.hold(round_idx, federation.server)

    def hold(self, round_idx: int, server: ModelState) -> StartModel:
        """Return a copy of the current model, which is kept until :meth:`follow` finds that no job needs it.

        Args:
            round_idx: the current round, before the server changes its model.
            server: the current model.
        """
        if round_idx not in self._models:
            own = server.tensors()
            self._models[round_idx] = StartModel(round_idx, {name: own[name].clone() for name in _names(server)})
        return self._models[round_idx]

    def state_dict(self) -> dict[str, Any]:
        """Return the jobs, and the models by round, for a checkpoint."""
        return {
            "queue": self.queue.state_dict(),
            "starts": {round_idx: dict(model.tensors) for round_idx, model in self._models.items()},
            "asked": {client: torch.frombuffer(bytearray(asked), dtype=torch.uint8) for client, asked in self.asked.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the jobs and models of a checkpoint."""
        self.queue, self.running = EventQueue.from_state(state["queue"]), {}
        self.asked = {int(client): asked.cpu().numpy().tobytes() for client, asked in state.get("asked", {}).items()}
        self._models = {int(number): StartModel(int(number), dict(tensors)) for number, tensors in state["starts"].items()}


def _names(server: ModelState) -> list[str]:
    return [name for names in server.names() for name in names]


def start_vector(model: StartModel, server: ModelState) -> Tensor:
    """Return parameters and averaged buffers of an earlier model as one vector, shape (d,)."""
    parameters, floats, _, _ = server.names()
    return torch.cat([model.tensors[name].detach().reshape(-1) for name in (*parameters, *floats)])


def deliver(current: FederationRound, chains: Chains, starts: Mapping[int, int], in_progress: JobsInProgress) -> None:
    """Train the clients whose updates become a new model, by the model that they started from, the newest last.

    A task trains when its update arrives, not when it begins: the result is the same, and only start models must be kept.

    Args:
        current: the round.
        chains: its clients, each a chain of its own.
        starts: the rounds from whose models they started, by client.
        in_progress: the tasks that have begun in earlier rounds.
    """
    current.begin(chains)
    server = current.federation.server
    now = server.vector()
    for number in sorted(set(starts.values())):
        model, start = None, now
        if number < current.round_idx:
            held = in_progress.start_of(number, server)
            model, start = current.federation.publish(number, held.tensors), start_vector(held, server)
        take = partial(pass_on, current, start=start, now=now, staleness=current.round_idx - number)
        current.collect([chain for chain in chains if starts[chain[0]] == number], take, model)


def pass_on(current: FederationRound, chain: Chain, start: Tensor, now: Tensor, staleness: int) -> None:
    """Pass an update to the strategy, and let failures belong to this round, not to that of the start.

    Args:
        current: the round.
        chain: the client.
        start: the model that it started from, shape (d,).
        now: the current model, shape (d,).
        staleness: the number of models between the two.
    """
    failures = [replace(failure, round_idx=current.round_idx) for failure in chain.failures]
    rebased = partial(_rebased, current, start=start, now=now, staleness=staleness)
    current.receive(replace(chain, failures=failures), rebased)


def _rebased(current: FederationRound, update: ClientUpdate, start: Tensor, now: Tensor, staleness: int) -> ClientUpdate:
    """Return the update with its staleness, and with its change on top of the current model."""
    update = replace(update, round_idx=current.round_idx, staleness=staleness)
    if not staleness:
        return update
    sent, server = update.snapshot, current.federation.server
    keeps = current.federation.strategy.takes_stale_models
    vector = sent.vector if keeps else _on_top(sent.vector, start, now, server.num_parameters)
    return replace(update, model=Snapshot(vector, torch.maximum(sent.counters, server.counters())))


def _on_top(vector: Tensor, start: Tensor, now: Tensor, size: int) -> Tensor:
    """Return w_t plus the change of the parameters from the start. Buffers stay: sums of variances may be negative."""
    change = to_float64(vector[:size]) - to_float64(start[:size]).to(vector.device)
    moved = change + to_float64(now[:size]).to(vector.device)
    return torch.cat([moved.to(vector), vector[size:]])
