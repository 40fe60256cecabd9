"""A live bar for rounds and, below it, one for the clients of the round."""

from __future__ import annotations

import sys
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ProgressBar
from tqdm.auto import tqdm

from fl_lightning.types import ClientUpdate


class FederationProgressBar(ProgressBar):
    """Shows rounds and clients instead of epochs and batches; nothing at all where the output is not a terminal.

    On several ranks the client bar counts the clients of the first rank.
    """

    def __init__(self) -> None:
        super().__init__()
        self._enabled = True
        self._rounds: tqdm[Any] | None = None
        self._clients: tqdm[Any] | None = None

    def disable(self) -> None:
        """Show nothing: Lightning calls it on all ranks but the first."""
        self._enabled = False

    def enable(self) -> None:
        """Show the bars again."""
        self._enabled = True

    def _visible(self) -> bool:
        return self._enabled and sys.stderr.isatty()

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Open the bars."""
        if not self._visible():
            return
        total = trainer.max_epochs if trainer.max_epochs and trainer.max_epochs > 0 else None
        first = trainer.current_epoch
        self._rounds = tqdm(total=total, initial=first, desc="Round", unit="round", position=0, leave=True, file=sys.stderr)
        self._clients = tqdm(desc="Client", unit="client", position=1, leave=False, file=sys.stderr)

    def on_round_start(self, trainer: Trainer, pl_module: LightningModule, round_idx: int, cohort: tuple[int, ...]) -> None:
        """Begin to count the clients of a round."""
        if self._clients is not None:
            self._clients.reset(total=-(-len(cohort) // trainer.world_size))
            self._clients.set_description(f"Round {round_idx}, client")

    def on_client_start(self, trainer: Trainer, pl_module: LightningModule, round_idx: int, client: int) -> None:
        """Name the client that trains."""
        if self._clients is not None:
            self._clients.set_postfix(training=client)

    def on_client_end(self, trainer: Trainer, pl_module: LightningModule, update: ClientUpdate) -> None:
        """Count a client."""
        if self._clients is not None:
            self._clients.update()

    def on_round_end(self, trainer: Trainer, pl_module: LightningModule, round_idx: int) -> None:
        """Count a round and show the server's metrics."""
        if self._rounds is not None:
            shown = {name: f"{float(value):.4g}" for name, value in trainer.progress_bar_metrics.items() if name != "v_num"}
            self._rounds.set_postfix(shown)
            self._rounds.update()

    def close(self) -> None:
        """Close the bars, so that what comes next stands on a line of its own."""
        for bar in (self._clients, self._rounds):
            if bar is not None:
                bar.close()
        self._rounds = self._clients = None
