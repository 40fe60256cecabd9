"""SCAFFOLD: control variates against client drift (Karimireddy et al. 2020, Algorithm 1, option II)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fl_lightning.functional.exact_sum import magnitude, wide
from fl_lightning.functional.sums import Grid, Sums
from fl_lightning.strategies.base import ModelGrid, RunningStrategy
from fl_lightning.types import ClientUpdate, RoundStart

_ROOM = 64.0
"""How much larger than c its change may be until a second integer is needed for it."""


class Scaffold(RunningStrategy):
    """Clients step along ``g - c_k + c``; ``w_{t+1} = w_t + mean(y_k - w_t)`` and ``c <- c + sum(c_k+ - c_k) / N``.

    c_k estimates client k's gradient and c the mean of all N clients'; both start at 0, and the clients' stay with them
    over rounds and in checkpoints. The clients' optimizer must be plain SGD. A client receives and sends twice the
    parameters.
    """

    needs_own_training = True
    averages = True

    def __init__(self) -> None:
        self._control: Tensor | None = None

    def start_round(self, start: RoundStart) -> None:
        """In the first round, c = 0."""
        self._num_clients = start.num_clients
        device = wide(start.server_state[:0]).device
        if self._control is None:
            self._control = torch.zeros(start.num_parameters, dtype=torch.float64, device=device)
        self._control = self._control.to(device)

    def reset(self) -> None:
        """c = 0."""
        self._control = None

    @property
    def control(self) -> Tensor | None:
        """c, float64, shape (p,)."""
        return self._control

    def largest_weight(self, examples: Sequence[int]) -> float:
        """Every client's, 1."""
        return 1.0

    def grids(self, examples: Sequence[int], model_grid: ModelGrid) -> dict[str, Grid]:
        """Those of the models; changes of control variates are expected to be of the size of c, once that is not 0."""
        size = 0.0 if self._control is None else magnitude(self._control)
        control = {"control": Grid(((len(self._control), _ROOM * size),), 1.0)} if self._control is not None and size else {}
        return super().grids(examples, model_grid) | control

    def take_in(self, update: ClientUpdate, sums: Sums) -> float:
        """See :meth:`RunningStrategy.take_in`. Every client of the cohort weighs 1."""
        assert update.state is not None
        assert update.control is not None
        sums.add("state", update.state)
        sums.add("control", update.control)
        sums.add("clients", 1.0)
        return 1.0

    def aggregate(self, sums: Sums) -> Tensor:
        """The mean state; c moves too."""
        assert self._control is not None
        self._control = sums.take("control").to(self._control.device).div_(self._num_clients).add_(self._control)
        return sums.take("state").div_(sums.scalar("clients"))

    def state_dict(self) -> dict[str, Any]:
        """c."""
        return {} if self._control is None else {"control": self._control.cpu()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take c back."""
        self._control = state.get("control")
