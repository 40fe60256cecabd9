"""The work that every peer does: sizes, random images, network, and the line of JSON with the result.

S  100 clients with 100 examples each, 10 a round, LeNet, B = 10, no evaluation.
W  AdaFed's Simulation 2: 6 clients, all in every round, Keras CNN, B = 100, one evaluation of the aggregated model on
   10,000 images per round.
lr-mnist, cnn-cifar10, lr-ratings: see published.py.
C  for check_peers.py only: 3 clients of 10, 20 and 40 examples, LeNet, one full batch each, one evaluation. The result
   of a round does not depend on the order of the examples, so that every peer must arrive at the same weights.

E = 1, SGD with learning rate 0.01 and no momentum, cross-entropy, FedAvg weighted by examples. One torch thread per
process. The networks are those of fl_lightning, read from this checkout without importing the package itself, which needs
Lightning. With PEERS_CHECK set to a folder every process writes
there what it trained (see check_peers.py); do not time such runs.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import json
import os
import sys
import time
import types
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import published
import torch
from torch import Tensor, nn

LR = 0.01
ROOT = Path(__file__).parents[2]
CHECK = os.environ.get("PEERS_CHECK")
SIZES = {"S": (100,) * 100, "W": (190, 1710, 1780, 1230, 2040, 3160), "C": (10, 20, 40)}

torch.set_num_threads(1)


@dataclass
class Workload:
    """What to train on: one pair of images and labels for each client, and one for the evaluation, if any."""

    name: str
    cohort: int
    batch_size: int
    rounds: int
    clients: list[tuple[Tensor, Tensor]]
    test: tuple[Tensor, Tensor] | None
    test_batch_size: int = 100
    lr: float = LR
    held_back: tuple[Tensor, Tensor] | None = None

    def network(self) -> nn.Module:
        """A new network, always with the same weights."""
        torch.manual_seed(0)
        if self.name in published.SETTINGS:
            return published.SETTINGS[self.name].network()
        return _network_class("keras_cnn", "KerasCNN")() if self.name == "W" else _network_class("lenet", "LeNet")()


@functools.lru_cache
def load(name: str) -> Workload:
    """The workload of that name, its tensors made once per process."""
    if name in published.SETTINGS:
        return _published(name)
    sizes = SIZES[name]
    generator = torch.Generator().manual_seed(0)

    def images(n: int) -> tuple[Tensor, Tensor]:
        return torch.rand(n, 1, 28, 28, generator=generator), torch.randint(0, 10, (n,), generator=generator)

    clients = [images(n) for n in sizes]
    if name == "S":
        return Workload(name, cohort=10, batch_size=10, rounds=15, clients=clients, test=None)
    return Workload(name, len(sizes), 100, rounds=2, clients=clients, test=images(10_000 if name == "W" else 100))


def _published(name: str) -> Workload:
    own = published.SETTINGS[name]
    found = own.load()
    clients = list(zip(*(tensor.split(found.sizes) for tensor in found.train), strict=True))
    return Workload(name, own.cohort, own.batch_size, own.rounds, clients, None, lr=own.lr, held_back=found.test)


@functools.lru_cache
def resident_network(name: str) -> nn.Module:
    """A network that a worker process may use again and again."""
    return load(name).network()


def _network_class(module: str, name: str) -> type[nn.Module]:
    for package in ("fl_lightning", "fl_lightning.models"):  # empty stand-ins: only the modules below them are run
        if package not in sys.modules:
            sys.modules[package] = types.ModuleType(package)
            sys.modules[package].__path__ = [str(ROOT.joinpath(*package.split(".")))]
    return getattr(importlib.import_module(f"fl_lightning.models.{module}"), name)


@dataclass
class Clock:
    """Takes the time at the end of every round, evaluation included; pfl, fluke and FedLab also count examples."""

    ends: list[float] = field(default_factory=list)
    examples: int = 0
    examples_at_ends: list[int] = field(default_factory=list)

    def end_of_round(self) -> None:
        self.ends.append(time.process_time() if "PROCESSOR_TIME" in os.environ else time.perf_counter())
        self.examples_at_ends.append(self.examples)

    def seconds_per_round(self) -> float:
        """Mean over all rounds but the first, which warms up."""
        return (self.ends[-1] - self.ends[0]) / (len(self.ends) - 1)

    def examples_per_round(self) -> float:
        """Of the same rounds."""
        return (self.examples_at_ends[-1] - self.examples_at_ends[0]) / (len(self.ends) - 1)


def arguments(doc: str | None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workload", choices=[*SIZES, *published.SETTINGS])
    parser.add_argument("--rounds", type=int, help="at least 2, as the first is not timed; 15 for S, 2 for W, and as published")
    return parser


def report(
    peer: str, package: str, work: Workload, rounds: int, clock: Clock, weights: Mapping[str, Tensor], **more: Any
) -> None:
    """Print the line of JSON, after making sure that there were so many rounds and that every weight has moved."""
    if len(clock.ends) != rounds:
        raise SystemExit(f"{peer} ran {len(clock.ends)} rounds instead of {rounds}")
    before = work.network().state_dict()
    still = [key for key in before if torch.equal(before[key], weights[key])]
    if still:
        raise SystemExit(f"{peer} left {still} as they were")
    if CHECK:
        torch.save(dict(weights), Path(CHECK, "weights.pt"))
    if work.held_back:
        net = work.network().eval()
        net.load_state_dict({key: value.reshape(before[key].shape) for key, value in weights.items()})
        with torch.inference_mode():
            more["accuracy"] = float((net(work.held_back[0]).argmax(1) == work.held_back[1]).float().mean())
    more["examples_per_round"] = clock.examples_per_round()
    line = {"peer": peer, "version": metadata.version(package), "workload": work.name, "rounds": rounds}
    print(json.dumps({**line, "seconds_per_round": round(clock.seconds_per_round(), 4), **more}), flush=True)


def _write_down(module: nn.Module, args: tuple[Any, ...]) -> None:
    if type(module).__name__ in ("LeNet", "KerasCNN"):
        with Path(str(CHECK), f"{os.getpid()}.batches").open("a", encoding="utf-8") as file:
            file.write(f"{'train' if module.training and torch.is_grad_enabled() else 'eval'} {len(args[0])}\n")


if CHECK:
    nn.modules.module.register_module_forward_pre_hook(_write_down)
