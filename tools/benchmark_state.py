"""What clients' state costs: SCAFFOLD among a million clients, after so many of them have taken part."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import IO, Any
from unittest.mock import patch

import lightning as L
import torch
from benchmark_loop import Plain, quiet
from benchmark_scale import Opened, by_turns, memory_of
from torch import nn

from fl_lightning import FederatedDataModule, FederatedOrchestrator, LocalTraining, Scaffold
from fl_lightning.clients import client_files
from fl_lightning.clients.memory import RULES, ClientMemory
from fl_lightning.utilities.collectives import Collectives

CLIENTS = 1_000_000


def fill_unsynced(target: Path, fill: Callable[[IO[bytes]], object]) -> None:
    """A file without a sync, which only the state before the measured rounds may do without."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with open(target, "wb") as file:
        fill(file)


class Before(L.Callback):
    """Store the control variates of clients that took part before, after the first round, which is not measured."""

    def __init__(self, memory: Callable[[], ClientMemory], stored: int) -> None:
        self.memory, self.stored = memory, stored

    def on_train_epoch_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        if trainer.current_epoch != 1:
            return
        memory, numbers = self.memory(), sum(p.numel() for p in module.parameters())
        every = CLIENTS // self.stored
        with patch.object(client_files, "fill_whole", fill_unsynced):
            for first in range(0, self.stored, 1000):
                for client in range(first, min(first + 1000, self.stored)):
                    memory.put(client * every, RULES, {"control": torch.full((numbers,), client / CLIENTS)})
                memory.settle(Collectives(trainer))


def state(stored: int, cohort: int = 100, rounds: int = 40) -> None:
    """Print rounds of SCAFFOLD with a checkpoint after each; times are the processor's, in seconds, with syncs to the disk."""
    quiet()
    ends: list[float] = []
    clock = L.pytorch.callbacks.LambdaCallback(on_train_epoch_end=lambda *_: ends.append(time.process_time()))
    federation = FederatedOrchestrator(Scaffold(), LocalTraining(engine="fabric"), clients_per_round=cohort)
    data = FederatedDataModule(Opened(CLIENTS))
    net = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 10))
    flags: dict[str, Any] = {"accelerator": "cpu", "logger": False, "enable_progress_bar": False}
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCHMARK_FOLDER")) as folder:
        checkpoints = L.pytorch.callbacks.ModelCheckpoint(folder)
        callbacks = [Before(lambda: federation._run.memory, stored), federation, clock, checkpoints]
        trainer = L.Trainer(max_epochs=rounds + 2, callbacks=callbacks, default_root_dir=folder, **flags)
        trainer.fit(Plain(net), data)
        walked = [(found, len(found) + len(folders)) for _, folders, found in os.walk(Path(folder) / "client_state")]
        written = max(path.stat().st_size for path in Path(folder).glob("*.ckpt"))
        files = sum(len(found) for found, _ in walked)
        blocks = sum(path.stat().st_blocks * 512 for path in (Path(folder) / "client_state").rglob("*") if path.is_file())
    each = [after - before for before, after in pairwise(ends[1:])]
    most = max((entries for _, entries in walked), default=0)
    found = {"median": statistics.median(each), "mean": statistics.mean(each), "checkpoint": written, "files": files}
    print(json.dumps(found | {"most": most, "disk": blocks / max(files, 1), "peak": memory_of("VmHWM")}))


STATES = {
    "1,000": "1_000",
    "10,000": "10_000",
    "100,000": "100_000",
    "1,000,000": "1_000_000",
    "1,000,000, 1,000 a round": "1_000_000, 1_000",
    "1,000 again": "1_000",
}


def states(args: argparse.Namespace) -> None:
    """Time per round, checkpoints and files over the clients that have state."""
    found = by_turns("benchmark_state", {what: f"state({given})" for what, given in STATES.items()}, args.repeats)
    print(
        "\n| clients with state | ms per round: median, mean | checkpoint | files | in one folder | disk each | peak memory |"
    )
    print("|---|---|---|---|---|---|---|")
    for what, rows in found.items():
        own = {name: statistics.median(row[name] for row in rows) for name in rows[0]}
        print(
            f"| {what} | {own['median'] * 1000:.0f}, {own['mean'] * 1000:.0f} | {own['checkpoint'] / 1000:,.0f} kB "
            f"| {own['files']:,.0f} | {own['most']:,.0f} | {own['disk'] / 1000:.1f} kB | {own['peak'] / 1024:.0f} MiB |"
        )


MEASUREMENTS = {"states": states}
