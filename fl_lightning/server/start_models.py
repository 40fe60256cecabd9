"""Keep the models from which the jobs of asynchronous clients started, until the last of these jobs has ended."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fl_lightning.errors import ConfigurationError
from fl_lightning.functional.model_state import ModelState


@dataclass(frozen=True)
class StartModel:
    """Hold the tensors of an earlier global model that clients may change, or the server sets.

    Attributes:
        round_idx: the round that began with the model.
        tensors: its parameters and buffers by name, without frozen and personal ones.
    """

    round_idx: int
    tensors: Mapping[str, Tensor]


class StartModels:
    """Hold the models of earlier rounds; part of the run's state. There are at most as many as jobs in progress."""

    def __init__(self) -> None:
        self._models: dict[int, StartModel] = {}

    def of(self, round_idx: int, server: ModelState) -> StartModel:
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

    def keep(self, needed: Collection[int], round_idx: int, server: ModelState) -> None:
        """Keep only the models that are needed, with a copy of the current one if it is among them.

        Args:
            needed: the rounds from whose models jobs in progress started.
            round_idx: the current round, before the server changes its model.
            server: the current model.
        """
        self._models = {known: model for known, model in self._models.items() if known in needed}
        if round_idx in needed:
            own = server.tensors()
            self._models[round_idx] = StartModel(round_idx, {name: own[name].clone() for name in _names(server)})

    def state_dict(self) -> dict[int, dict[str, Tensor]]:
        """Return the models for a checkpoint, by round."""
        return {round_idx: dict(model.tensors) for round_idx, model in self._models.items()}

    def load_state_dict(self, state: Mapping[Any, Mapping[str, Tensor]]) -> None:
        """Restore the models of a checkpoint."""
        self._models = {int(round_idx): StartModel(int(round_idx), dict(tensors)) for round_idx, tensors in state.items()}

    def __len__(self) -> int:
        return len(self._models)


def _names(server: ModelState) -> list[str]:
    return [name for names in server.names() for name in names]


def start_vector(model: StartModel, server: ModelState) -> Tensor:
    """Return parameters and averaged buffers of an earlier model as one vector, shape (d,)."""
    parameters, floats, _, _ = server.names()
    return torch.cat([model.tensors[name].detach().reshape(-1) for name in (*parameters, *floats)])
