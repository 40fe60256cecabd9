"""Read and replace the change of the parameters in clients' updates."""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor

from fl_lightning.clients.failures import UpdateCheck
from fl_lightning.functional.blocks import blocks
from fl_lightning.functional.exact_sum import to_float64
from fl_lightning.functional.sums import Grid
from fl_lightning.messages import ServerModel
from fl_lightning.types import ClientUpdate


class UpdateEditor:
    """Read and replace changes of one published model.

    Args:
        check: the check that refuses updates that cannot be aggregated.
    """

    def __init__(self, check: UpdateCheck) -> None:
        self._check, self.size = check, check.num_parameters

    @property
    def model(self) -> ServerModel:
        """Return the published model."""
        return self._check.server

    @property
    def state(self) -> Tensor:
        """Return its parameters and averaged buffers, shape (d,)."""
        return self._check.server_vector()

    def grid(self, largest: float | None) -> Grid | None:
        """Return the grid on which such models are summed; see :meth:`ModelState.grid`."""
        return self._check.grid(largest)

    @property
    def counters(self) -> Tensor:
        """Return its integer and boolean buffers, int64, shape (c,)."""
        return self._check.server_counters()

    @cached_property
    def start(self) -> Tensor:
        """Return the parameters of the published model, float64, shape (p,)."""
        return to_float64(self._check.server_vector()[: self.size])

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
        return self._check(update.with_state(moved))
