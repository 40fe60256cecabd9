"""The workloads of the benchmark, the loop that a researcher would write by hand for them, and ours.

W       AdaFed's Simulation 2: its table of counts, the Keras CNN, B = 100, E = 1, SGD, FedAvg, one evaluation of the
        aggregated model on 10,000 images per round.
W-eval  The same as AdaFed: each client's model is evaluated on the 10,000 images, too.
S       100 clients with 100 examples each, 10 a round, LeNet, B = 10, E = 1, SGD, FedAvg, no evaluation.
L       4 clients with one batch of 8 examples each, a perceptron of 49.5 million parameters, SGD, evaluation on 8 images.

Images are random: speed does not depend on what they show.
"""

from __future__ import annotations

import copy
import gc
import logging
import os
import sys
import time
import warnings
from contextlib import nullcontext
from itertools import pairwise
from pathlib import Path
from typing import Any

import lightning as L
import torch
import yaml
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

sys.path.append(str(Path(__file__).parents[1] / "tests" / "support"))

from federations import Consecutive, trainer

import fl_lightning as fl
from fl_lightning.cli.ranks import choose_ranks
from fl_lightning.data import TensorLoader
from fl_lightning.functional.scheduling import draw_cohort

LR = 0.01
ROUNDS = {"W": 2, "W-eval": 1, "S": 30, "L": 3}
WIDTHS = (784, 4096, 4096, 4096, 3104, 10)


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


class Clock(L.Callback):
    """Seconds from the first round to the last, the first left out where it has something to prepare."""

    def __init__(self, skipped: int = 0) -> None:
        self.skipped = skipped
        self.begun = self.seconds = 0.0

    def on_train_epoch_start(self, trainer: L.Trainer, *_: Any) -> None:
        if trainer.current_epoch == self.skipped:
            self.begun = now(trainer.strategy.root_device)

    def on_train_end(self, trainer: L.Trainer, *_: Any) -> None:
        self.seconds = now(trainer.strategy.root_device) - self.begun


def now(device: torch.device) -> float:
    """Seconds, after a GPU has done what it was asked to do; those of the processor if PROCESSOR_TIME is set."""
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.process_time() if "PROCESSOR_TIME" in os.environ else time.perf_counter()


def perceptron() -> nn.Module:
    """49.5 million parameters."""
    layers = [layer for sizes in pairwise(WIDTHS) for layer in (nn.Linear(*sizes), nn.ReLU())]
    return nn.Sequential(nn.Flatten(), *layers[:-1])


class Workload:
    """One workload on one device.

    Args:
        name: W, W-eval, S or L.
        device: ``cpu`` or ``cuda``.
        clients: of S.
        cohort: of S.
        rounds: other than usual; 0 for these.
        share: of each client's examples, to try it out.
    """

    def __init__(
        self, name: str, device: str = "cpu", clients: int = 100, cohort: int = 10, rounds: int = 0, share: float = 1.0
    ) -> None:
        table = yaml.safe_load((Path(__file__).parent.parent / "configs" / "adafed_mnist.yaml").read_text())
        counts = table["data"]["partitioner"]["init_args"]["counts"]
        self.name, self.device = name, torch.device(device)
        sizes = {"S": [100] * clients, "L": [8] * 4}.get(name, [sum(row) for row in counts])
        self.sizes = [max(1, int(size * share)) for size in sizes]
        self.cohort: int | float = cohort if name == "S" else 1.0
        self.rounds = rounds or ROUNDS[name]
        torch.manual_seed(0)
        self.net = {"S": fl.LeNet, "L": perceptron}.get(name, fl.KerasCNN)()
        self.data = Images(sum(self.sizes), {"S": 10, "L": 8}.get(name, 100), {"S": 0, "L": 8}.get(name, int(10_000 * share)))

    def _accuracy(self, net: nn.Module, data: tuple[Tensor, Tensor]) -> float:
        net.eval()
        with torch.inference_mode():
            return int(sum((net(images).argmax(1) == labels).sum() for images, labels in TensorLoader(data, 100)))

    def by_hand(self, dtype: torch.dtype = torch.float32, autocast: torch.dtype | None = None) -> float:
        """Seconds per round of FedAvg as one would write it: tensors in memory, one resident client, a running sum.

        Args:
            dtype: of the sum.
            autocast: the dtype of AMP in training; None for float32.
        """
        gc.collect()  # of what another row left
        server, client = (copy.deepcopy(self.net).to(self.device) for _ in range(2))
        x, y = (tensor.to(self.device) for tensor in self.data.train)
        val = tuple(tensor.to(self.device) for tensor in self.data.val)
        parts = list(torch.arange(len(y)).split(self.sizes))
        begun = now(self.device)
        for round_idx in range(self.rounds):
            cohort = draw_cohort(len(self.sizes), self.cohort, 0, round_idx)
            total = [torch.zeros_like(p, dtype=dtype) for p in server.parameters()]
            examples = sum(self.sizes[k] for k in cohort)
            for k in cohort:
                client.load_state_dict(server.state_dict())
                client.train()
                optimizer = torch.optim.SGD(client.parameters(), lr=LR)
                order = parts[k][torch.randperm(self.sizes[k])].to(self.device)
                for batch in order.split(self.data.batch_size):
                    optimizer.zero_grad()
                    with nullcontext() if autocast is None else torch.autocast(self.device.type, autocast):
                        loss = F.cross_entropy(client(x[batch]), y[batch])
                    loss.backward()
                    optimizer.step()
                if self.name == "W-eval":
                    self._accuracy(client, val)
                with torch.no_grad():
                    torch._foreach_add_(total, list(client.parameters()), alpha=self.sizes[k] / examples)
            with torch.no_grad():
                torch._foreach_copy_(list(server.parameters()), total)
            if len(val[1]):
                self._accuracy(server, val)
        return (now(self.device) - begun) / self.rounds

    def ours(
        self,
        *callbacks: L.Callback,
        devices: int | str = 1,
        skipped: int = 0,
        eval_batch: Any = None,
        strategy: Any = None,
        **local: Any,
    ) -> float:
        """Seconds per round of the same as a federation.

        On the command line, ``devices auto`` chooses the number of ranks; here it chooses in the same way.
        """
        quiet()
        gc.collect()
        clock = Clock(skipped)
        callback = fl.FederatedOrchestrator(
            strategy=strategy or (fl.AdaFed() if self.name == "W-eval" else fl.FedAvg()),
            local=fl.LocalTraining(**local),
            server_evaluation=fl.ServerEvaluation(batch_size=eval_batch),
            clients_per_round=self.cohort,
        )
        data = fl.FederatedDataModule(self.data, Consecutive(self.sizes))
        if devices == "auto":
            devices = choose_ranks(callback, data)[0]
        run = self._trainer(skipped, callback, clock, *callbacks, devices=devices, strategy="auto" if devices == 1 else "ddp")
        run.fit(Plain(copy.deepcopy(self.net)), data)
        return clock.seconds / self.rounds

    def centrally(self, precision: Any = "32-true") -> float:
        """Seconds per epoch of a plain Trainer on all examples, evaluated as the federation is: what Lightning costs itself."""
        quiet()
        gc.collect()
        clock = Clock(1)
        tensors = [tensor.to(self.device) for tensor in self.data.train]
        train = TensorLoader(tensors, self.data.batch_size, None, torch.Generator().manual_seed(0))
        val = TensorLoader([tensor.to(self.device) for tensor in self.data.val], 100)
        self._trainer(1, clock, devices=1, precision=precision).fit(Plain(copy.deepcopy(self.net)), train, val)
        return clock.seconds / self.rounds

    def _trainer(self, skipped: int, *callbacks: L.Callback, **flags: Any) -> L.Trainer:
        kind = "gpu" if self.device.type == "cuda" else "cpu"
        return trainer(self.rounds + skipped, *callbacks, accelerator=kind, **flags)


def quiet() -> None:
    """Leave Lightning's advice out of the table."""
    warnings.filterwarnings("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    logging.getLogger("lightning.fabric").setLevel(logging.ERROR)
