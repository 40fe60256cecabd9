"""Hooks into a round, in the style of Lightning's hooks."""

from __future__ import annotations

from lightning.pytorch import Callback, LightningModule, Trainer

from fl_lightning.data.federated import FederatedDataModule
from fl_lightning.types import ClientFailure, ClientUpdate
from fl_lightning.utilities.argument_types import ChecksTypes


class FederationCallback(ChecksTypes, Callback):
    """Extend Lightning's callback with hooks for rounds and clients; add it to the Trainer next to the orchestrator.

    On several ranks, ``on_client_start`` and ``on_client_end`` run on the rank that trains the client; the other hooks run on
    every rank.
    """

    def on_round_start(self, trainer: Trainer, pl_module: LightningModule, round_idx: int, cohort: tuple[int, ...]) -> None:
        """Run before the round's clients train. ``cohort`` holds their ids in ascending order."""

    def on_client_start(self, trainer: Trainer, pl_module: LightningModule, round_idx: int, client: int) -> None:
        """Run before a client trains."""

    def on_client_end(self, trainer: Trainer, pl_module: LightningModule, update: ClientUpdate) -> None:
        """Run after a client trained. Its update includes its state; its weight is NaN until the strategy has set it.

        On routes with several periods a client trains, and calls this hook, several times a round.
        """

    def on_client_failed(self, trainer: Trainer, pl_module: LightningModule, failure: ClientFailure) -> None:
        """Run on every rank before ``on_aggregated`` for each client that failed or dropped out, with the cause."""

    def on_aggregated(self, trainer: Trainer, pl_module: LightningModule, updates: list[ClientUpdate]) -> None:
        """Run after the server's step: ``pl_module`` holds w_{t+1}; ``updates`` are the round's updates, without states."""

    def on_round_end(self, trainer: Trainer, pl_module: LightningModule, round_idx: int) -> None:
        """Run after the validation of the aggregated model; its metrics are in ``trainer.callback_metrics``."""


def client_name(trainer: Trainer, client: int) -> str:
    """Return the name of a client for a file: its number if it has none."""
    data = getattr(trainer, "datamodule", None)
    return data.client_name(client) if isinstance(data, FederatedDataModule) else str(client)
