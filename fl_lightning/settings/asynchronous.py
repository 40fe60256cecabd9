"""Asynchronous rounds: the server does not wait for all clients, but for a number of updates."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from fl_lightning.core.capabilities import Capability, Need, Removal
from fl_lightning.core.resume_rule import ResumeRule
from fl_lightning.errors import require
from fl_lightning.utilities.argument_types import checks_types

_NAME = "federation.asynchronous."


@checks_types
@dataclass(frozen=True)
class Asynchronous:
    """Aggregate whenever a number of updates has arrived, on the simulated clock of ``federation.clock``.

    ``concurrency`` clients train at the same time, each from the newest model at its start. When one ends, its update goes to
    the server's buffer, and another client starts. Each time the buffer is full, its updates become a new model: that is one
    epoch of the Trainer. A client starts at most once from the same model: after its update it waits for the next one.

    Args:
        concurrency: clients that train at the same time, instead of ``federation.clients_per_round``: a float in (0, 1] is a
            fraction of the clients, an int their number.
        buffer: the number of updates in a new model, >= 1; FedBuff's K. FedAsync needs 1.

    Raises:
        ConfigurationError: for a value outside its range.
    """

    concurrency: int | float = 1.0
    buffer: int = 1
    on_resume = ResumeRule(on_purpose="concurrency buffer")

    def __post_init__(self) -> None:
        whole = isinstance(self.concurrency, int)
        fits = self.concurrency >= 1 if whole else 0 < self.concurrency <= 1
        wanted = "a fraction above 0 and at most 1.0, or a whole number of clients"
        require(fits, _NAME + "concurrency", wanted, self.concurrency)
        whole = isinstance(self.buffer, int)
        require(whole and self.buffer >= 1, _NAME + "buffer", "a whole number of 1 or above", self.buffer)

    def needs(self) -> Iterator[Need]:
        """Return what such rounds need; what they need of the cohort is checked with it."""
        why = "'federation.asynchronous' does not cover such tensors"
        yield Need(Capability.FIXED_TENSORS, why, "Remove 'federation.asynchronous'")

    def removes(self) -> Iterator[Removal]:
        """Return what asynchronous rounds take away: updates of a round start from different models."""
        why = "with 'federation.asynchronous' clients deliver changes of different models"
        yield Removal(Capability.WHOLE_ROUNDS, why, "remove 'federation.asynchronous'")

    def provides(self) -> tuple[Capability, ...]:
        """Return nothing."""
        return ()

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

    def check(self, num_clients: int) -> None:
        """Reject numbers that do not fit the number of clients.

        Raises:
            ConfigurationError: naming the setting.
        """
        self.slots(num_clients)
        wanted = f"at most {num_clients}, because each of the {num_clients} clients has at most one update in a new model"
        require(self.buffer <= num_clients, _NAME + "buffer", wanted, self.buffer)
