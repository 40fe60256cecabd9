"""Clients that do less work than asked (FedProx, Li et al. 2020, section 5.2)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import torch

from fl_lightning.core.capabilities import Capability, Need, Removal
from fl_lightning.core.federation import Federation, ServerContext
from fl_lightning.core.option import OptionSettings, ServerHooks
from fl_lightning.errors import require
from fl_lightning.functional.seeding import generator
from fl_lightning.messages import ClientTask
from fl_lightning.utilities.argument_types import checks_types

if TYPE_CHECKING:
    from fl_lightning.core.plan import RoundPlan
    from fl_lightning.types import RoundResult

_NAME = "federation.local.partial_work"


@checks_types
@dataclass(frozen=True)
class PartialWork(OptionSettings):
    """Give a share of each round's clients, drawn anew, fewer local epochs: a number from 1 to E - 1, drawn uniformly.

    Args:
        share: share of the cohort in [0, 1]; round(share * m) of its m clients are stragglers.
        stragglers: ``keep`` the work of stragglers, as FedProx does, or ``drop`` them from the round, as FedAvg does.

    Raises:
        ConfigurationError: for a share outside its range, or if every client would be dropped.
    """

    share: float = 0.0
    stragglers: Literal["keep", "drop"] = "keep"

    setting = "local.partial_work"

    def __post_init__(self) -> None:
        require(0 <= self.share <= 1, f"{_NAME}.share", "from 0 to 1", self.share)

    @property
    def active(self) -> bool:
        """Return whether any client does less."""
        return self.share > 0

    @property
    def drops(self) -> bool:
        """Whether a cohort loses clients."""
        return self.share > 0 and self.stragglers == "drop"

    def needs(self) -> Iterator[Need]:
        """Return what ends a client's work: a round that does not wait longer."""
        yield Need(Capability.COHORTS, f"'{_NAME}' needs rounds whose end is the end of every client's work", "Remove it")

    def removes(self) -> Iterator[Removal]:
        """Return what rounds lose whose stragglers are dropped."""
        if self.drops:
            why = f"'{_NAME}' drops stragglers"
            yield Removal(Capability.EVERY_CLIENT, why, f"keep the stragglers of '{_NAME}'")

    def at_server(self, context: ServerContext) -> ServerHooks:
        """Return the hooks at the server.

        Raises:
            ConfigurationError: if less than one epoch would be left to train, or no client in a round.
        """
        epochs, size = context.settings.local.max_epochs, context.cohort
        require(epochs >= 2, "federation.local.max_epochs", "2 or above, since 'partial_work' lets some do fewer", epochs)
        if self.drops:
            left = size - round(self.share * size)
            wanted = f"a share that leaves at least one of the round's {size} clients"
            require(left >= 1, f"{_NAME}.share", wanted, self.share)
        return Stragglers(self, epochs)

    def epochs(self, cohort: Sequence[int], epochs: int, seed: int, round_idx: int) -> dict[int, int]:
        """Return the local epochs of this round's stragglers, by client; they depend only on (seed, round_idx)."""
        draw = generator(seed, round_idx, "partial work")
        order = torch.randperm(len(cohort), generator=draw).tolist()[: round(self.share * len(cohort))]
        return {cohort[position]: int(torch.randint(1, epochs, (1,), generator=draw)) for position in order}


class Stragglers(ServerHooks):
    """Let the stragglers of a round do fewer epochs, or drop them.

    Args:
        settings: who they are.
        epochs: the local epochs of the other clients.
    """

    def __init__(self, settings: PartialWork, epochs: int) -> None:
        self._settings, self._whole = settings, epochs
        self._epochs: Mapping[int, int] = {}

    def plan(self, plan: RoundPlan) -> RoundPlan:
        """Draw the round's stragglers from its cohort."""
        self._epochs = self._settings.epochs(plan.cohort, self._whole, plan.seed, plan.round_idx)
        gone = self._epochs if self._settings.drops else ()
        return replace(plan, clients=tuple(client for client in plan.clients if client not in gone))

    def task(self, task: ClientTask) -> ClientTask:
        """Give a straggler its epochs."""
        epochs = self._epochs.get(task.client)
        return task if epochs is None else replace(task, epochs=epochs)

    def after_round(self, federation: Federation, round_idx: int, result: RoundResult) -> dict[str, float]:
        """Return the number of stragglers."""
        return {"stragglers": float(len(self._epochs))}
