"""A valid object of every public class with settings, and how it takes part in a round of training."""

import csv
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import h5py
import numpy as np
import torch
from command_line import ADAFED
from federations import Blobs, Consecutive, Plain, blobs, trainer
from PIL import Image
from small_images import paint
from torch import nn
from torch.utils.data import TensorDataset
from torchmetrics.classification import MulticlassAccuracy

import fl_lightning as fl
from fl_lightning.cells import CellSite
from fl_lightning.studies.panels import ReportOptions

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


def simulated() -> Any:
    return fl.FederatedDataModule(fl.SimulatedTasksDataModule(num_clients=2, test_examples=20), fl.DomainPartitioner())


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


@dataclass(frozen=True)
class Recipe:
    """How to build an object and train with it.

    Args:
        kind: the class.
        valid: the fewest arguments that it takes, made anew for each object.
        use: trains a round with the object, or does what it is for; None for what needs a network or large files.
    """

    kind: Callable[..., Any]
    valid: Callable[[], dict[str, Any]]
    use: Use | None


PLAIN = (
    (fl.FedAvg, fl.FedAvgM, fl.FedAdagrad, fl.FedDyn, fl.FedExP, fl.QFedAvg, fl.AFL, fl.APFL, fl.Ditto, fl.PFedMe, fl.Focus),
    (fl.Krum, fl.TrimmedMean, fl.GeometricMedian, fl.CosineFilter, fl.LastClient),
)
NOT_SETTINGS = {"ClientFailure", "ClientUpdate", "FederationWandbLogger", "Partition", "Sums", "SupervisedTask"}
"""What the package makes itself, the base of the tasks, and the logger, whose settings are Lightning's."""


def recipes() -> Iterator[Recipe]:
    """Every class with settings, once."""
    yield from parts_of_a_federation()
    yield from algorithms()
    yield from data()
    yield from models()
    yield from callbacks()


def parts_of_a_federation() -> Iterator[Recipe]:
    """The callback, and its settings without strategies."""
    yield Recipe(fl.FederatedOrchestrator, dict, trained)
    yield Recipe(fl.LocalTraining, dict, lambda made: fit(local=made))
    yield Recipe(fl.Faults, dict, setting("faults"))
    yield Recipe(fl.ServerEvaluation, dict, setting("server_evaluation", strategy=lambda: fl.AdaFed("val_acc")))
    yield Recipe(fl.ClientEvaluation, BY_ACCURACY, lambda made: fit(data=divided(client_test=0.3), client_evaluation=made))
    yield Recipe(fl.SecureAggregation, dict, setting("secure_aggregation"))
    yield Recipe(fl.Asynchronous, dict, setting("asynchronous"))
    yield Recipe(fl.Availability, dict, setting("availability"))
    yield Recipe(fl.Clock, dict, lambda made: fit(availability=fl.Availability(clock=made)))
    yield Recipe(fl.Storage, dict, setting("storage"))
    yield Recipe(fl.Checkpoints, dict, setting("checkpoints"))
    yield Recipe(fl.PartialWork, dict, local("partial_work", max_epochs=2))
    yield Recipe(fl.PersonalPart, lambda: {"names": "net.2.*"}, setting("personal", many=True))
    yield Recipe(fl.Attackers, lambda: {"clients": [0], "model": fl.SignFlip()}, setting("attackers"))
    for kind in (fl.ALIE, fl.GaussianUpdate, fl.InnerProductManipulation, fl.ScaledUpdate, fl.SignFlip):
        yield Recipe(kind, dict, attack("model"))
    for kind in (fl.PermutedLabels, fl.RandomLabels):
        yield Recipe(kind, dict, attack("labels"))
    yield Recipe(fl.RelabelClass, lambda: {"source": 0, "target": 1}, attack("labels"))
    yield Recipe(
        fl.Backdoor,
        dict,
        lambda thing: fit(
            task(fl.LeNet(num_classes=3)), in_two(Pictures()), attackers=fl.Attackers(clients=[0], backdoor=thing)
        ),
    )
    yield Recipe(fl.ClipUpdate, lambda: {"max_norm": 1.0}, setting("transforms", many=True))
    for kind in (fl.HalfPrecision, fl.Quantize, fl.TopK):
        yield Recipe(kind, dict, setting("transforms", many=True))
    private = setting("transforms", many=True, strategy=lambda: fl.FedAvg("uniform"))
    yield Recipe(fl.ClientPrivacy, lambda: {"max_norm": 1.0, "noise_multiplier": 0.1}, private)
    yield Recipe(fl.ExamplePrivacy, lambda: {"max_grad_norm": 1.0, "noise_multiplier": 0.5}, local("privacy"))
    yield Recipe(fl.FlowerPool, dict, None)


def algorithms() -> Iterator[Recipe]:
    """Strategies and routes."""
    for kind in (kind for row in PLAIN for kind in row):
        yield Recipe(kind, dict, setting("strategy"))
    for kind in (fl.AdaFed, fl.ShapleyValues):
        yield Recipe(kind, BY_ACCURACY, setting("strategy"))
    yield Recipe(fl.FedLoss, dict, setting("strategy", data=lambda: divided(client_validation=0.3)))
    yield Recipe(fl.MOON, lambda: {"representation": "net.1"}, setting("strategy"))
    for kind in (fl.FedAsync, fl.FedBuff):
        yield Recipe(kind, dict, setting("strategy", asynchronous=fl.Asynchronous))
    own = {"personal": lambda: [fl.PersonalPart(names="net.2.*")], "local": lambda: fl.LocalTraining(max_epochs=2)}
    for kind in (fl.FedRep, fl.FedBABU):
        yield Recipe(kind, dict, setting("strategy", **own))
    yield Recipe(fl.FederatedKMeans, dict, lambda made: clustered(fl.KMeansTask(3, 4), made))
    for kind in (fl.RingFed, fl.Mediators, fl.WarmStart):
        yield Recipe(kind, dict, setting("route"))
    for kind in (fl.FedStar, fl.LocalOnly):
        yield Recipe(kind, BY_ACCURACY, setting("route"))
    yield Recipe(fl.Mocha, dict, lambda made: fit(Linear(), route=made))
    yield Recipe(fl.ProximalRule, lambda: {"mu": 0.1}, lambda made: fit(strategy=Ruled(made)))
    yield Recipe(fl.Yogi, lambda: {"params": [nn.Parameter(torch.ones(2))]}, stepped)


def data() -> Iterator[Recipe]:
    """Partitioners and datamodules."""
    yield Recipe(
        fl.FederatedDataModule,
        lambda: {"datamodule": Blobs(), "partitioner": fl.IIDPartitioner(3)},
        lambda made: fit(data=made),
    )
    for kind in (fl.IIDPartitioner, fl.ShardPartitioner, fl.ClassesPartitioner):
        yield Recipe(kind, dict, partitioner)
    for kind in (fl.DirichletPartitioner, fl.QuantityPartitioner):
        yield Recipe(kind, lambda: {"num_clients": 4, "min_examples": 1}, partitioner)
    yield Recipe(fl.AdaFedSimulation1, dict, lambda made: made.partition(70_000, torch.arange(70_000) % 10))
    yield Recipe(fl.TablePartitioner, lambda: {"counts": [[9, 9, 9], [9, 0, 9]]}, partitioner)
    yield Recipe(fl.FlowerPartitioner, lambda: {"partitioner": flower_partitioner()}, partitioner)
    yield Recipe(fl.ColumnPartitioner, lambda: {"column": "b"}, lambda made: fit(data=fl.FederatedDataModule(Named(), made)))
    yield Recipe(fl.DomainPartitioner, dict, lambda made: cells(fl.CellFolderDataModule(str(files() / "cells")), made))
    yield Recipe(fl.SimulatedTasksDataModule, lambda: {"num_clients": 2, "test_examples": 20}, simulation)
    few = lambda: {"image_size": 16, "test_images": 4, "sites": {"a": CellSite(images=2), "b": CellSite(images=2)}}  # noqa: E731
    yield Recipe(fl.SimulatedCellsDataModule, few, cells)
    yield Recipe(CellSite, dict, lambda made: cells(fl.SimulatedCellsDataModule({"a": made}, 16, 4)))
    yield Recipe(fl.CellFolderDataModule, lambda: {"root": str(files() / "cells")}, cells)
    yield Recipe(fl.ImageFolderDataModule, lambda: {"root": str(files() / "images"), "test_share": 0.25}, photographs)
    yield Recipe(fl.TableDataModule, lambda: {"path": str(files() / "table.csv")}, tables)
    yield Recipe(fl.HDF5Clients, of_files("clients.h5"), lambda thing: fit(data=fl.FederatedDataModule(thing)))
    yield Recipe(Points, dict, lambda thing: fit(data=fl.FederatedDataModule(thing)))
    yield Recipe(Pictures, dict, lambda made: fit(task(fl.LeNet(num_classes=3)), in_two(made)))
    yield Recipe(
        fl.MNISTDataModule, lambda: {"source": "embedded"}, lambda made: fit(task(fl.MLP(), num_classes=10), in_two(made))
    )
    yield Recipe(fl.TorchvisionDataModule, lambda: {"name": "USPS"}, None)
    network = lambda: task(fl.LeNet(num_classes=3))  # noqa: E731
    yield Recipe(fl.LabelAveraging, dict, lambda made: fit(network(), divided(Pictures, rebalancing=made)))
    yield Recipe(fl.RandomCropFlip, dict, lambda made: fit(network(), in_two(Pictures(augmentation=made))))


def models() -> Iterator[Recipe]:
    """Tasks, networks, losses and metrics."""
    yield Recipe(fl.ClassificationTask, lambda: {"network": fl.MLP(4, [8], 3), "num_classes": 3}, fit)
    yield Recipe(fl.RegressionTask, lambda: {"network": fl.MLP(10, [8], 1)}, lambda made: fit(made, simulated()))
    yield Recipe(fl.KMeansTask, lambda: {"num_clusters": 3, "num_features": 4}, clustered)
    for kind in (fl.KerasCNN, fl.LeNet, fl.MLP):
        yield Recipe(kind, lambda: {"num_classes": 3}, network())
    yield Recipe(fl.ResNet18, lambda: {"num_classes": 3}, network(Colours))
    yield Recipe(fl.VGG19, lambda: {"num_classes": 3, "hidden": [4]}, network(Colours))
    yield Recipe(fl.FrozenBackbone, lambda: {"backbone": nn.Flatten(), "head": nn.Linear(784, 3)}, network())
    yield Recipe(fl.Standardized, lambda: {"network": fl.MLP(4, [8], 3), "num_features": 4}, lambda made: fit(task(made)))
    yield Recipe(fl.UNet, lambda: {"width": 2}, drawing)
    yield Recipe(fl.DensityCount, dict, lambda made: drawing(fl.UNet(width=1), readout=made))
    yield Recipe(fl.PredictionImages, dict, lambda made: drawing(fl.UNet(width=1), made))
    for kind in (fl.CrossEntropy, fl.Hinge):
        yield Recipe(kind, dict, loss)
    yield Recipe(fl.F1WeightedCrossEntropy, lambda: {"num_classes": 3}, loss)
    recall = lambda: {"metric": MulticlassAccuracy(3, average="none"), "num_classes": 3}  # noqa: E731
    yield Recipe(fl.MetricWeightedCrossEntropy, recall, loss)
    yield Recipe(fl.ProximalLoss, lambda: {"loss": nn.CrossEntropyLoss()}, loss)
    yield Recipe(fl.RobustLoss, dict, lambda thing: fit(fl.RegressionTask(fl.MLP(10, [8], 1), loss=thing), simulated()))
    yield Recipe(fl.DiagnosticOddsRatio, lambda: {"num_classes": 3}, lambda made: fit(strategy=fl.AdaFed(made)))
    yield Recipe(fl.CalibrationCurve, dict, lambda made: made(torch.rand(6), torch.arange(6) % 2))
    yield Recipe(fl.PercentageError, dict, lambda made: made(torch.ones(3), torch.ones(3)))


def callbacks() -> Iterator[Recipe]:
    """What is given to a Trainer, and studies."""
    yield Recipe(fl.BestCheckpoint, lambda: {"monitor": "val_acc"}, callback)
    for kind in (fl.LastCheckpoint, fl.FederationReport, fl.FeatureCache):
        yield Recipe(kind, dict, callback)
    yield Recipe(fl.TransferLearning, lambda: {"parts": ["net.0"]}, callback)
    yield Recipe(fl.AtomicCheckpointIO, dict, lambda made: fit(flags={"plugins": [made]}))
    yield Recipe(fl.Study, lambda: {"base": ADAFED}, lambda made: made.runs)
    yield Recipe(ReportOptions, dict, lambda made: fl.Study(ADAFED, report=made).runs)


def public_name(kind: Any) -> str:
    """The name of a class, or of the package's class that a class of this file stands for."""
    return next(one.__name__ for one in kind.__mro__ if one.__module__.startswith("fl_lightning"))


RECIPES = {public_name(recipe.kind): recipe for recipe in recipes()}
