"""Tell a client's failure from a wrong setting, and refuse updates that cannot be aggregated."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cached_property

import torch
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from torch import Tensor

from fl_lightning.errors import ClientError, ConfigurationError
from fl_lightning.functional.exact_sum import magnitude
from fl_lightning.functional.model_state import ModelState, distance
from fl_lightning.messages import ServerModel
from fl_lightning.types import ClientUpdate


def is_clients_fault(error: Exception) -> bool:
    """Whether an error is the client's, not that of the settings."""
    return not isinstance(error, ConfigurationError | MisconfigurationException)


def describe(error: Exception) -> str:
    """An error in a line."""
    text = " ".join(str(error).split())
    return text if isinstance(error, ClientError) else f"{type(error).__name__}: {text}"


class UpdateCheck:
    """Refuse updates that cannot be aggregated, and measure how far the others move.

    Args:
        state: a view of any copy of the module; its layout is read, not its content.
        server: the global model of the round.
    """

    def __init__(self, state: ModelState, server: ServerModel) -> None:
        self._names = state.names()
        self._server, self._size = server, state.size
        self.num_parameters = state.num_parameters

    @cached_property
    def _parameters(self) -> list[Tensor]:
        return [self._server.tensors[name].detach() for name in self._names[0]]

    @cached_property
    def _reach(self) -> float:
        """The largest absolute value of the global model's parameters."""
        return max((magnitude(parameter) for parameter in self._parameters), default=0.0)

    def server_vector(self) -> Tensor:
        """Return the global model's parameters and averaged buffers as one vector, shape (d,)."""
        names = [*self._names[0], *self._names[1]]
        return torch.cat([self._server.tensors[name].detach().reshape(-1) for name in names])

    def __call__(self, update: ClientUpdate) -> ClientUpdate:
        """Return the update with its norm, if that is finite: in one pass over its weights.

        Raises:
            ClientError: if the loss or the new weights are not finite, too large, or have another shape.
        """
        who = f"Client {update.client} (of {update.num_examples} examples) in round {update.round_idx}"
        state, largest = update.snapshot.vector, self._server.largest
        if state.shape != (self._size,) or not state.is_floating_point():
            raise ClientError(
                f"{who}: it sent {state.dtype} of shape {tuple(state.shape)}; the model has {self._size} weights. Let "
                "'training_step' and the callbacks leave the network's layers as they are."
            )
        moved = distance(self._parameters, state)
        measured = replace(update, update_norm=moved if math.isfinite(moved) else None)
        if self._server.tolerates_broken:
            return measured
        remedy = "Lower its learning rate, clip with 'federation.local.gradient_clip_val', or look at its data."
        if update.train_loss is not None and not math.isfinite(update.train_loss):
            raise ClientError(f"{who}: the training loss is {update.train_loss}; finite losses are needed. {remedy}")
        buffers = state[self.num_parameters :]
        if math.isfinite(moved) and self._reach + 1.01 * moved <= largest and math.isfinite(magnitude(buffers)):
            return measured  # no weight has moved further than all together
        low, high = map(float, torch.aminmax(state)) if self._size else (0.0, 0.0)
        if not (math.isfinite(low) and math.isfinite(high)):  # NaN comes out of aminmax
            raise ClientError(f"{who}: the weights that it sent are not finite. {remedy}")
        extreme = magnitude(state[: self.num_parameters])  # buffers may be larger
        if extreme > largest:
            raise ClientError(
                f"{who}: it sent a weight of {extreme:.3g}, too large to be summed (above {largest:.3g}). {remedy}"
            )
        return measured
