"""Judge what clients send: whose fault an error is, whether an update can be aggregated, and what it changes."""

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
from fl_lightning.functional.blocks import blocks
from fl_lightning.functional.exact_sum import magnitude, magnitudes, to_float64
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


class UpdateEditor:
    """Check the updates of one published model, and read and replace what they change.

    Args:
        state: a view of any copy of the module, of which only the layout is read.
        model: the published model.
        name_of: returns the name of a client.
        fixed: the need that training changes no tensor without a gradient; None if no part at the clients has it.
    """

    def __init__(
        self, state: ModelState, model: ServerModel, name_of: Callable[[int], str] = str, fixed: Need | None = None
    ) -> None:
        self.model, self._name_of, self._fixed = model, name_of, fixed
        self._extremes, self.size, self._length = state.extremes(), state.num_parameters, state.size
        kinds = state.names()[:3]
        self._parameters, self._buffers, self._counters = ([model.tensors[n].detach() for n in names] for names in kinds)

    @cached_property
    def _compared(self) -> tuple[list[Tensor], float]:
        """Return the parameters of the published model, and their largest absolute value."""
        found = self._parameters
        if self.size <= _SMALL and len({tensor.dtype for tensor in found}) == 1:
            found = [torch.cat([tensor.reshape(-1) for tensor in found])]  # one operation per client instead of one per tensor
        return found, max(magnitudes(found), default=0.0)

    @property
    def state(self) -> Tensor:
        """Return the model's parameters and averaged buffers as one vector, shape (d,)."""
        return torch.cat([tensor.reshape(-1) for tensor in (*self._parameters, *self._buffers)])

    @property
    def counters(self) -> Tensor:
        """Return the model's integer and boolean buffers, int64, shape (c,)."""
        found = [tensor.reshape(-1).long() for tensor in self._counters]
        return torch.cat(found) if found else torch.empty(0, dtype=torch.int64)

    @cached_property
    def start(self) -> Tensor:
        """Return the parameters of the model, float64, shape (p,)."""
        return to_float64(self.state[: self.size])

    def grid(self, largest: float | None) -> Grid | None:
        """Return the grid on which such models are summed; see :meth:`ModelState.grid`."""
        return grid_of_model(self._parameters, self._length, largest)

    def change(self, update: ClientUpdate) -> Tensor:
        """Return the change of the parameters, float64, shape (p,)."""
        change = to_float64(update.snapshot.vector[: self.size])
        return change - self.start if change.dtype == update.snapshot.vector.dtype else change.sub_(self.start)

    def replaced(self, update: ClientUpdate, change: Tensor) -> ClientUpdate:
        """Return the update with another change of the parameters.

        Raises:
            ClientError: if it cannot be aggregated.
        """
        state = update.snapshot.vector
        moved = torch.empty_like(state)
        moved[self.size :] = state[self.size :]
        parts = (blocks(vector) for vector in (moved[: self.size], self.start, change.to(self.start)))
        for target, start, step in zip(*parts, strict=True):  # block by block: avoids a second model in float64
            target.copy_(start + step)
        return self.check(update.with_state(moved))

    def check(self, update: ClientUpdate) -> ClientUpdate:
        """Return the update with its norm if the norm is finite, in one pass over its weights.

        Raises:
            ClientError: if the loss or the new weights are not finite, or if the weights are too large or have another shape.
            ConfigurationError: if it has tensors that a part at the clients does not cover.
        """
        if update.snapshot.moved:
            refuse_moved(update.snapshot.moved, self._fixed)
        who = f"Client {self._name_of(update.client)} (of {update.num_examples} examples) in round {update.round_idx}"
        state, largest = update.snapshot.vector, self.model.max_abs_weight
        if state.shape != (self._length,) or not state.is_floating_point():
            raise ClientError(
                f"{who}: it sent {state.dtype} of shape {tuple(state.shape)}, but the model has {self._length} weights. Do not "
                "change the network's layers in 'training_step' or in callbacks."
            )
        for name, tensor in update.snapshot.moved.items():
            if name not in self._extremes and tensor.is_floating_point() and not math.isfinite(magnitude(widened(tensor))):
                raise ClientError(f"{who}: its '{name}' is not finite. Lower its learning rate, or check its data.")
        parameters, reach = self._compared
        moved = distance(parameters, state)
        measured = replace(update, update_norm=moved if math.isfinite(moved) else None)
        if self.model.tolerates_broken:
            return measured
        remedy = "Lower its learning rate, clip with 'federation.local.gradient_clip_val', or check its data."
        if update.train_loss is not None and not math.isfinite(update.train_loss):
            raise ClientError(f"{who}: the training loss is {update.train_loss}, but it must be finite. {remedy}")
        if math.isfinite(moved) and reach + 1.01 * moved <= largest and math.isfinite(magnitude(state[self.size :])):
            return measured  # no single weight has moved further than the norm
        low, high = map(float, torch.aminmax(state)) if self._length else (0.0, 0.0)
        if not (math.isfinite(low) and math.isfinite(high)):  # aminmax propagates NaN
            raise ClientError(f"{who}: the weights that it sent are not finite. {remedy}")
        extreme = magnitude(state[: self.size])  # buffers may be larger
        if extreme > largest:
            raise ClientError(
                f"{who}: it sent a weight of {extreme:.3g}, which is too large to be summed (above {largest:.3g}). {remedy}"
            )
        return measured
