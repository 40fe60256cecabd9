"""A valid object of every public class with settings, and how it takes part in a round of training."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import torch
from algorithms import ThreeLines
from client_files import write_hdf5
from command_line import ADAFED
from federations import Blobs, Consecutive, Plain, blobs, trainer
from lazy_stores import SIZES
from refusing import made
from small_images import by_class, picture
from small_tables import write
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


Colours = made("Colours", Pictures, size=32, channels=3)
Drawings = made("Drawings", Pictures, size=16, drawn=True)  # with images as their targets


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
    write_hdf5(folder / "clients.h5")
    write(folder / "table.csv", "a,b,target", *(f"{k % 7},{k % 5},{k % 3}" for k in range(40)))
    by_class(folder / "images")
    for client, k in product(("delft", "oxford"), range(4)):
        picture(folder / "cells" / client / f"{k}.png", 16, 16, seed=k)
        write(folder / "cells" / client / f"{k}.csv", "x,y", "3,4")
    return folder


Points = made(
    *("Points", fl.LazyClients),
    num_examples=lambda self: SIZES,
    open=lambda self, client: TensorDataset(*blobs(SIZES[client], client)),
)


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
    yield Recipe(fl.LocalTraining, dict, lambda thing: fit(local=thing))
    yield Recipe(fl.Faults, dict, setting("faults"))
    yield Recipe(fl.ServerEvaluation, dict, setting("server_evaluation", strategy=lambda: fl.AdaFed("val_acc")))
    yield Recipe(fl.ClientEvaluation, BY_ACCURACY, lambda thing: fit(data=divided(client_test=0.3), client_evaluation=thing))
    yield Recipe(fl.SecureAggregation, dict, setting("secure_aggregation"))
    yield Recipe(fl.Asynchronous, dict, setting("asynchronous"))
    yield Recipe(fl.Availability, dict, setting("availability"))
    yield Recipe(fl.Clock, dict, lambda thing: fit(availability=fl.Availability(clock=thing)))
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
    yield Recipe(fl.FederatedKMeans, dict, lambda thing: clustered(fl.KMeansTask(3, 4), thing))
    for kind in (fl.RingFed, fl.Mediators, fl.WarmStart):
        yield Recipe(kind, dict, setting("route"))
    for kind in (fl.FedStar, fl.LocalOnly):
        yield Recipe(kind, BY_ACCURACY, setting("route"))
    yield Recipe(fl.Mocha, dict, lambda thing: fit(ThreeLines(), route=thing))
    yield Recipe(fl.ProximalRule, lambda: {"mu": 0.1}, lambda thing: fit(strategy=Ruled(thing)))
    yield Recipe(fl.Yogi, lambda: {"params": [nn.Parameter(torch.ones(2))]}, stepped)


def data() -> Iterator[Recipe]:
    """Partitioners and datamodules."""
    yield Recipe(
        fl.FederatedDataModule,
        lambda: {"datamodule": Blobs(), "partitioner": fl.IIDPartitioner(3)},
        lambda thing: fit(data=thing),
    )
    for kind in (fl.IIDPartitioner, fl.ShardPartitioner, fl.ClassesPartitioner):
        yield Recipe(kind, dict, partitioner)
    for kind in (fl.DirichletPartitioner, fl.QuantityPartitioner):
        yield Recipe(kind, lambda: {"num_clients": 4, "min_examples": 1}, partitioner)
    yield Recipe(fl.AdaFedSimulation1, dict, lambda thing: thing.partition(70_000, torch.arange(70_000) % 10))
    yield Recipe(fl.TablePartitioner, lambda: {"counts": [[9, 9, 9], [9, 0, 9]]}, partitioner)
    yield Recipe(fl.FlowerPartitioner, lambda: {"partitioner": flower_partitioner()}, partitioner)
    yield Recipe(fl.ColumnPartitioner, lambda: {"column": "b"}, lambda thing: fit(data=fl.FederatedDataModule(Named(), thing)))
    yield Recipe(fl.DomainPartitioner, dict, lambda thing: cells(fl.CellFolderDataModule(str(files() / "cells")), thing))
    yield Recipe(fl.SimulatedTasksDataModule, lambda: {"num_clients": 2, "test_examples": 20}, simulation)
    few = lambda: {"image_size": 16, "test_images": 4, "sites": {"a": CellSite(images=2), "b": CellSite(images=2)}}  # noqa: E731
    yield Recipe(fl.SimulatedCellsDataModule, few, cells)
    yield Recipe(CellSite, dict, lambda thing: cells(fl.SimulatedCellsDataModule({"a": thing}, 16, 4)))
    yield Recipe(fl.CellFolderDataModule, lambda: {"root": str(files() / "cells")}, cells)
    yield Recipe(fl.ImageFolderDataModule, lambda: {"root": str(files() / "images"), "test_share": 0.25}, photographs)
    yield Recipe(fl.TableDataModule, lambda: {"path": str(files() / "table.csv")}, tables)
    yield Recipe(fl.HDF5Clients, of_files("clients.h5"), lambda thing: fit(data=fl.FederatedDataModule(thing)))
    yield Recipe(Points, dict, lambda thing: fit(data=fl.FederatedDataModule(thing)))
    yield Recipe(Pictures, dict, lambda thing: fit(task(fl.LeNet(num_classes=3)), in_two(thing)))
    yield Recipe(
        fl.MNISTDataModule, lambda: {"source": "embedded"}, lambda thing: fit(task(fl.MLP(), num_classes=10), in_two(thing))
    )
    yield Recipe(fl.TorchvisionDataModule, lambda: {"name": "USPS"}, None)
    network = lambda: task(fl.LeNet(num_classes=3))  # noqa: E731
    yield Recipe(fl.LabelAveraging, dict, lambda thing: fit(network(), divided(Pictures, rebalancing=thing)))
    yield Recipe(fl.RandomCropFlip, dict, lambda thing: fit(network(), in_two(Pictures(augmentation=thing))))


def models() -> Iterator[Recipe]:
    """Tasks, networks, losses and metrics."""
    yield Recipe(fl.ClassificationTask, lambda: {"network": fl.MLP(4, [8], 3), "num_classes": 3}, fit)
    yield Recipe(fl.RegressionTask, lambda: {"network": fl.MLP(10, [8], 1)}, lambda thing: fit(thing, simulated()))
    yield Recipe(fl.KMeansTask, lambda: {"num_clusters": 3, "num_features": 4}, clustered)
    for kind in (fl.KerasCNN, fl.LeNet, fl.MLP):
        yield Recipe(kind, lambda: {"num_classes": 3}, network())
    yield Recipe(fl.ResNet18, lambda: {"num_classes": 3}, network(Colours))
    yield Recipe(fl.VGG19, lambda: {"num_classes": 3, "hidden": [4]}, network(Colours))
    yield Recipe(fl.FrozenBackbone, lambda: {"backbone": nn.Flatten(), "head": nn.Linear(784, 3)}, network())
    yield Recipe(fl.Standardized, lambda: {"network": fl.MLP(4, [8], 3), "num_features": 4}, lambda thing: fit(task(thing)))
    yield Recipe(fl.UNet, lambda: {"width": 2}, drawing)
    yield Recipe(fl.DensityCount, dict, lambda thing: drawing(fl.UNet(width=1), readout=thing))
    yield Recipe(fl.PredictionImages, dict, lambda thing: drawing(fl.UNet(width=1), thing))
    for kind in (fl.CrossEntropy, fl.Hinge):
        yield Recipe(kind, dict, loss)
    yield Recipe(fl.F1WeightedCrossEntropy, lambda: {"num_classes": 3}, loss)
    recall = lambda: {"metric": MulticlassAccuracy(3, average="none"), "num_classes": 3}  # noqa: E731
    yield Recipe(fl.MetricWeightedCrossEntropy, recall, loss)
    yield Recipe(fl.ProximalLoss, lambda: {"loss": nn.CrossEntropyLoss()}, loss)
    yield Recipe(fl.RobustLoss, dict, lambda thing: fit(fl.RegressionTask(fl.MLP(10, [8], 1), loss=thing), simulated()))
    yield Recipe(fl.DiagnosticOddsRatio, lambda: {"num_classes": 3}, lambda thing: fit(strategy=fl.AdaFed(thing)))
    yield Recipe(fl.CalibrationCurve, dict, lambda thing: thing(torch.rand(6), torch.arange(6) % 2))
    yield Recipe(fl.PercentageError, dict, lambda thing: thing(torch.ones(3), torch.ones(3)))


def callbacks() -> Iterator[Recipe]:
    """What is given to a Trainer, and studies."""
    yield Recipe(fl.BestCheckpoint, lambda: {"monitor": "val_acc"}, callback)
    for kind in (fl.LastCheckpoint, fl.FederationReport, fl.FeatureCache):
        yield Recipe(kind, dict, callback)
    yield Recipe(fl.TransferLearning, lambda: {"parts": ["net.0"]}, callback)
    yield Recipe(fl.AtomicCheckpointIO, dict, lambda thing: fit(flags={"plugins": [thing]}))
    yield Recipe(fl.Study, lambda: {"base": ADAFED}, lambda thing: thing.runs)
    yield Recipe(ReportOptions, dict, lambda thing: fl.Study(ADAFED, report=thing).runs)


def public_name(kind: Any) -> str:
    """The name of a class, or of the package's class that a class of this file stands for."""
    return next(one.__name__ for one in kind.__mro__ if one.__module__.startswith("fl_lightning"))


RECIPES = {public_name(recipe.kind): recipe for recipe in recipes()}
