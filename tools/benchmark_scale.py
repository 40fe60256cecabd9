"""How cost grows: with the number of clients, with rounds, and with models that do not fit into memory."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import lightning as L
import torch
from benchmark_loop import Clock, Plain, Sizes, quiet
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from fl_lightning import (
    FederatedDataModule,
    FederatedOrchestrator,
    IIDPartitioner,
    LazyClients,
    LocalTraining,
)

PATH = os.pathsep.join([str(Path(__file__).parent), str(Path(__file__).parents[1])])
"""Lets processes of a measurement import these tools and the package of this tree, whichever one is installed."""


def memory_of(kind: str) -> int:
    """This process's memory in KiB: ``VmHWM`` the peak, ``RssAnon`` what is not backed by a file."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(kind))


class Features(L.LightningDataModule):
    """So many examples of 64 numbers."""

    def __init__(self, examples: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.tensors = torch.rand(examples, 64, generator=generator), torch.randint(0, 10, (examples,), generator=generator)

    def train_dataloader(self) -> Any:
        return DataLoader(TensorDataset(*self.tensors), batch_size=10, shuffle=True)


class Watch(L.Callback):
    """The peak of memory after certain rounds."""

    def __init__(self, rounds: tuple[int, ...]) -> None:
        self.rounds = rounds
        self.peaks: dict[int, int] = {}

    def on_train_epoch_end(self, trainer: L.Trainer, *_: Any) -> None:
        if trainer.current_epoch + 1 in self.rounds:
            self.peaks[trainer.current_epoch + 1] = memory_of("VmHWM")


def federate(clients: int, rounds: int, engine: str, *callbacks: L.Callback) -> float:
    """Seconds per round of 10 clients out of so many, with 100 examples each; the first round is not counted."""
    quiet()
    clock = Clock(skipped=1)
    trainer = L.Trainer(
        max_epochs=rounds + 1,
        accelerator="cpu",
        callbacks=[FederatedOrchestrator(local=LocalTraining(engine=engine), clients_per_round=10), clock, *callbacks],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    net = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
    trainer.fit(Plain(net), FederatedDataModule(Features(100 * clients), Sizes([100] * clients)))
    return clock.seconds / rounds


class Opened(LazyClients):
    """So many clients with two examples each, which are made when they are drawn."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number

    def num_examples(self) -> torch.Tensor:
        return torch.tensor(2).expand(self.number)

    def open(self, client: int) -> TensorDataset:
        return TensorDataset(torch.full((2, 8), client / self.number), torch.tensor([client % 10, 3]))


def many(number: int, lazily: bool = False, cohort: int = 100, rounds: int = 20) -> None:
    """Print a run of so many clients a round, out of so many with two examples each: times are the processor's, in seconds."""
    quiet()
    ends = [time.process_time()]
    clock = L.pytorch.callbacks.LambdaCallback(on_train_epoch_end=lambda *_: ends.append(time.process_time()))
    federation = FederatedOrchestrator(local=LocalTraining(engine="fabric"), clients_per_round=cohort)
    flags: dict[str, Any] = {"accelerator": "cpu", "logger": False, "enable_progress_bar": False}
    if lazily:
        data = FederatedDataModule(Opened(number))
    else:
        examples = TensorDataset(torch.rand(2 * number, 8), torch.arange(2 * number) % 10)
        loader = DataLoader(examples, 2, shuffle=True)
        data = FederatedDataModule.from_loaders(loader, partitioner=IIDPartitioner(number))
    net = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 10))
    with tempfile.TemporaryDirectory() as folder:
        callbacks: list[L.Callback] = [federation, clock, L.pytorch.callbacks.ModelCheckpoint(folder)]
        trainer = L.Trainer(max_epochs=rounds + 1, callbacks=callbacks, enable_model_summary=False, **flags)
        trainer.fit(Plain(net), data)
        written = max(path.stat().st_size for path in Path(folder).glob("*.ckpt"))
    each = statistics.median(b - a for a, b in pairwise(ends[1:]))
    print(json.dumps({"first": ends[1] - ends[0], "round": each, "peak": memory_of("VmHWM"), "checkpoint": written}))


MANY = {
    "1,000": "1_000",
    "10,000": "10_000",
    "100,000": "100_000",
    "1,000,000": "1_000_000",
    "1,000,000, read when drawn": "1_000_000, True",
    "10,000,000, read when drawn": "10_000_000, True",
    "10,000, 1,000 a round": "10_000, False, 1_000",
    "1,000,000, read when drawn, 1,000 a round": "1_000_000, True, 1_000",
    "1,000 again": "1_000",
}


def by_turns(module: str, calls: Mapping[str, str], repeats: int) -> dict[str, list[dict[str, float]]]:
    """Return what calls of a module's functions print as their last line, each in a process of its own, interleaved."""
    environment = os.environ | {"PYTHONPATH": PATH}
    found: dict[str, list[dict[str, float]]] = {what: [] for what in calls}
    for _ in range(repeats):
        for what, call in calls.items():
            command = [sys.executable, "-c", f"import torch, {module} as b; torch.set_num_threads(1); b.{call}"]
            run = subprocess.run(
                command, capture_output=True, text=True, check=True, env=environment | {"OMP_NUM_THREADS": "1"}
            )
            found[what].append(json.loads(run.stdout.splitlines()[-1]))
            print(f"{what}: {found[what][-1]}", file=sys.stderr, flush=True)
    return found


def clients(args: argparse.Namespace) -> None:
    """Time per round, memory and checkpoints over the number of clients."""
    found = by_turns("benchmark_scale", {what: f"many({given})" for what, given in MANY.items()}, args.repeats)
    print("\n| clients, 100 a round | ms per round | ratio | spread | to the end of round 0 | peak memory | checkpoint |")
    print("|---|---|---|---|---|---|---|")
    for what, rows in found.items():
        ratios = sorted(row["round"] / few["round"] for row, few in zip(rows, found["1,000"], strict=True))
        own = {name: statistics.median(row[name] for row in rows) for name in rows[0]}
        print(
            f"| {what} | {own['round'] * 1000:.0f} | {statistics.median(ratios):.2f} | {ratios[0]:.2f} to {ratios[-1]:.2f} "
            f"| {own['first']:.1f} s | {own['peak'] / 1024:.0f} MiB | {own['checkpoint'] / 1000:.0f} kB |"
        )


def memory(args: argparse.Namespace) -> None:
    """Peak memory after 20 and after 200 rounds, each engine in a process of its own."""
    print("\n| 200 rounds | peak after 20 | peak after 200 | ratio |\n|---|---|---|---|")
    for engine in ("trainer", "fabric", "stacked"):
        call = f"w = b.Watch((20, 200)); b.federate(100, 199, '{engine}', w)"
        script = f"import json, benchmark_scale as b; {call}; print(json.dumps(w.peaks))"
        environment = os.environ | {"PYTHONPATH": PATH, "OMP_NUM_THREADS": "1"}
        run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, env=environment)
        peaks = {int(k): v / 1024 for k, v in json.loads(run.stdout.splitlines()[-1]).items()}
        print(f"| {engine} | {peaks[20]:.0f} MiB | {peaks[200]:.0f} MiB | {peaks[200] / peaks[20]:.3f} |", flush=True)


LARGE = {
    "hand, sum in float32": "w.by_hand()",
    "hand, sum in float64": "w.by_hand(torch.float64)",
    "FedAvg, trainer": "w.ours(skipped=1)",
    "FedAvg, fabric": "w.ours(engine='fabric', skipped=1)",
    "AdaFed, fabric": "w.ours(engine='fabric', skipped=1, strategy=fl_lightning.AdaFed())",
    "SCAFFOLD, fabric": "w.ours(engine='fabric', skipped=1, strategy=fl_lightning.Scaffold())",
    "hand again": "w.by_hand()",
}


def large(args: argparse.Namespace) -> None:
    """L: seconds per round and peak memory beyond the start, each row in a process of its own."""
    script = """import benchmark_loop as b, benchmark_scale as scale, fl_lightning, torch
fl_lightning.keep_freed_memory(); torch.set_num_threads(1)
w = b.Workload('L'); start = scale.memory_of('VmRSS')
print({}, (scale.memory_of('VmHWM') - start) * 1024 / sum(p.nbytes for p in w.net.parameters()))"""
    environment = os.environ | {"PYTHONPATH": PATH, "OMP_NUM_THREADS": "1"}
    found: dict[str, list[tuple[float, float]]] = {what: [] for what in LARGE}
    for _ in range(args.repeats):
        for what, call in LARGE.items():
            command = [sys.executable, "-c", script.format(call)]
            run = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
            seconds, models = map(float, run.stdout.split()[-2:])
            found[what].append((seconds, models))
    narrow, wide = ([seconds for seconds, _ in found[f"hand, sum in {dtype}"]] for dtype in ("float32", "float64"))
    print(f"\n| L, {args.repeats} repeats | seconds per round | to the float32 sum | to the float64 sum | memory in models |")
    print("|---|---|---|---|---|")
    for what, rows in found.items():
        seconds = [row[0] for row in rows]
        ratios = [statistics.median(s / hand for s, hand in zip(seconds, hands, strict=True)) for hands in (narrow, wide)]
        models = max(row[1] for row in rows)
        print(f"| {what} | {statistics.median(seconds):.2f} | {ratios[0]:.2f} | {ratios[1]:.2f} | {models:.1f} |", flush=True)


MEASUREMENTS: dict[str, Callable[[argparse.Namespace], None]] = {
    "clients": clients,
    "memory": memory,
    "L": large,
}
