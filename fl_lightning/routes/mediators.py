"""Astraea's mediators: groups of clients that are balanced together (Duan et al. 2019; survey, section III-C)."""

from __future__ import annotations

from fl_lightning.errors import require
from fl_lightning.functional.grouping import balanced_groups
from fl_lightning.routes.base import Cohort, Route


class Mediators(Route):
    """Clients of a group train one after another, groups side by side; the strategy gets one model per group.

    Groups are formed greedily each round, so that their labels together are nearest to uniform. Astraea also augments
    rare classes at the clients: ``data.rebalancing: LabelAveraging`` with a transform.

    Args:
        clients_per_mediator: >= 1; 1 is averaging without mediators.
    """

    passes_models = True
    needs_labels = True
    reads_data = True

    def __init__(self, clients_per_mediator: int = 3) -> None:
        require(clients_per_mediator >= 1, "federation.route.clients_per_mediator", "1 or above", clients_per_mediator)
        self.clients_per_mediator = clients_per_mediator

    def run(self, cohort: Cohort) -> None:
        """See :meth:`Route.run`."""
        groups = balanced_groups(cohort.label_counts(), self.clients_per_mediator)
        cohort.deliver([[cohort.clients[position] for position in group] for group in groups])
