"""Fed-Cyclic: one client after another (Fed-Cyclic and Fed-Star thesis, section 3.2, Algorithm 1)."""

from __future__ import annotations

from fl_lightning.routes.base import Cohort, Route


class FedCyclic(Route):
    """Client k + 1 trains from client k's result; the last one's result is w_{t+1}.

    The global model meets the clients' data like large batches, so that skew between them does less harm than averaging
    models that drifted apart; the last clients of the round count more. With label averaging (the thesis's Algorithm 3):
    ``data.rebalancing: LabelAveraging``.
    """

    needs_all_clients = True
    sequential = True
    passes_models = True
    single_model = True

    def run(self, cohort: Cohort) -> None:
        """See :meth:`Route.run`."""
        updates = cohort.train([cohort.clients])
        cohort.conclude(updates, updates[-1])
