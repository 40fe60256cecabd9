"""A valid object of every public class with settings, and how it takes part in a round of training."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from command_line import ADAFED
from federations import Blobs
from signature_uses import (
    BY_ACCURACY,
    Colours,
    Linear,
    Named,
    Pictures,
    Points,
    Ruled,
    Use,
    attack,
    backdoor,
    callback,
    cells,
    clustered,
    divided,
    drawing,
    files,
    fit,
    flower_partitioner,
    in_two,
    local,
    loss,
    network,
    of_files,
    partitioner,
    photographs,
    points,
    regression,
    setting,
    simulated,
    simulation,
    stepped,
    tables,
    task,
    trained,
)
from torch import nn
from torchmetrics.classification import MulticlassAccuracy

import fl_lightning as fl
from fl_lightning.cells import CellSite
from fl_lightning.studies.options import ReportOptions


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
    yield Recipe(fl.Backdoor, dict, backdoor)
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
    yield Recipe(fl.HDF5Clients, of_files("clients.h5"), points)
    yield Recipe(Points, dict, points)
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
    yield Recipe(fl.RobustLoss, dict, regression)
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
