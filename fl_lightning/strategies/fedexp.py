"""Choose the server's step from the clients' agreement, as FedExP does (Jhunjhunwala et al. 2023, eq. 3)."""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from fl_lightning.errors import require
from fl_lightning.functional.exact_sum import to_float64
from fl_lightning.functional.spread import squared_distance
from fl_lightning.functional.sums import Sums
from fl_lightning.strategies.fedavg import FedAvg
from fl_lightning.types import ClientUpdate, RoundStart


class FedExP(FedAvg):
    """Extrapolate FedAvg's step: ``w_{t+1} = w_t + eta D`` with ``D = sum_k s_k D_k`` and ``D_k = w_k - w_t``.

    ``eta = max(1, sum_k s_k |D_k|^2 / (2 (|D|^2 + epsilon)))``: if the clients' changes point in different directions, their
    mean is short and the step is lengthened. With one client, or equal changes, it is FedAvg. Buffers are averaged.

    Args:
        epsilon: keeps the step bounded where the mean change vanishes, >= 0; in the unit of squared weights.
        weighting: the shares s_k, as in FedAvg; the paper uses ``uniform``.

    Example:
        >>> from fl_lightning import FederatedOrchestrator, FedExP
        >>> federation = FederatedOrchestrator(FedExP(weighting="examples"))
    """

    private_with: tuple[str, ...] = ("local", "examples")
    averages = False
    compares_clients = True

    def __init__(self, epsilon: float = 1e-3, weighting: Literal["examples", "uniform"] = "uniform") -> None:
        require(epsilon >= 0, "federation.strategy.epsilon", "0 or above", epsilon)
        super().__init__(weighting)
        self.epsilon = epsilon
        self._rate = 1.0

    def start_round(self, start: RoundStart) -> None:
        """Note w_t."""
        self._start = start.server_state[: start.num_parameters]

    def sum_sizes(self, size: int, parameters: int) -> dict[str, int]:
        """See :meth:`RunningStrategy.sum_sizes`."""
        return {"state": size, "weight": 1, "squares": 1}

    def accumulate(self, update: ClientUpdate, sums: Sums) -> float:
        """Add an update, and the square of its change."""
        weight = super().accumulate(update, sums)
        sums.add("squares", squared_distance(update.snapshot.vector[: len(self._start)], self._start), weight)
        return weight

    def aggregate(self, sums: Sums) -> Tensor:
        """Return the extrapolated average."""
        squares = sums.scalar("squares") / sums.scalar("weight")
        mean = super().aggregate(sums)
        start = to_float64(self._start).to(mean.device)
        step = mean[: len(start)] - start
        size = float(step.square().sum()) + self.epsilon
        self._rate = max(1.0, squares / (2 * size)) if size else 1.0
        mean[: len(start)] = start + self._rate * step
        return mean

    def figures(self) -> dict[str, float]:
        """Return eta as ``server_rate``."""
        return {"server_rate": self._rate}
