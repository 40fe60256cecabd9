"""Train one client after another (Fed-Cyclic and Fed-Star thesis, section 3.2, Algorithm 1)."""

from __future__ import annotations

from fl_lightning.routes.base import Cohort, Route


class FedCyclic(Route):
    """Train client k + 1 from client k's result; the last client's result is w_{t+1}.

    The global model sees the clients' data like large batches. Skew between clients therefore does less harm than averaging
    models that drifted apart, but the last clients of a round count more. For label averaging (the thesis's Algorithm 3),
    set ``data.rebalancing: LabelAveraging``.
    """

    needs_all_clients = True
    sequential = True
    passes_models = True
    single_model = True

    def run(self, cohort: Cohort) -> None:
        """Run one round; see :meth:`Route.run`."""
        updates = cohort.train([cohort.clients])
        cohort.conclude(updates, updates[-1])
