"""Correct client drift by control variates, as SCAFFOLD does (Karimireddy et al. 2020, Algorithm 1, option II)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fl_lightning.functional.exact_sum import magnitude, to_float64
from fl_lightning.functional.sums import Grid, Sums
from fl_lightning.rules.base import ClientRule
from fl_lightning.rules.control_variates import ControlVariates
from fl_lightning.strategies.base import ModelGrid, RunningStrategy
from fl_lightning.types import ClientUpdate, RoundStart

_ROOM = 64.0
"""How much larger than c its change may be before the sum needs a second integer."""


class Scaffold(RunningStrategy):
    """Correct client drift: clients step along ``g - c_k + c``; the server takes the mean model and updates c.

    The server's rules are ``w_{t+1} = w_t + mean(y_k - w_t)`` and ``c <- c + sum(c_k+ - c_k) / N``. c_k estimates client k's
    gradient, and c the mean of all N clients' gradients. Both start at 0. Each client keeps its c_k across rounds and in
    checkpoints. The clients' optimizer must be plain SGD. A client receives and sends twice the parameters.

    Example:
        >>> from fl_lightning import FederatedOrchestrator, Scaffold
        >>> federation = FederatedOrchestrator(Scaffold())
    """

    reads = ()
    private_with: tuple[str, ...] = ("examples",)
    needs_own_training = True
    averages = True
    clients_may_join = False

    def __init__(self) -> None:
        self._control: Tensor | None = None

    def start_round(self, start: RoundStart) -> None:
        """Set c to 0 in the first round."""
        self._num_clients = start.num_clients
        device = to_float64(start.server_state[:0]).device
        if self._control is None:
            # A view of one number: the first round's sums need the most memory, because their size is not known beforehand.
            self._control = torch.zeros((), dtype=torch.float64, device=device).expand(start.num_parameters)
        self._control = self._control.to(device)

    def reset(self) -> None:
        """Set c to 0."""
        self._control = None

    def broadcast(self) -> dict[str, Tensor]:
        """Return c as ``control``, float64, shape (p,)."""
        return {} if self._control is None else {"control": self._control}

    def client_rule(self) -> ClientRule:
        """Return the clients' half: steps along ``g - c_k + c``."""
        return ControlVariates()

    def largest_weight(self, examples: Sequence[int]) -> float:
        """Return every client's weight, 1."""
        return 1.0

    def grids(self, examples: Sequence[int], model_grid: ModelGrid) -> dict[str, Grid]:
        """Return the models' grids; changes of control variates are expected to be about the size of c, once c is not 0."""
        size = 0.0 if self._control is None else magnitude(self._control)
        control = {"control": Grid(((len(self._control), _ROOM * size),), 1.0)} if self._control is not None and size else {}
        return super().grids(examples, model_grid) | control

    def sum_sizes(self, size: int, parameters: int) -> dict[str, int]:
        """See :meth:`RunningStrategy.sum_sizes`."""
        return {"state": size, "control": parameters, "clients": 1}

    def accumulate(self, update: ClientUpdate, sums: Sums) -> float:
        """Add an update; see :meth:`RunningStrategy.accumulate`. Every client of the cohort weighs 1."""
        sums.add("state", update.snapshot.vector)
        sums.add("control", update.extras["control"])
        sums.add("clients", 1.0)
        return 1.0

    def aggregate(self, sums: Sums) -> Tensor:
        """Return the mean state, and update c."""
        assert self._control is not None
        self._control = sums.take("control").to(self._control.device).div_(self._num_clients).add_(self._control)
        return sums.take("state").div_(sums.scalar("clients"))

    def state_dict(self) -> dict[str, Any]:
        """Return c."""
        return {} if self._control is None else {"control": self._control.cpu()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore c."""
        self._control = state.get("control")
