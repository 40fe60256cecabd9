"""An option from outside the package: clients drop a random share of their update's numbers, and the log says how many."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from fl_lightning import ClientHooks, ClientUpdate, ConfigurationError, Option, ServerHooks
from fl_lightning.core import ClientContext, ServerContext
from fl_lightning.functional.seeding import generator


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
