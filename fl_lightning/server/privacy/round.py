"""What one round releases, counted before it trains and corrected when it is known."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from torch import Tensor

from fl_lightning.functional.spending import Entry
from fl_lightning.messages import ClientJob
from fl_lightning.server.federation import Federation
from fl_lightning.server.sampling import RoundPlan


class RoundPrivacy:
    """Charges a round's releases.

    A kill in the middle of a round finds them charged already, although some were not released. What a round that ends did
    not use (clients that failed, steps that were not done) is given back, and attempts that failed are charged, too.

    Args:
        federation: what stays.
        round_idx: from 0.
        plan: who takes part.
    """

    def __init__(self, federation: Federation, round_idx: int, plan: RoundPlan) -> None:
        self._federation, self._round_idx, self._plan = federation, round_idx, plan
        self._account = federation.privacy
        self._planned: dict[str, Counter[int]] = {"sent": Counter(), "steps": Counter()}

    def charge(self, jobs: Sequence[ClientJob]) -> None:
        """Count what these turns will release; on every rank, before any client trains.

        Args:
            jobs: of all ranks, of one period.
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
        """Count what was released in truth; on every rank, when all have trained."""
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
        """Return the steps of a client's fit, and the rate at which they draw examples."""
        local, data = self._federation.local, self._federation.data
        batches = data.poisson_batches(job.client, local.full_batch, _never)
        steps = local.steps(len(batches), job.epochs) / job.slowness
        quick: bool = self._federation.trainer.fast_dev_run  # type: ignore[attr-defined]
        return 1 if quick else max(1, int(steps)), batches.rate


def _never(batch: int, count: int) -> Tensor:
    raise AssertionError("These batches are counted, not drawn.")
