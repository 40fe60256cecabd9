"""Simulated secure aggregation: the server learns the sum of the clients' messages and no single one (Bonawitz et al. 2017)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from fl_lightning.core.capabilities import Capability, Need, Removal
from fl_lightning.core.hooks import ServerContext, ServerHooks
from fl_lightning.core.option import OptionSettings
from fl_lightning.core.resume_rule import ResumeRule
from fl_lightning.errors import require
from fl_lightning.utilities.argument_types import checks_types

_NAME = "'federation.secure_aggregation'"
_REMOVE = f"remove {_NAME}"


@checks_types
@dataclass(frozen=True)
class SecureAggregation(OptionSettings):
    """Mask what clients send. The masks cancel in the sum exactly; a run without them may round its sums a little more.

    Every two clients of a cohort agree on a mask that one adds and the other subtracts, and each client adds one of its own.
    The keys are shared among the cohort, so that the masks of clients that drop out can be removed if enough clients remain.

    Args:
        threshold: share of the cohort that must deliver, above 0.5 and at most 1, rounded up to at least two clients; fewer
            clients together learn nothing.

    Raises:
        ConfigurationError: for a value outside its range.
    """

    threshold: float = 0.6

    setting = "secure_aggregation"
    simulated_only = True
    protects = True
    on_resume = ResumeRule(on_purpose="threshold")

    def __post_init__(self) -> None:
        require(0.5 < self.threshold <= 1, "federation.secure_aggregation.threshold", "above 0.5 and at most 1", self.threshold)

    def needs(self) -> Iterator[Need]:
        """Return what masks need: clients that are there together."""
        why = f"{_NAME} lets the clients of a round agree on masks"
        yield Need(Capability.WHOLE_ROUNDS, why, _REMOVE.capitalize())
        yield Need(Capability.FIXED_TENSORS, f"{_NAME} does not cover such tensors", _REMOVE.capitalize())

    def removes(self) -> Iterator[Removal]:
        """Return what masks take away: the server does not see single updates."""
        yield Removal(Capability.SINGLE_UPDATES, f"with {_NAME} the server only learns the sum of the models", _REMOVE)

    def least(self, cohort: int) -> int:
        """Return the number of clients of a cohort that must deliver."""
        return max(2, math.ceil(self.threshold * cohort - 1e-9))

    def at_server(self, context: ServerContext) -> ServerHooks:
        """Return the hooks at the server."""
        from fl_lightning.options.secure_aggregation.server import MasksAtServer

        least = f"2 clients or more with {_NAME}, because the sum over one client is its update"
        require(context.cohort >= 2, "federation.clients_per_round", least, context.cohort)
        return MasksAtServer(self.least)
