"""Count the releases of one round before it trains, and correct the count afterwards."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from torch import Tensor

from fl_lightning.functional.spending import Entry
from fl_lightning.messages import ClientJob
from fl_lightning.server.federation import Federation
from fl_lightning.server.sampling import RoundPlan


class RoundPrivacy:
    """Charge a round's releases to the account.

    Releases are charged in advance, so a kill mid-round may leave some charged that did not happen. At its end, a round
    refunds unused charges (failed clients, steps that were not made), and also charges failed attempts.

    Args:
        federation: the parts of the federation.
        round_idx: the communication round, from 0.
        plan: the plan of the round.
    """

    def __init__(self, federation: Federation, round_idx: int, plan: RoundPlan) -> None:
        self._federation, self._round_idx, self._plan = federation, round_idx, plan
        self._account = federation.privacy
        self._planned: dict[str, Counter[int]] = {"sent": Counter(), "steps": Counter()}

    def charge(self, jobs: Sequence[ClientJob]) -> None:
        """Charge the releases of turns in advance; call it on every rank, before any client trains.

        Args:
            jobs: the turns of all ranks in one period.
        """
        account, parts = self._account, self._federation
        if not account.active or not jobs:
            return
        entry: Entry = {"round": self._round_idx, "period": jobs[0].period}
        if account.clients is not None and account.clients.noise == "central":
            entry["drawn"] = self._plan.drawn
        elif account.clients is not None:
            entry["sent"] = {job.client: 1 for job in jobs}
        if account.examples is not None:
            plans = {job.client: self._steps(job) for job in jobs}
            entry["steps"] = {client: steps * (1 + parts.faults.retries) for client, (steps, _) in plans.items()}
            entry["rates"] = {client: rate for client, (_, rate) in plans.items()}
        for name, planned in self._planned.items():
            planned.update(entry.get(name, {}))
        account.charge(parts.trainer, entry)

    def settle(self) -> None:
        """Correct the charges to the actual releases; call it on every rank, after all clients have trained."""
        if not any(self._planned.values()):
            return
        everyone = self._federation.comm.gather(self._federation.pool.releases())
        difference: Entry = {}
        for name, planned in self._planned.items():
            change = Counter({client: -count for client, count in planned.items()})
            for theirs in everyone:
                change.update(theirs[name] if planned else {})
            if any(change.values()):
                difference[name] = {client: count for client, count in sorted(change.items()) if count}
        if difference:
            self._account.charge(self._federation.trainer, {"round": self._round_idx, **difference})

    def _steps(self, job: ClientJob) -> tuple[int, float]:
        """Return the number of steps in a client's fit, and the rate at which they sample examples."""
        local, data = self._federation.local, self._federation.data
        batches = data.poisson_batches(job.client, local.full_batch, _never)
        steps = local.steps(len(batches), job.epochs) / job.slowness
        quick: bool = self._federation.trainer.fast_dev_run  # type: ignore[attr-defined]
        return 1 if quick else max(1, int(steps)), batches.rate


def _never(batch: int, count: int) -> Tensor:
    raise AssertionError("These batches are counted, not drawn.")
