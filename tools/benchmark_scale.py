"""How cost grows: with a large model, with the number of clients, and with those that have state."""

from __future__ import annotations

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
from benchmark_loop import Plain, Workload, quiet, trainer
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import fl_lightning as fl
from fl_lightning.clients import client_files
from fl_lightning.clients.memory import RULES
from fl_lightning.utilities.collectives import Collectives


def memory_of(kind: str) -> float:
    """This process's memory in MiB: ``VmHWM`` the peak, ``VmRSS`` now."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(kind)) / 1024


def large(way: str, *args: Any, **settings: Any) -> dict[str, float]:
    """Run L in a way of ``Workload``, and return seconds, and the peak of memory beyond the start in models."""
    work = Workload("L")
    size, start = sum(p.nbytes for p in work.net.parameters()) / 2**20, memory_of("VmRSS")
    seconds = getattr(work, way)(*args, **settings)
    return {"seconds per round": seconds, "memory in models": (memory_of("VmHWM") - start) / size}


LARGE = {
    "hand, sum in float32": "large('by_hand')",
    "hand, sum in float64": "large('by_hand', torch.float64)",
    "FedAvg, trainer": "large('ours', skipped=1)",
    "FedAvg, fabric": "large('ours', engine='fabric', skipped=1)",
    "AdaFed, fabric": "large('ours', engine='fabric', skipped=1, strategy=fl.AdaFed())",
    "SCAFFOLD, fabric": "large('ours', engine='fabric', skipped=1, strategy=fl.Scaffold())",
}


class Opened(fl.LazyClients):
    """So many clients with two examples each, which are made when they are drawn."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number

    def num_examples(self) -> torch.Tensor:
        return torch.tensor(2).expand(self.number)

    def open(self, client: int) -> TensorDataset:
        return TensorDataset(torch.full((2, 8), client / self.number), torch.tensor([client % 10, 3]))


def fill_unsynced(target: Path, fill: Callable[[IO[bytes]], object]) -> None:
    """A file without a sync, which only the state before the measured rounds may do without."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with open(target, "wb") as file:
        fill(file)


class Before(L.Callback):
    """Store the control variates of clients that took part before, after the first round, which is not measured."""

    def __init__(self, federation: fl.FederatedOrchestrator, clients: int, stored: int) -> None:
        self.federation, self.clients, self.stored = federation, clients, stored

    def on_train_epoch_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        if trainer.current_epoch != 1:
            return
        memory, numbers = self.federation._run.memory, sum(p.numel() for p in module.parameters())
        with patch.object(client_files, "fill_whole", fill_unsynced):
            for first in range(0, self.stored, 1000):
                for client in range(first, min(first + 1000, self.stored)):
                    control = torch.full((numbers,), client / self.clients)
                    memory.put(client * (self.clients // self.stored), RULES, {"control": control})
                memory.settle(Collectives(trainer))


def many(number: int, cohort: int = 100, lazily: bool = True, stored: int = 0) -> dict[str, float]:
    """Run a cohort a round out of so many clients with two examples each, and return the processor's seconds and more.

    Args:
        number: of clients.
        cohort: of clients in a round.
        lazily: whether examples are made when a client is drawn.
        stored: of SCAFFOLD's clients with state; 0 for FedAvg.
    """
    quiet()
    ends, rounds = [time.process_time()], 40 if stored else 20
    clock = L.pytorch.callbacks.LambdaCallback(on_train_epoch_end=lambda *_: ends.append(time.process_time()))
    strategy = fl.Scaffold() if stored else None
    federation = fl.FederatedOrchestrator(strategy, fl.LocalTraining(engine="fabric"), clients_per_round=cohort)
    if lazily:
        data = fl.FederatedDataModule(Opened(number))
    else:
        examples = TensorDataset(torch.rand(2 * number, 8), torch.arange(2 * number) % 10)
        loader = DataLoader(examples, 2, shuffle=True)
        data = fl.FederatedDataModule.from_loaders(loader, partitioner=fl.IIDPartitioner(number))
    net = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 10))
    with tempfile.TemporaryDirectory() as folder:
        callbacks = [Before(federation, number, stored)] if stored else []
        callbacks += [federation, clock, L.pytorch.callbacks.ModelCheckpoint(folder)]
        run = trainer(rounds + 1 + bool(stored), *callbacks, enable_checkpointing=True, default_root_dir=folder)
        run.fit(Plain(net), data)
        written = max(path.stat().st_size for path in Path(folder).glob("*.ckpt"))
        kept = [(path, files, folders) for path, folders, files in os.walk(Path(folder, "client_state"))]
        blocks = [Path(path, file).stat().st_blocks * 512 for path, files, _ in kept for file in files]
    each = [after - before for before, after in pairwise(ends[1 + bool(stored) :])]
    found = {"ms per round": 1000 * statistics.median(each), "mean": 1000 * statistics.mean(each)}
    found |= {
        "seconds to round 1": ends[1] - ends[0],
        "peak MiB": memory_of("VmHWM"),
        "checkpoint kB": written / 1e3,
    }
    if stored:
        most = max(len(files) + len(folders) for _, files, folders in kept)
        found |= {"files": len(blocks), "in one folder": most, "bytes of disk each": sum(blocks) / len(blocks)}
    return found


MANY = {
    "1,000": "many(1_000, lazily=False)",
    "10,000": "many(10_000, lazily=False)",
    "100,000": "many(100_000, lazily=False)",
    "1,000,000": "many(1_000_000, lazily=False)",
    "1,000,000, read when drawn": "many(1_000_000)",
    "10,000,000, read when drawn": "many(10_000_000)",
    "10,000, 1,000 a round": "many(10_000, 1_000, lazily=False)",
    "1,000,000, read when drawn, 1,000 a round": "many(1_000_000, 1_000)",
}
STATES = {
    "1,000": "many(1_000_000, stored=1_000)",
    "10,000": "many(1_000_000, stored=10_000)",
    "100,000": "many(1_000_000, stored=100_000)",
    "1,000,000": "many(1_000_000, stored=1_000_000)",
    "1,000,000, 1,000 a round": "many(1_000_000, 1_000, stored=1_000_000)",
}
