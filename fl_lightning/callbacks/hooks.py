"""Hooks into a round, in Lightning's manner."""

from __future__ import annotations

from lightning.pytorch import Callback, LightningModule, Trainer

from fl_lightning.types import ClientFailure, ClientUpdate


class FederationCallback(Callback):
    """A Lightning callback that also hears of rounds and clients; put it in the Trainer beside the orchestrator.

    On several ranks the client hooks run on the rank that trains the client; the others run on every rank.
    """

    def on_round_start(self, trainer: Trainer, pl_module: LightningModule, round_idx: int, cohort: tuple[int, ...]) -> None:
        """Before the round's clients train. ``cohort`` holds their ids, ascending."""

    def on_client_start(self, trainer: Trainer, pl_module: LightningModule, round_idx: int, client: int) -> None:
        """Before a client trains."""

    def on_client_end(self, trainer: Trainer, pl_module: LightningModule, update: ClientUpdate) -> None:
        """After a client trained: its update, with its state; the weight is NaN until the strategy has given one.

        On routes with several periods a client trains, and is announced, several times a round.
        """

    def on_client_failed(self, trainer: Trainer, pl_module: LightningModule, failure: ClientFailure) -> None:
        """On every rank, before ``on_aggregated``: a client that the round had to do without, and why."""

    def on_aggregated(self, trainer: Trainer, pl_module: LightningModule, updates: list[ClientUpdate]) -> None:
        """After the server's step: ``pl_module`` holds w_{t+1}; all updates of the round, without their states."""

    def on_round_end(self, trainer: Trainer, pl_module: LightningModule, round_idx: int) -> None:
        """After the aggregated model was validated: its metrics are in ``trainer.callback_metrics``."""
