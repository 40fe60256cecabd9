"""The star of federated averaging: server to clients to server (McMahan et al. 2017)."""

from __future__ import annotations

from fl_lightning.routes.base import Cohort, Route


class ServerRoute(Route):
    """Every client trains from w_t and sends its model to the server, which keeps none longer than it must."""

    def run(self, cohort: Cohort) -> None:
        """See :meth:`Route.run`."""
        cohort.deliver([[client] for client in cohort.clients])
