"""Distinguish a client's failure from a wrong setting, and refuse updates that cannot be aggregated."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import replace
from functools import cached_property

import torch
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from torch import Tensor

from fl_lightning.core.capabilities import Need
from fl_lightning.errors import ClientError, ConfigurationError
from fl_lightning.functional.exact_sum import magnitude, magnitudes
from fl_lightning.functional.model_parts import widened
from fl_lightning.functional.model_state import ModelState
from fl_lightning.functional.spread import distance
from fl_lightning.functional.sums import Grid, grid_of_model
from fl_lightning.messages import ServerModel
from fl_lightning.types import ClientUpdate


def is_clients_fault(error: Exception) -> bool:
    """Return whether an error is a client's failure, not a wrong setting."""
    return not isinstance(error, ConfigurationError | MisconfigurationException)


def describe(error: Exception) -> str:
    """Describe an error in one line."""
    text = " ".join(str(error).split())
    return text if isinstance(error, ClientError) else f"{type(error).__name__}: {text}"


def refuse_moved(moved: Collection[str], need: Need | None) -> None:
    """Refuse frozen tensors that training has changed, if a part of the federation needs that it changes none.

    Only training shows whether it does, so no part can be refused for this before the first round.

    Args:
        moved: their names.
        need: the need of :attr:`Capability.FIXED_TENSORS`; None if no part has it.

    Raises:
        ConfigurationError: naming a tensor and the part.
    """
    if need is not None and moved:
        raise ConfigurationError(
            f"Training changes '{next(iter(moved))}', which has no gradient (requires_grad=False), as a target that follows "
            f"the network does, but {need.because}. {need.remedy}, or keep such tensors from changing."
        )


_SMALL = 2**16
"""The largest number of parameters of a model that is compared as one vector."""


class UpdateCheck:
    """Refuse updates that cannot be aggregated, and measure the norm of the others.

    Args:
        state: a view of any copy of the module, of which only the layout is read.
        server: the global model of the round.
        name_of: returns the name of a client.
        fixed: the need that training changes no tensor without a gradient; None if no part at the clients has it.
    """

    def __init__(
        self, state: ModelState, server: ServerModel, name_of: Callable[[int], str] = str, fixed: Need | None = None
    ) -> None:
        self._name_of, self._fixed = name_of, fixed
        self._names, self._extremes = state.names(), state.extremes()
        self.server, self._size = server, state.size
        self.num_parameters = state.num_parameters

    @cached_property
    def _parameters(self) -> list[Tensor]:
        found = [self.server.tensors[name].detach() for name in self._names[0]]
        if self.num_parameters <= _SMALL and len({tensor.dtype for tensor in found}) == 1:
            return [torch.cat([tensor.reshape(-1) for tensor in found])]  # one operation per client instead of one per tensor
        return found

    @cached_property
    def _reach(self) -> float:
        """Return the largest absolute value of the global model's parameters."""
        return max(magnitudes(self._parameters), default=0.0)

    def server_vector(self) -> Tensor:
        """Return the global model's parameters and averaged buffers as one vector, shape (d,)."""
        names = [*self._names[0], *self._names[1]]
        return torch.cat([self.server.tensors[name].detach().reshape(-1) for name in names])

    def grid(self, largest: float | None) -> Grid | None:
        """Return the grid on which models like the global one are summed; see :meth:`ModelState.grid`."""
        return grid_of_model([self.server.tensors[name].detach() for name in self._names[0]], self._size, largest)

    def server_counters(self) -> Tensor:
        """Return the global model's integer and boolean buffers, int64, shape (c,)."""
        found = [self.server.tensors[name].reshape(-1).long() for name in self._names[2]]
        return torch.cat(found) if found else torch.empty(0, dtype=torch.int64)

    def __call__(self, update: ClientUpdate) -> ClientUpdate:
        """Return the update with its norm if the norm is finite, in one pass over its weights.

        Raises:
            ClientError: if the loss or the new weights are not finite, or if the weights are too large or have another shape.
            ConfigurationError: if it has tensors that a part at the clients does not cover.
        """
        refuse_moved(update.snapshot.moved, self._fixed)
        who = f"Client {self._name_of(update.client)} (of {update.num_examples} examples) in round {update.round_idx}"
        state, largest = update.snapshot.vector, self.server.max_abs_weight
        if state.shape != (self._size,) or not state.is_floating_point():
            raise ClientError(
                f"{who}: it sent {state.dtype} of shape {tuple(state.shape)}, but the model has {self._size} weights. Do not "
                "change the network's layers in 'training_step' or in callbacks."
            )
        for name, tensor in update.snapshot.moved.items():
            if name not in self._extremes and tensor.is_floating_point() and not math.isfinite(magnitude(widened(tensor))):
                raise ClientError(f"{who}: its '{name}' is not finite. Lower its learning rate, or check its data.")
        moved = distance(self._parameters, state)
        measured = replace(update, update_norm=moved if math.isfinite(moved) else None)
        if self.server.tolerates_broken:
            return measured
        remedy = "Lower its learning rate, clip with 'federation.local.gradient_clip_val', or check its data."
        if update.train_loss is not None and not math.isfinite(update.train_loss):
            raise ClientError(f"{who}: the training loss is {update.train_loss}, but it must be finite. {remedy}")
        buffers = state[self.num_parameters :]
        if math.isfinite(moved) and self._reach + 1.01 * moved <= largest and math.isfinite(magnitude(buffers)):
            return measured  # no single weight has moved further than the norm
        low, high = map(float, torch.aminmax(state)) if self._size else (0.0, 0.0)
        if not (math.isfinite(low) and math.isfinite(high)):  # aminmax propagates NaN
            raise ClientError(f"{who}: the weights that it sent are not finite. {remedy}")
        extreme = magnitude(state[: self.num_parameters])  # buffers may be larger
        if extreme > largest:
            raise ClientError(
                f"{who}: it sent a weight of {extreme:.3g}, which is too large to be summed (above {largest:.3g}). {remedy}"
            )
        return measured
