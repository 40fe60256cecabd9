"""Ways in which an object takes part in a round of training, and small data of each kind."""

from __future__ import annotations

import csv
from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import h5py
import numpy as np
import torch
from federations import Blobs, Consecutive, Plain, blobs, trainer
from PIL import Image
from small_images import paint
from torch import nn
from torch.utils.data import TensorDataset

import fl_lightning as fl

Use = Callable[[Any], Any]


def fit(module: Any = None, data: Any = None, *callbacks: Any, local: Any = None, flags: Any = None, **settings: Any) -> Any:
    """Train a round, of one epoch at each client unless ``local`` is given; return the Trainer."""
    federation = fl.FederatedOrchestrator(local=local or fl.LocalTraining(engine="fabric"), **settings)
    run = trainer(1, federation, *callbacks, **(flags or {}))
    data = fl.FederatedDataModule(Blobs(), Consecutive()) if data is None else data
    run.fit(module if module is not None else Plain(), data)
    return run


def setting(name: str, many: bool = False, **others: Any) -> Use:
    """The object is a setting of the orchestrator, or one of its list."""
    return lambda thing: fit(**{name: [thing] if many else thing}, **{k: v() for k, v in others.items()})


def local(name: str, **others: Any) -> Use:
    """The object is a setting of the local training."""
    return lambda thing: fit(local=fl.LocalTraining(**{name: thing}, engine="fabric", **others))


def partitioner(thing: Any) -> Any:
    """The object divides 600 examples."""
    return fit(data=fl.FederatedDataModule(Blobs(600, 200), thing))


def callback(thing: Any) -> Any:
    """The object is another callback of the run."""
    return fit(None, None, thing, flags={"default_root_dir": mkdtemp(), "enable_checkpointing": True})


def attack(name: str) -> Use:
    """The object is what client 0 does."""
    return lambda thing: fit(attackers=fl.Attackers(clients=[0], **{name: thing}))


def task(network: Any = None, **settings: Any) -> Any:
    """A classification of points in three classes."""
    settings = {"num_classes": 3, **settings}
    return fl.ClassificationTask(network if network is not None else fl.MLP(4, [8], 3), **settings)


class Pictures(fl.ImageDataModule):
    """12 images in three classes."""

    size, channels, drawn = 28, 1, False

    def setup(self, stage: str) -> None:
        x = torch.randint(0, 256, (12, self.channels, self.size, self.size), dtype=torch.uint8)
        y = torch.rand(12, 1, self.size, self.size) if self.drawn else torch.arange(12) % 3
        self._train = self._test = TensorDataset(x, y)


class Colours(Pictures):
    """Images of three channels."""

    size, channels = 32, 3


class Drawings(Pictures):
    """Images with images as their targets."""

    size, drawn = 16, True


def in_two(data: Any) -> Any:
    return fl.FederatedDataModule(data, fl.IIDPartitioner(2))


def network(data: Any = Pictures) -> Use:
    """The object classifies images."""
    return lambda thing: fit(task(thing), in_two(data()))


def drawing(thing: Any, *callbacks: Any, **settings: Any) -> Any:
    """The object draws images."""
    return fit(fl.RegressionTask(thing, **settings), in_two(Drawings()), *callbacks)


def loss(thing: Any) -> Any:
    """The object is the loss of a classification."""
    return fit(task(loss=thing))


def regression(thing: Any) -> Any:
    """The object is the loss of a regression."""
    return fit(fl.RegressionTask(fl.MLP(10, [8], 1), loss=thing), simulated())


def simulated() -> Any:
    return fl.FederatedDataModule(fl.SimulatedTasksDataModule(num_clients=2, test_examples=20), fl.DomainPartitioner())


def points(thing: Any) -> Any:
    """The object holds the clients of ``files``."""
    return fit(data=fl.FederatedDataModule(thing))


def tables(thing: Any) -> Any:
    """The object reads a table of two numbers."""
    thing.setup("fit")
    width = thing.train_dataloader().dataset[0][0].numel()
    if thing.kind == "classification":
        return fit(task(fl.MLP(width, [4], 50), num_classes=50), in_two(thing))
    return fit(fl.RegressionTask(fl.MLP(width, [4], 1)), in_two(thing))


def photographs(thing: Any) -> Any:
    """The object reads folders of images."""
    thing.setup("fit")
    width = thing.train_dataloader().dataset[0][0].numel()
    return fit(task(fl.MLP(width, [4], 3)), in_two(thing))


def cells(thing: Any, partitioner: Any = None) -> Any:
    """The object has images of cells."""
    divided = fl.FederatedDataModule(thing, partitioner or fl.DomainPartitioner())
    return fit(fl.RegressionTask(fl.UNet(width=1, depth=1)), divided)


def clustered(module: Any, strategy: Any = None) -> Any:
    """K-means of points."""
    return fit(module, strategy=strategy or fl.FederatedKMeans(), local=fl.LocalTraining())


class Linear(Plain):
    """A linear model."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 3))


class Ruled(fl.FedAvg):
    """Averages what clients train by a rule."""

    def __init__(self, rule: fl.ClientRule) -> None:
        super().__init__()
        self.rule = rule

    def client_rule(self) -> fl.ClientRule:
        return self.rule


def trained(federation: Any) -> Any:
    """Train a round with the whole callback."""
    run = trainer(1, federation)
    run.fit(Plain(), fl.FederatedDataModule(Blobs(), Consecutive()))
    return run


def divided(kind: Any = Blobs, **settings: Any) -> Any:
    """Three clients, of points by default."""
    return fl.FederatedDataModule(kind(), fl.IIDPartitioner(3), **settings)


def backdoor(thing: Any) -> Any:
    """The object marks the images of client 0."""
    return fit(task(fl.LeNet(num_classes=3)), in_two(Pictures()), attackers=fl.Attackers(clients=[0], backdoor=thing))


class Named(Blobs):
    """Its examples have a column of two words."""

    def train_dataloader(self) -> Any:
        loader = super().train_dataloader()
        loader.dataset.b = ["north", "south"] * (len(loader.dataset) // 2)
        return loader


def simulation(thing: Any) -> Any:
    """The object simulates the clients' numbers."""
    linear = nn.Linear(thing.features, 2 if thing.kind == "classification" else 1)
    whole = task(linear, num_classes=2) if thing.kind == "classification" else fl.RegressionTask(linear)
    return fit(whole, fl.FederatedDataModule(thing, fl.DomainPartitioner()))


def flower_partitioner() -> Any:
    from flwr_datasets.partitioner import IidPartitioner

    return IidPartitioner(2)


def stepped(optimizer: Any) -> Any:
    """The object steps its own parameters."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


# ---------------------------------------------------------------- files


@cache
def files() -> Path:
    """A folder with small data in each format."""
    folder = Path(mkdtemp())
    each = [tuple(part.numpy() for part in blobs(n, client)) for client, n in enumerate((7, 12, 5))]
    with h5py.File(folder / "clients.h5", "w") as file:
        for k, (inputs, labels) in enumerate(each):
            group = file.create_group(f"examples/f{k}")
            group["x"], group["y"] = inputs, labels
    with open(folder / "table.csv", "w", newline="") as opened:
        rows = csv.writer(opened)
        rows.writerow(["a", "b", "target"])
        rows.writerows([k % 7, k % 5, k % 3] for k in range(40))
    for k, name in enumerate(("cat", "dog", "emu")):
        paint(folder / "images" / name, 4, size=8, seed=k)
    for client in ("delft", "oxford"):
        (folder / "cells" / client).mkdir(parents=True)
        for k in range(4):
            Image.fromarray(np.full((16, 16), 10 * k, dtype=np.uint8)).save(folder / "cells" / client / f"{k}.png")
            (folder / "cells" / client / f"{k}.csv").write_text("x,y\n3,4\n")
    return folder


class Points(fl.LazyClients):
    """Three clients that are read when they are drawn."""

    def num_examples(self) -> Any:
        return torch.tensor([7, 12, 5])

    def open(self, client: int) -> Any:
        return TensorDataset(*blobs([7, 12, 5][client], client))


BY_ACCURACY = lambda: {"metric": "val_acc"}  # noqa: E731


def of_files(name: str) -> Callable[[], dict[str, Any]]:
    return lambda: {"path": str(files() / name), "fields": ["x", "y"]}
