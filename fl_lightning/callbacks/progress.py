"""Live bars for rounds and clients on a terminal, one live line in a notebook; elsewhere, a line for each round."""

from __future__ import annotations

import html
import os
import sys
import time
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ProgressBar
from tqdm import tqdm

from fl_lightning.callbacks.hooks import client_name
from fl_lightning.types import ClientFailure, ClientUpdate

_SHOWN = 4
"""Number of metrics in a round's line if the module shows none in a progress bar."""
_SECONDS = 0.1
"""The shortest time between two changes of a notebook's line while clients train."""


class FederationProgressBar(ProgressBar):
    """Show rounds and clients instead of epochs and batches.

    A notebook has one line that changes. If the output is neither, such as a log of SLURM or CI, print a line after each round
    instead: the server's metrics, the number of clients, which of them failed, and the seconds that the round took including
    validation. On several ranks the client bar counts the clients of the first rank.
    """

    def __init__(self) -> None:
        super().__init__()
        self._enabled = True
        self._rounds: tqdm[Any] | None = None
        self._clients: tqdm[Any] | None = None
        self._begun, self._cohort, self._failed, self._validated = 0.0, 0, list[str](), False
        self._notebook: Any = None  # shows what replaces the line of a notebook
        self._trained, self._last, self._shown = 0, "", 0.0

    def disable(self) -> None:
        """Hide the bars; Lightning calls this on all ranks but the first."""
        self._enabled = False

    def enable(self) -> None:
        """Show the bars again."""
        self._enabled = True

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Open the bars, or the line of a notebook."""
        self._last, self._notebook = "", None
        if not self._enabled or not sys.stderr.isatty():
            if self._enabled and in_notebook():
                from IPython.display import display  # there is one in a notebook only

                self._notebook = display({"text/plain": ""}, raw=True, display_id=True)  # type: ignore[no-untyped-call]
            return
        total, first = _planned(trainer), trainer.current_epoch
        self._rounds = tqdm(total=total, initial=first, desc="Round", unit="round", position=0, leave=True, file=sys.stderr)
        self._clients = tqdm(desc="Client", unit="client", position=1, leave=False, file=sys.stderr)

    def on_round_start(self, trainer: Trainer, pl_module: LightningModule, round_idx: int, cohort: tuple[int, ...]) -> None:
        """Begin to count the clients of a round."""
        self._begun, self._cohort, self._failed, self._validated = time.perf_counter(), len(cohort), [], False
        self._trained = 0
        if self._clients is not None:
            self._clients.reset(total=-(-len(cohort) // trainer.world_size))
            self._clients.set_description(f"Round {round_idx}, client")

    def on_client_start(self, trainer: Trainer, pl_module: LightningModule, round_idx: int, client: int) -> None:
        """Name the client that trains."""
        if self._notebook is not None and time.perf_counter() - self._shown >= _SECONDS:
            own = -(-self._cohort // trainer.world_size)
            text = f"Round {_number(trainer, round_idx)}: client {self._trained + 1} of {own}, {client_name(trainer, client)}"
            text += f" (before: {self._last})" if self._last else ""
            self._show(text, round_idx + self._trained / max(own, 1), _planned(trainer))
        if self._clients is not None:
            self._clients.set_postfix(training=client_name(trainer, client))

    def on_client_end(self, trainer: Trainer, pl_module: LightningModule, update: ClientUpdate) -> None:
        """Count the client."""
        self._trained += 1
        if self._clients is not None:
            self._clients.update()

    def on_aggregated(self, trainer: Trainer, pl_module: LightningModule, updates: list[ClientUpdate]) -> None:
        """Note the number of clients if it was not known at the start of the round."""
        self._cohort = self._cohort or len(updates)

    def on_client_failed(self, trainer: Trainer, pl_module: LightningModule, failure: ClientFailure) -> None:
        """Remember a client that failed."""
        self._failed.append(client_name(trainer, failure.client))

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Remember that the round was validated; otherwise the figures are those of an earlier round."""
        self._validated = True

    def on_round_end(self, trainer: Trainer, pl_module: LightningModule, round_idx: int) -> None:
        """Count the round and show the server's metrics."""
        if self._notebook is not None:
            self._last = self._line(trainer, round_idx)
            self._show(self._last, round_idx + 1, _planned(trainer))
        elif self._enabled and not sys.stderr.isatty():
            print(self._line(trainer, round_idx), file=sys.stderr, flush=True)
        if self._rounds is not None:
            shown = {name: f"{float(value):.4g}" for name, value in trainer.progress_bar_metrics.items() if name != "v_num"}
            self._rounds.set_postfix(shown)
            self._rounds.update()

    def _show(self, text: str, done: float, total: int | None) -> None:
        """Replace the line of a notebook by a text, and by a bar unless the number of rounds is open."""
        bar = "" if total is None else f'<progress max="{total}" value="{done:g}"></progress> '
        self._notebook.update({"text/plain": text, "text/html": f"<div>{bar}<code>{html.escape(text)}</code></div>"}, raw=True)
        self._shown = time.perf_counter()

    def _line(self, trainer: Trainer, round_idx: int) -> str:
        figures = _figures(trainer) if self._validated else {}
        parts = [f"{name} {value:.4f}" for name, value in figures.items()]
        parts.append(f"{self._cohort} client{'s' * (self._cohort != 1)}")
        if self._failed:
            parts.append("failed: " + ", ".join(self._failed))
        return f"Round {_number(trainer, round_idx)}: {', '.join(parts)}, {time.perf_counter() - self._begun:.1f} s"

    def close(self) -> None:
        """Close the bars, so that later output begins on a new line."""
        for bar in (self._clients, self._rounds):
            if bar is not None:
                bar.close()
        self._rounds = self._clients = None


def _planned(trainer: Trainer) -> int | None:
    last = trainer.max_epochs
    return last if last is not None and last > 0 else None


def _number(trainer: Trainer, round_idx: int) -> str:
    planned = _planned(trainer)
    return str(round_idx) if planned is None else f"{round_idx}/{planned - 1}"


def _figures(trainer: Trainer) -> dict[str, float]:
    """Return the module's progress-bar metrics, or the first that it logs in validation if it has none."""
    shown = {name: float(value) for name, value in trainer.progress_bar_metrics.items() if name not in ("v_num", "round")}
    if shown:
        return shown
    logged = [(name, value) for name, value in trainer.callback_metrics.items() if name.startswith("val")]
    return {name: float(value) for name, value in logged[:_SHOWN]}


def in_notebook() -> bool:
    """Return whether this process is the kernel of a notebook, and not a copy of it, whose displays the notebook lacks."""
    ipython = sys.modules.get("IPython")
    kernel = getattr(ipython.get_ipython() if ipython is not None else None, "kernel", None)
    return kernel is not None and getattr(getattr(kernel, "session", None), "pid", os.getpid()) == os.getpid()
