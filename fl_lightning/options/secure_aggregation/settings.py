"""Secure aggregation: the server learns the sum of the clients' updates and no single one (Bonawitz et al. 2017)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from fl_lightning.core.capabilities import Capability, Need, Removal
from fl_lightning.core.federation import ServerContext
from fl_lightning.core.option import ClientContext, ClientHooks, OptionSettings, ServerHooks
from fl_lightning.errors import ConfigurationError, require
from fl_lightning.functional.model_state import ModelState
from fl_lightning.utilities.argument_types import checks_types

_NAME = "'federation.secure_aggregation'"
_REMOVE = f"remove {_NAME}"
_COUNTS = "num_batches_tracked"
"""The counts of batches of BatchNorm, which follow from the numbers of steps."""


@checks_types
@dataclass(frozen=True)
class SecureAggregation(OptionSettings):
    """Mask what clients send. The masks cancel in the sum exactly, so a run has the bits of the same run without them.

    Every two clients of a cohort agree on a mask that one adds and the other subtracts, and each client adds one of its own.
    The keys are shared among the cohort, so that the masks of clients that drop out can be removed if enough clients remain.
    Losses are summed under masks, too; metrics that modules log in training, norms and times of single clients are not sent.

    Args:
        threshold: the share of the cohort that must deliver, above 2/3 and at most 1; fewer clients together learn nothing.
            It is rounded up to whole clients: 3 of 3, 3 of 4, 7 of 10 by default.

    Raises:
        ConfigurationError: for a value outside its range.
    """

    threshold: float = 0.67

    setting = "secure_aggregation"
    at_sites = True
    seals = True
    protects = True

    def __post_init__(self) -> None:
        require(
            2 / 3 < self.threshold <= 1, "federation.secure_aggregation.threshold", "above 2/3 and at most 1", self.threshold
        )

    def needs(self) -> Iterator[Need]:
        """Return what masks need: clients that are there together."""
        why = f"{_NAME} lets the clients of a round agree on masks"
        yield Need(Capability.WHOLE_ROUNDS, why, _REMOVE.capitalize())
        yield Need(Capability.FIXED_TENSORS, f"{_NAME} does not cover such tensors", _REMOVE.capitalize())

    def removes(self) -> Iterator[Removal]:
        """Return what masks take away: the server sees neither single updates nor single figures."""
        yield Removal(Capability.SINGLE_UPDATES, f"with {_NAME} the server only learns the sum of the models", _REMOVE)
        yield Removal(Capability.SINGLE_FIGURES, f"with {_NAME} the server learns no figure of a single client", _REMOVE)

    def check_sent(self, sent: ModelState) -> None:
        """Refuse whole numbers in the model, which are not added but compared, so that each client's would be seen.

        Raises:
            ConfigurationError: naming one that does not count batches.
        """
        counters = sent.names()[2]
        other = next((name for name in counters if name.rpartition(".")[2] != _COUNTS), "")
        if other:
            raise ConfigurationError(
                f"The module has a buffer '{other}' of whole numbers, which cannot be added under masks. Let each client keep "
                f"it ('client_state'), make it a floating-point buffer, or {_REMOVE}."
            )

    def at_server(self, context: ServerContext) -> ServerHooks:
        """Return the hooks at the server."""
        from fl_lightning.options.secure_aggregation.at_server import MasksAtServer

        least = f"2 clients or more with {_NAME}, because the sum over one client is its update"
        require(context.cohort >= 2, "federation.clients_per_round", least, context.cohort)
        return MasksAtServer(self.setting, self.threshold)

    def at_clients(self, context: ClientContext) -> ClientHooks:
        """Return the hooks where clients train."""
        from fl_lightning.options.secure_aggregation.at_clients import MasksAtClients

        return MasksAtClients(context)
