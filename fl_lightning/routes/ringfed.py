"""Mix each client with its neighbour on a ring (Yang et al. 2021; Fed-Cyclic and Fed-Star thesis, section 3.3.2)."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from fl_lightning.errors import require
from fl_lightning.routes.base import Cohort
from fl_lightning.routes.periods import PeriodRoute, ring_matrix
from fl_lightning.types import ClientUpdate


class RingFed(PeriodRoute):
    """Run P periods; between them, client k mixes (1 - gamma) of its own model with gamma of client k - 1's.

    The server receives models once per P trainings. The ring follows the order of the clients' ids.

    Args:
        periods: the number of periods P, >= 1; one period is averaging without a ring.
        gamma: the neighbour's weight, in [0, 1]; the thesis finds 0.8 best.
    """

    def __init__(self, periods: int = 2, gamma: float = 0.8) -> None:
        super().__init__(periods)
        require(0 <= gamma <= 1, "federation.route.gamma", "from 0 to 1", gamma)
        self.gamma = gamma

    def mixing(self, cohort: Cohort, updates: Sequence[ClientUpdate], period: int) -> Tensor | None:
        """Return the mixing matrix; see :meth:`PeriodRoute.mixing`. None after the last period."""
        return ring_matrix(len(updates), self.gamma) if period + 1 < self.periods else None
