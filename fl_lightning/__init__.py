"""Federated learning as an ordinary Lightning run: one callback federates any LightningModule."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from fl_lightning.strategies import __all__ as _strategies

__version__ = "0.2.0"

_NAMES = {
    "utilities.allocator": "keep_freed_memory",
    "utilities.checkpoints": "AtomicCheckpointIO",
    "attacks": (
        "ALIE Backdoor GaussianUpdate InnerProductManipulation LabelAttack ModelAttack PermutedLabels "
        "RandomLabels RelabelClass ScaledUpdate SignFlip"
    ),
    "callbacks": (
        "BestCheckpoint FeatureCache FederatedOrchestrator FederationCallback FederationProgressBar FederationReport "
        "LastCheckpoint PredictionImages TransferLearning"
    ),
    "cells": "CellFolderDataModule SimulatedCellsDataModule",
    "core": "ClientHooks Option ServerHooks",
    "data": (
        "FederatedDataModule HDF5Clients ImageDataModule ImageFolderDataModule "
        "LabelAveraging LazyClients MNISTDataModule RandomCropFlip "
        "SimulatedTasksDataModule TableDataModule TorchvisionDataModule"
    ),
    "errors": "CheckpointError ClientError ConfigurationError DataError FederationError",
    "flower": "FlowerPool",
    "functional": "Partition Sums",
    "losses": (
        "AdaptiveLoss CrossEntropy F1WeightedCrossEntropy HalfSquaredError Hinge MetricWeightedCrossEntropy "
        "ProximalLoss RobustLoss"
    ),
    "metrics": "CalibrationCurve DiagnosticOddsRatio PercentageError",
    "models": "DensityCount FrozenBackbone KerasCNN LeNet MLP ResNet18 Standardized UNet VGG19",
    "optimizers": "Yogi",
    "partitioners": (
        "AdaFedSimulation1 ClassesPartitioner ColumnPartitioner DirichletPartitioner DomainPartitioner "
        "FlowerPartitioner IIDPartitioner Partitioner QuantityPartitioner ShardPartitioner TablePartitioner"
    ),
    "options": (
        "Asynchronous Attackers Availability ClientEvaluation ClientPrivacy Clock ExamplePrivacy PartialWork PersonalPart "
        "SecureAggregation"
    ),
    "reporting.wandb": "FederationWandbLogger",
    "rules": "ClientRule ControlVariates ProximalRule",
    "routes": "FedCyclic FedStar LocalOnly Mediators Mocha PeriodRoute RingFed Route ServerRoute WarmStart",
    "settings": "Checkpoints Faults LocalTraining ServerEvaluation Storage",
    "strategies": " ".join(name for name in _strategies if name != "ModelScorer"),  # a protocol for strategies of one's own
    "studies": "Study",
    "tasks": "ClassificationTask KMeansTask LossAdaptation RegressionTask SupervisedTask",
    "transforms": "ClipUpdate HalfPrecision Quantize TopK Transform",
    "types": "ClientFailure ClientUpdate",
}
"""The public names of each subpackage. ``__init__.pyi`` lists them for type checkers."""

_INSTEAD = {
    **{
        f"{name}DataModule": f"TorchvisionDataModule with 'name: {name}'"
        for name in ("CIFAR10", "CIFAR100", "FashionMNIST", "SVHN", "USPS")
    },
    **{
        name: f"a LazyClients of your own: docs/examples/file_clients.py has {name} to copy"
        for name in ("ArrayClients", "ParquetClients")
    },
    **dict.fromkeys(("ClientTable", "FailureLog", "PartitionReport"), "FederationReport, with 'clients' and 'partition'"),
    "partition_report": "'federation_report', where 'enabled' is 'partition'",
    "client_table": "'federation_report', where 'enabled' is 'clients'",
    "failure_log": "'federation_report', which always writes failures.csv",
}
"""What to write in place of former names and sections."""

_HOME = {name: part for part, names in _NAMES.items() for name in names.split()}
_PART_NAMES = (
    "attacks callbacks cells cli clients compat config core data errors flower functional losses metrics models optimizers "
    "options partitioners reporting routes rules server settings strategies studies tasks transforms types utilities"
)
_PARTS = tuple(_PART_NAMES.split())  # a literal would take a line for each

__all__ = ["__version__", *sorted(_HOME)]


def __getattr__(name: str) -> Any:
    """Import a name on first use, so that ``import fl_lightning`` does not wait for torch."""
    if name in _PARTS:
        return import_module(f"fl_lightning.{name}")
    if name in _INSTEAD:
        raise ImportError(f"'{name}' is gone.{instead_of(name)}")  # an AttributeError would lose its text in 'from ... import'
    if name not in _HOME:
        raise AttributeError(f"module 'fl_lightning' has no attribute '{name}'")
    globals()[name] = found = getattr(import_module(f"fl_lightning.{_HOME[name]}"), name)
    return found


def instead_of(name: str) -> str:
    """Return what to write in place of a former name, as a sentence; empty for any other name."""
    return f" Write {_INSTEAD[name]}." if name in _INSTEAD else ""


def __dir__() -> list[str]:
    return [*__all__, *_PARTS]
