"""The interface of settings that place a federation's clients elsewhere than in this process."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from lightning.pytorch import Trainer

from fl_lightning.messages import ClientInfo


class RemoteClients(ABC):
    """Connect to clients outside this process; the value of ``federation.pool``."""

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

    @abstractmethod
    def close(self) -> None:
        """End the connection, however the fit ended."""
