"""The settings of asynchronous rounds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from fl_lightning.core.capabilities import Capability, Need, Removal
from fl_lightning.core.federation import ServerContext
from fl_lightning.core.option import OptionSettings, ServerHooks
from fl_lightning.errors import require
from fl_lightning.utilities.argument_types import checks_types

_NAME = "federation.asynchronous."
_WHAT = "'federation.asynchronous'"


@checks_types
@dataclass(frozen=True)
class Asynchronous(OptionSettings):
    """Aggregate whenever a number of updates has arrived: from sites, or on the clock of ``federation.availability``.

    ``concurrency`` clients train at the same time, each from the newest model at its start. When one ends, its update goes to
    the server's buffer, and another client starts. Each time the buffer is full, its updates become a new model: that is one
    epoch of the Trainer. A client starts at most once from the same model: after its update it waits for the next one.

    Args:
        concurrency: clients that train at the same time, instead of ``federation.clients_per_round``: a float in (0, 1] is a
            fraction of the clients, an int their number.
        buffer: the number of updates in a new model, >= 1; FedBuff's K. FedAsync needs 1.
        replay: the ``arrivals.jsonl`` of a run with sites, which a simulation then repeats to the bit; None for no such run.

    Raises:
        ConfigurationError: for a value outside its range.
    """

    concurrency: int | float = 1.0
    buffer: int = 1
    replay: str | None = None

    setting = "asynchronous"
    at_sites = True
    own_pace = True

    def __post_init__(self) -> None:
        whole = isinstance(self.concurrency, int)
        fits = self.concurrency >= 1 if whole else 0 < self.concurrency <= 1
        wanted = "a fraction above 0 and at most 1.0, or a whole number of clients"
        require(fits, _NAME + "concurrency", wanted, self.concurrency)
        whole = isinstance(self.buffer, int)
        require(whole and self.buffer >= 1, _NAME + "buffer", "a whole number of 1 or above", self.buffer)

    def needs(self) -> Iterator[Need]:
        """Return what such rounds need of training."""
        yield Need(Capability.FIXED_TENSORS, f"{_WHAT} does not cover such tensors", f"Remove {_WHAT}")

    def removes(self) -> Iterator[Removal]:
        """Return what asynchronous rounds remove: cohorts whose clients all start from the same model."""
        remove = f"remove {_WHAT}"
        for capability, why in (
            (Capability.WHOLE_ROUNDS, f"with {_WHAT} clients deliver changes of different models"),
            (Capability.EVERY_CLIENT, f"with {_WHAT} a round has the clients that end first"),
            (Capability.COHORTS, f"with {_WHAT} no round draws a cohort, and '{_NAME}concurrency' says how many clients train"),
            (Capability.FULL_DRAWS, f"with {_WHAT} no round draws a cohort"),
            (Capability.WAITING_CLIENTS, f"{_WHAT} does not simulate that"),
        ):
            yield Removal(capability, why, remove)

    def cohort(self, num_clients: int) -> int:
        """Return the number of updates in a new model."""
        self.slots(num_clients)
        wanted = f"at most {num_clients}, because each of the {num_clients} clients has at most one update in a new model"
        require(self.buffer <= num_clients, _NAME + "buffer", wanted, self.buffer)
        return self.buffer

    def not_at_sites(self) -> Iterator[str]:
        """Return a run to repeat, which only a simulation does."""
        yield from () if self.replay is None else (_NAME + "replay",)

    def at_server(self, context: ServerContext) -> ServerHooks:
        """Return the hooks at the server.

        Raises:
            ConfigurationError: if the strategy is not defined for so many updates.
        """
        from fl_lightning.options.asynchronous.server import AsynchronousAtServer

        return AsynchronousAtServer(self.slots(context.data.num_clients), self.buffer, self.replay, context)

    def slots(self, num_clients: int) -> int:
        """Return the number of clients that train at the same time.

        Args:
            num_clients: the number of clients in the federation.

        Raises:
            ConfigurationError: if it exceeds the number of clients.
        """
        if isinstance(self.concurrency, int):
            wanted = f"a number of clients from 1 to {num_clients} (there are {num_clients} clients)"
            require(self.concurrency <= num_clients, _NAME + "concurrency", wanted, self.concurrency)
            return self.concurrency
        return max(1, round(self.concurrency * num_clients))
