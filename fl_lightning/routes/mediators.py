"""Group clients under Astraea's mediators so that each group is balanced (Duan et al. 2019; survey, section III-C)."""

from __future__ import annotations

from fl_lightning.errors import require
from fl_lightning.functional.grouping import balanced_groups
from fl_lightning.routes.base import Cohort, Route


class Mediators(Route):
    """Train the clients of a group one after another, groups side by side; the strategy gets one model per group.

    Each round forms groups greedily, so that the labels of a group are as close to uniform as possible. Astraea also
    augments rare classes at the clients: set ``data.rebalancing: LabelAveraging`` with a transform.

    Args:
        clients_per_mediator: the size of a group, >= 1; 1 is averaging without mediators.
    """

    passes_models = True
    needs_labels = True
    reads_data = True

    def __init__(self, clients_per_mediator: int = 3) -> None:
        require(clients_per_mediator >= 1, "federation.route.clients_per_mediator", "1 or above", clients_per_mediator)
        self.clients_per_mediator = clients_per_mediator

    def side_by_side(self, clients: int) -> int:
        """Return the number of groups."""
        return -(-clients // self.clients_per_mediator)

    def run(self, cohort: Cohort) -> None:
        """Run one round; see :meth:`Route.run`."""
        groups = balanced_groups(cohort.label_counts(), self.clients_per_mediator)
        cohort.deliver([[cohort.clients[position] for position in group] for group in groups])
