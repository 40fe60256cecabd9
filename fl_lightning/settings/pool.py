"""The interface of settings that place a federation's clients elsewhere than in this process."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from lightning.pytorch import Trainer

from fl_lightning.core.capabilities import Capability, Removal, Unassuming
from fl_lightning.messages import ClientInfo


class RemoteClients(Unassuming, ABC):
    """Connect to clients outside this process; the value of ``federation.pool``."""

    def removes(self) -> Iterator[Removal]:
        """Return what the server of a real federation lacks."""
        why = "the server of a real federation never has what its clients keep"
        yield Removal(Capability.NEAR_STATE, why, "remove 'federation.pool'")

    @abstractmethod
    def open(self, trainer: Trainer, settings: Any) -> tuple[ClientInfo, ...]:
        """Connect, and return what the clients tell about themselves, in the order of their ids.

        Args:
            trainer: the user's Trainer.
            settings: the federation's settings.

        Raises:
            ConfigurationError: if settings cannot work with remote clients, before anything is sent; or if clients are missing.
        """

    @abstractmethod
    def pool(self, assembly: Any, federation: Callable[[], str]) -> Any:
        """Return the pool of clients.

        Args:
            assembly: the parts of the federation at the server.
            federation: returns the federation's id, which checkpoints keep.
        """

    def review(self, round_idx: int, influence: Mapping[int, float]) -> None:
        """Refuse a round in which one client has too much influence, before the server uses its result.

        Args:
            round_idx: the round, from 0.
            influence: each client's share of the change of the model, by client; shares add up to 1.

        Raises:
            ClientError: naming the client.
        """

    @abstractmethod
    def close(self) -> None:
        """End the connection, however the fit ended."""
