"""Keep the jobs that asynchronous clients have begun, and the models from which they started until the last has ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fl_lightning.errors import ConfigurationError
from fl_lightning.functional.event_queue import EventQueue, Flight
from fl_lightning.functional.model_state import ModelState
from fl_lightning.server.federation import Federation


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
        """Go on to the jobs after a round, and keep only their models, with a copy of the current one if it is among them.

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
