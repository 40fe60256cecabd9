"""Limit the disk space of the state that clients keep."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fl_lightning.errors import CheckpointError, ConfigurationError


@dataclass(frozen=True)
class DiskRoom:
    """Say how much of the disk clients' state may take, and how many clients may need it.

    Args:
        limit: the bytes that the files may take together.
        clients: the number of clients that the rounds of the run can draw.
    """

    limit: float = math.inf
    clients: int = 0

    @property
    def limited(self) -> bool:
        """Return whether there is a limit."""
        return self.limit < math.inf

    def require(self, each: int) -> None:
        """Refuse a run whose clients will need more than the limit.

        Args:
            each: the bytes for each client.

        Raises:
            ConfigurationError: with both numbers and what to change.
        """
        if self.clients * each > self.limit:
            raise ConfigurationError(
                f"Each client keeps {each / 2**10:,.1f} KiB between rounds, and {self.clients:,} clients can be drawn, which "
                f"takes {_gib(self.clients * each)} GiB on the disk, above 'federation.disk_limit' {_gib(self.limit)}. Raise "
                "it, plan fewer rounds or fewer clients a round, or use a strategy, transforms and a route that keep no client "
                "state, such as FedAvg."
            )

    def check(self, needed: int, older: int) -> None:
        """Stop a run whose files take more than the limit.

        Args:
            needed: the bytes of the current state of all clients.
            older: the bytes of former states, which older checkpoints need.

        Raises:
            CheckpointError: with both numbers and what to change.
        """
        if needed + older > self.limit:
            raise CheckpointError(
                f"Clients' state takes {_gib(needed + older)} GiB in 'client_state', above 'federation.disk_limit' "
                f"{_gib(self.limit)}; {_gib(older)} GiB of it are former states that older checkpoints need. Raise the limit, "
                "or delete older checkpoints, and resume with '--ckpt_path last'."
            )


def _gib(size: float) -> str:
    return f"{size / 2**30:.3g}"
