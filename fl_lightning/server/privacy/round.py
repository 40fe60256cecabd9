"""What one round releases, counted before it trains and corrected when it is known."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from torch import Tensor

from fl_lightning.collectives import gather
from fl_lightning.functional.spending import Entry
from fl_lightning.routes.base import Chains
from fl_lightning.server.federation import Federation
from fl_lightning.server.sampling import RoundPlan


class RoundPrivacy:
    """Charges a round's releases.

    A kill in the middle of a round finds them charged already, although some were not released. What a round that ends did
    not use (clients that failed, steps that were not done) is given back, and attempts that failed are charged, too.

    Args:
        federation: what stays.
        round_idx: from 0.
        draw: who takes part.
    """

    def __init__(self, federation: Federation, round_idx: int, draw: RoundPlan) -> None:
        self._federation, self._round_idx, self._draw = federation, round_idx, draw
        self._account = federation.privacy
        self._planned: dict[str, Counter[int]] = {"sent": Counter(), "steps": Counter()}

    def charge(self, chains: Chains, period: int) -> None:
        """Count what training these clients will release; on every rank, before any of them trains.

        Args:
            chains: of all ranks.
            period: from 0.
        """
        account, parts = self._account, self._federation
        if not account.active:
            return
        clients = [client for chain in chains for client in chain]
        entry: Entry = {"round": self._round_idx, "period": period}
        if account.clients is not None and account.clients.noise == "central":
            entry["drawn"] = self._draw.drawn
        elif account.clients is not None:
            entry["sent"] = dict.fromkeys(clients, 1)
        if account.examples is not None:
            plans = {client: self._plan(client) for client in clients}
            entry["steps"] = {client: steps * (1 + parts.faults.retries) for client, (steps, _) in plans.items()}
            entry["rates"] = {client: rate for client, (_, rate) in plans.items()}
        for name, planned in self._planned.items():
            planned.update(entry.get(name, {}))
        account.charge(parts.trainer, entry)

    def settle(self, sent: Mapping[int, int]) -> None:
        """Count what was released in truth; on every rank, when all have trained.

        Args:
            sent: noisy messages of this rank's clients.
        """
        if not any(self._planned.values()):
            return
        private = self._federation.local.private
        mine = {"sent": dict(sent), "steps": {} if private is None else private.take()}
        everyone = gather(self._federation.trainer, mine)
        difference: Entry = {}
        for name, planned in self._planned.items():
            change = Counter({client: -count for client, count in planned.items()})
            for theirs in everyone:
                change.update(theirs[name] if planned else {})
            if any(change.values()):
                difference[name] = {client: count for client, count in sorted(change.items()) if count}
        if difference:
            self._account.charge(self._federation.trainer, {"round": self._round_idx, **difference})

    def _plan(self, client: int) -> tuple[int, float]:
        """Return the steps of a client's fit, and the rate at which they draw examples."""
        local, draw = self._federation.local.local, self._draw
        batches = self._federation.data.client_datasets.poisson_batches(client, local.full_batch, _never)
        steps = local.steps(len(batches), draw.epochs.get(client)) / draw.slowness.get(client, 1.0)
        quick: bool = self._federation.trainer.fast_dev_run  # type: ignore[attr-defined]
        return 1 if quick else max(1, int(steps)), batches.rate


def _never(batch: int, count: int) -> Tensor:
    raise AssertionError("These batches are counted, not drawn.")
