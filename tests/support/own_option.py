"""Options from outside the package; of the first, clients drop a share of their numbers, and the log says how many."""

from collections import Counter
from dataclasses import replace
from typing import Any

import torch
from lightning.pytorch import Callback

from fl_lightning import ClientHooks, ClientUpdate, ConfigurationError, Option, ServerHooks
from fl_lightning.core import ClientContext, ServerContext
from fl_lightning.functional.seeding import generator
from fl_lightning.server.aggregate import RoundSums


class DropNumbers(Option):
    """Set a random share of each change to 0.

    Args:
        share: the share, from 0 to 1.
    """

    def __init__(self, share: float = 0.5) -> None:
        if not 0 <= share <= 1:
            raise ConfigurationError(f"'federation.options.share' must be from 0 to 1, but is {share}. Try 0.5.")
        self.share = share

    def at_server(self, context: ServerContext) -> ServerHooks:
        return Counts()

    def at_clients(self, context: ClientContext) -> ClientHooks:
        return Drops(self.share, context)


class Drops(ClientHooks):
    def __init__(self, share: float, context: ClientContext) -> None:
        self.share, self.context = share, context

    def begin(self, round_idx: int, editor: Any) -> None:
        self.round_idx, self.editor = round_idx, editor

    def send(self, update: ClientUpdate) -> ClientUpdate:
        draw = generator(self.context.seed, self.round_idx, update.client, "dropped")
        gone = torch.rand(self.editor.size, generator=draw) < self.share
        kept = self.context.kept(update.client)
        kept["times"] = kept.get("times", torch.zeros(1)) + 1
        change = self.editor.change(update).masked_fill(gone, 0)
        return replace(
            self.editor.replaced(update, change),
            metrics={**update.metrics, "dropped": float(gone.sum()), "times": float(kept["times"])},
        )


class Counts(ServerHooks):
    def __init__(self) -> None:
        self.total = 0

    def after_round(self, federation: Any, round_idx: int, result: Any) -> dict[str, float]:
        self.total += round(sum(update.metrics["dropped"] for update in result.updates))
        return {"dropped_so_far": float(self.total)}

    def state_dict(self) -> dict[str, Any]:
        return {"total": self.total}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.total = state["total"]


class Hooked(Option, ServerHooks):
    """An option that is its own half at the server."""

    def at_server(self, context: ServerContext) -> ServerHooks:
        return self


class Sums(Hooked):
    """An option that adds up updates itself."""

    def round_sums(self, federation: Any, round_idx: int, plan: Any, examples: Any) -> RoundSums:
        return RoundSums(federation, examples)


class PlansRounds(Hooked):
    """An option that plans rounds as they are."""

    def sampler(self, sampler: Any) -> Any:
        return sampler


class CountBatches(Hooked, ClientHooks, Callback):
    """Count the clients' batches where they train, and compare them with the plan at the server."""

    def __init__(self) -> None:
        self.charged: list[list[int]] = []
        self.found: dict[int, int] = {}
        self.told: Counter[int] = Counter()

    def at_server(self, context: ServerContext) -> ServerHooks:
        assert context.settings.active_options == (self,)
        return self

    def at_clients(self, context: ClientContext) -> ClientHooks:
        return self

    @property
    def callbacks(self) -> list[Callback]:
        return [self]

    def batches(self, task: Any, data: Any, full_batch: bool) -> None:
        self.client = task.client

    def on_train_batch_end(self, *args: Any) -> None:
        self.found[self.client] = self.found.get(self.client, 0) + 1

    def counts(self) -> dict[str, dict[int, int]]:
        found, self.found = self.found, {}
        return {"batches": found}

    def charge(self, federation: Any, round_idx: int, plan: Any, tasks: Any) -> None:
        assert not self.found
        self.charged.append([task.client for task in tasks])

    def drained(self, federation: Any, round_idx: int, updates: Any) -> list[ClientUpdate]:
        self.told.update(federation.pool.counts()["batches"])
        return [replace(update, metrics={"mine": 1.0}) for update in updates]
