"""Start with a cyclic phase, then switch to another route."""

from __future__ import annotations

from fl_lightning.core.capabilities import ResumeRule
from fl_lightning.errors import require
from fl_lightning.routes.base import Cohort, Route
from fl_lightning.routes.fedcyclic import FedCyclic
from fl_lightning.routes.server import ServerRoute


class WarmStart(Route):
    """Run Fed-Cyclic for some rounds, then another route, so that early models, which differ most, are not averaged.

    The strategy starts when the warm start ends.

    Args:
        rounds: the number of rounds of the cyclic phase, >= 1.
        route: the route afterwards, not one on which clients keep their own models, such as LocalOnly or Mocha;
            :class:`~fl_lightning.ServerRoute` by default.

    Raises:
        ConfigurationError: if a value is outside its range, or if clients keep their own models on ``route``.
    """

    on_resume = ResumeRule(stays="route")

    def __init__(self, rounds: int = 3, route: Route | None = None) -> None:
        require(rounds >= 1, "federation.route.rounds", "1 or above", rounds)
        keeps = route is not None and route.keeps_models
        require(not keeps, "federation.route.route", "a route that aggregates", type(route).__name__)
        self.rounds = rounds
        self.route = route or ServerRoute()
        self.needs_all_clients = True
        self.passes_models = self.route.passes_models
        self.single_model = self.route.single_model
        self.needs_labels = self.route.needs_labels
        self.server_metric, self.client_metric = self.route.server_metric, self.route.client_metric
        self.reads_data = self.route.reads_data
        self._first = FedCyclic()

    @property
    def bypasses_server(self) -> bool:
        """Return True: the cyclic rounds bypass the server."""
        return True

    def side_by_side(self, clients: int) -> int:
        """Return the number of the route that follows; in the cyclic phase, one client trains at a time."""
        return self.route.side_by_side(clients)

    def turns_before(self, round_idx: int) -> int:
        """Return one turn for each round of the warm start, and then those of the other route."""
        first = min(round_idx, self.rounds)
        return first + self.route.turns_before(round_idx) - self.route.turns_before(first)

    def run(self, cohort: Cohort) -> None:
        """Run one round; see :meth:`Route.run`."""
        (self._first if cohort.round_idx < self.rounds else self.route).run(cohort)
