"""Seconds per round against a loop written by hand, on the same work, in one process, interleaved.

    python tools/benchmark_round.py            # both workloads, about five minutes on two cores
    python tools/benchmark_round.py S --repeats 9

W  AdaFed's Simulation 2: its table of counts, the Keras CNN, B = 100, E = 1, SGD, FedAvg, one evaluation of the
   aggregated model on 10,000 images per round.
S  100 clients with 100 examples each, 10 a round, LeNet, B = 10, E = 1, SGD, FedAvg, no evaluation.

Images are random: speed does not depend on what they show. Each repeat runs hand, ours, hand again; the table gives
medians over repeats, the ratio of ours to the hand-written loop, and as a control the ratio of that loop to itself.
"""

from __future__ import annotations

import argparse
import copy
import logging
import statistics
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lightning as L
import torch
import yaml
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from fl_lightning import (
    ClassificationTask,
    FederatedDataModule,
    FederatedOrchestrator,
    KerasCNN,
    LeNet,
    LocalTraining,
    Partitioner,
    TensorLoader,
)
from fl_lightning.functional import draw_cohort

LR = 0.01


class Sizes(Partitioner):
    """Consecutive examples, so many for each client."""

    needs_labels = False

    def __init__(self, sizes: Sequence[int]) -> None:
        self.sizes = list(sizes)

    def partition(self, num_examples: int, labels: Tensor | None) -> list[Tensor]:
        return list(torch.arange(sum(self.sizes)).split(self.sizes))


class Images(L.LightningDataModule):
    def __init__(self, train: int, batch_size: int, val: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.batch_size = batch_size
        self.train, self.val = (
            (torch.rand(n, 1, 28, 28, generator=generator), torch.randint(0, 10, (n,), generator=generator))
            for n in (train, val)
        )
        if not val:
            vars(self)["val_dataloader"] = super().val_dataloader

    def train_dataloader(self) -> Any:
        return DataLoader(TensorDataset(*self.train), batch_size=self.batch_size, shuffle=True)

    def val_dataloader(self) -> Any:
        return TensorLoader(self.val, 100)


class Plain(L.LightningModule):
    """What a researcher writes: no metrics in training, the accuracy in validation."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return F.cross_entropy(self.net(batch[0]), batch[1])

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_accuracy", (self.net(batch[0]).argmax(1) == batch[1]).float().mean(), batch_size=len(batch[1]))

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=LR)


class Workload:
    def __init__(self, name: str) -> None:
        table = yaml.safe_load((Path(__file__).parent.parent / "configs" / "adafed_mnist.yaml").read_text())
        counts = table["data"]["partitioner"]["init_args"]["counts"]
        simulation = name == "W"
        self.sizes = [sum(row) for row in counts] if simulation else [100] * 100
        self.cohort: int | float = 1.0 if simulation else 10
        self.rounds = 2 if simulation else 15
        self.net = KerasCNN() if simulation else LeNet()
        self.data = Images(sum(self.sizes), 100 if simulation else 10, 10_000 if simulation else 0)

    def by_hand(self) -> float:
        """FedAvg as one would write it: tensors in memory, one resident client, a running sum."""
        server, client = copy.deepcopy(self.net), copy.deepcopy(self.net)
        x, y = self.data.train
        parts = list(torch.arange(len(y)).split(self.sizes))
        begun = time.perf_counter()
        for round_idx in range(self.rounds):
            cohort = draw_cohort(len(self.sizes), self.cohort, 0, round_idx)
            total = [torch.zeros_like(p) for p in server.parameters()]
            examples = sum(self.sizes[k] for k in cohort)
            for k in cohort:
                client.load_state_dict(server.state_dict())
                client.train()
                optimizer = torch.optim.SGD(client.parameters(), lr=LR)
                for batch in parts[k][torch.randperm(self.sizes[k])].split(self.data.batch_size):
                    optimizer.zero_grad()
                    F.cross_entropy(client(x[batch]), y[batch]).backward()
                    optimizer.step()
                with torch.no_grad():
                    torch._foreach_add_(total, list(client.parameters()), alpha=self.sizes[k] / examples)
            with torch.no_grad():
                torch._foreach_copy_(list(server.parameters()), total)
            if len(self.data.val[1]):
                server.eval()
                with torch.inference_mode():
                    batches = TensorLoader(self.data.val, 100)
                    sum(int((server(images).argmax(1) == labels).sum()) for images, labels in batches)
        return (time.perf_counter() - begun) / self.rounds

    def ours(self, module: L.LightningModule) -> float:
        """The same by a Trainer per client."""
        clock = Clock()
        local = LocalTraining(max_epochs=1)
        trainer = L.Trainer(
            max_epochs=self.rounds,
            accelerator="cpu",
            callbacks=[FederatedOrchestrator(local=local, clients_per_round=self.cohort), clock],
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            num_sanity_val_steps=0,
        )
        trainer.fit(module, FederatedDataModule(self.data, Sizes(self.sizes)))
        return clock.seconds / self.rounds


class Clock(L.Callback):
    seconds = 0.0

    def on_train_start(self, *_: Any) -> None:
        self.seconds = -time.perf_counter()

    def on_train_end(self, *_: Any) -> None:
        self.seconds += time.perf_counter()


def task(net: nn.Module) -> L.LightningModule:
    return ClassificationTask(net, optimizer=lambda p: torch.optim.SGD(p, lr=LR))


def measure(name: str, repeats: int) -> None:
    work = Workload(name)
    seconds: dict[str, list[float]] = {"hand": [], "plain module": [], "ClassificationTask": [], "hand again": []}
    work.by_hand(), work.ours(Plain(copy.deepcopy(work.net)))  # warm up
    for _ in range(repeats):
        seconds["hand"].append(work.by_hand())
        seconds["plain module"].append(work.ours(Plain(copy.deepcopy(work.net))))
        seconds["hand again"].append(work.by_hand())
        seconds["ClassificationTask"].append(work.ours(task(copy.deepcopy(work.net))))
    hand = seconds["hand"]
    print(f"\n| {name}: {repeats} repeats of {work.rounds} rounds | seconds per round | ratio to hand | spread |")
    print("|---|---|---|---|")
    for what, values in seconds.items():
        ratios = sorted(value / base for value, base in zip(values, hand, strict=True))
        print(
            f"| {what} | {statistics.median(values):.3f} | {statistics.median(ratios):.3f} "
            f"| {ratios[0]:.3f} to {ratios[-1]:.3f} |"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workloads", nargs="*", default=["W", "S"], choices=["W", "S"])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1, help="intra-op threads of both")
    args = parser.parse_args()
    warnings.filterwarnings("ignore", module="lightning")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    torch.set_num_threads(args.threads)
    print(f"torch {torch.__version__}, lightning {L.__version__}, {args.threads} thread(s)")
    for name in args.workloads:
        measure(name, args.repeats)


if __name__ == "__main__":
    main()
