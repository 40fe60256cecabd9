"""Connect server and clients as a star, as in federated averaging (McMahan et al. 2017)."""

from __future__ import annotations

from collections.abc import Iterator

from fl_lightning.core.capabilities import Need
from fl_lightning.routes.base import Cohort, Route


class ServerRoute(Route):
    """Train every client from w_t and send its model to the server, which keeps no model longer than necessary."""

    def needs(self) -> Iterator[Need]:
        """Return what the route needs: nothing; a subclass may let clients wait for each other."""
        if type(self) is not ServerRoute:
            yield from super().needs()

    def run(self, cohort: Cohort) -> None:
        """Run one round; see :meth:`Route.run`."""
        cohort.deliver([[client] for client in cohort.clients])
