"""Federated learning as an ordinary Lightning run: one callback federates any LightningModule."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fl_lightning.allocator import keep_freed_memory
    from fl_lightning.attacks import (
        ALIE,
        Backdoor,
        Crowd,
        GaussianUpdate,
        InnerProductManipulation,
        LabelAttack,
        ModelAttack,
        PermutedLabels,
        RandomLabels,
        RelabelClass,
        ScaledUpdate,
        SignFlip,
    )
    from fl_lightning.callbacks import (
        AtomicCheckpointIO,
        BestCheckpoint,
        ClientTable,
        FailureLog,
        FeatureCache,
        FederatedOrchestrator,
        FederationCallback,
        FederationProgressBar,
        LastCheckpoint,
        PartitionReport,
        PredictionImages,
    )
    from fl_lightning.clients import (
        Attackers,
        Availability,
        ClientEvaluation,
        ExamplePrivacy,
        Faults,
        LocalTraining,
        PartialWork,
        SecureAggregation,
        ServerEvaluation,
    )
    from fl_lightning.data import (
        CellFolderDataModule,
        CellSite,
        CIFAR10DataModule,
        CIFAR100DataModule,
        FashionMNISTDataModule,
        FederatedDataModule,
        ImageDataModule,
        ImageFolderDataModule,
        LabelAveraging,
        MNISTDataModule,
        RandomCropFlip,
        SimulatedCellsDataModule,
        SVHNDataModule,
        TensorLoader,
        USPSDataModule,
    )
    from fl_lightning.errors import CheckpointError, ClientError, ConfigurationError, DataError, FederationError, RankError
    from fl_lightning.functional import Partition, Sums
    from fl_lightning.losses import CrossEntropy, F1WeightedCrossEntropy, ProximalLoss
    from fl_lightning.metrics import DiagnosticOddsRatio
    from fl_lightning.models import MLP, VGG19, DensityCount, FrozenBackbone, KerasCNN, LeNet, ResNet18, UNet
    from fl_lightning.optimizers import Yogi
    from fl_lightning.partitioners import (
        AdaFedSimulation1,
        ClassesPartitioner,
        ColumnPartitioner,
        DirichletPartitioner,
        DomainPartitioner,
        FlowerPartitioner,
        IIDPartitioner,
        Partitioner,
        QuantityPartitioner,
        ShardPartitioner,
        TablePartitioner,
    )
    from fl_lightning.routes import (
        Cohort,
        FedCyclic,
        FedStar,
        LocalOnly,
        Mediators,
        PeriodRoute,
        RingFed,
        Route,
        ServerRoute,
        WarmStart,
    )
    from fl_lightning.strategies import (
        AdaFed,
        CosineFilter,
        FedAvg,
        FedAvgM,
        FedLoss,
        FedMedian,
        FedNova,
        FedSGD,
        FilteringStrategy,
        Focus,
        GeometricMedian,
        JointStrategy,
        Krum,
        LastClient,
        RunningStrategy,
        Scaffold,
        ShapleyValues,
        Strategy,
        TrimmedMean,
        WeightedAverage,
        Worth,
    )
    from fl_lightning.studies import ReportOptions, RunTable, Study
    from fl_lightning.tasks import ClassificationTask
    from fl_lightning.transforms import (
        ClientPrivacy,
        ClipUpdate,
        Message,
        Quantize,
        Sender,
        TopK,
        Transform,
    )
    from fl_lightning.types import (
        ClientFailure,
        ClientUpdate,
        RoundStart,
        Snapshot,
    )

__version__ = "0.1.0"

__all__ = [
    "ALIE",
    "MLP",
    "VGG19",
    "AdaFed",
    "AdaFedSimulation1",
    "AtomicCheckpointIO",
    "Attackers",
    "Availability",
    "Backdoor",
    "BestCheckpoint",
    "CIFAR10DataModule",
    "CIFAR100DataModule",
    "CellFolderDataModule",
    "CellSite",
    "CheckpointError",
    "ClassesPartitioner",
    "ClassificationTask",
    "ClientError",
    "ClientEvaluation",
    "ClientFailure",
    "ClientPrivacy",
    "ClientTable",
    "ClientUpdate",
    "ClipUpdate",
    "Cohort",
    "ColumnPartitioner",
    "ConfigurationError",
    "CosineFilter",
    "CrossEntropy",
    "Crowd",
    "DataError",
    "DensityCount",
    "DiagnosticOddsRatio",
    "DirichletPartitioner",
    "DomainPartitioner",
    "ExamplePrivacy",
    "F1WeightedCrossEntropy",
    "FailureLog",
    "FashionMNISTDataModule",
    "Faults",
    "FeatureCache",
    "FedAvg",
    "FedAvgM",
    "FedCyclic",
    "FedLoss",
    "FedMedian",
    "FedNova",
    "FedSGD",
    "FedStar",
    "FederatedDataModule",
    "FederatedOrchestrator",
    "FederationCallback",
    "FederationError",
    "FederationProgressBar",
    "FilteringStrategy",
    "FlowerPartitioner",
    "Focus",
    "FrozenBackbone",
    "GaussianUpdate",
    "GeometricMedian",
    "IIDPartitioner",
    "ImageDataModule",
    "ImageFolderDataModule",
    "InnerProductManipulation",
    "JointStrategy",
    "KerasCNN",
    "Krum",
    "LabelAttack",
    "LabelAveraging",
    "LastCheckpoint",
    "LastClient",
    "LeNet",
    "LocalOnly",
    "LocalTraining",
    "MNISTDataModule",
    "Mediators",
    "Message",
    "ModelAttack",
    "PartialWork",
    "Partition",
    "PartitionReport",
    "Partitioner",
    "PeriodRoute",
    "PermutedLabels",
    "PredictionImages",
    "ProximalLoss",
    "QuantityPartitioner",
    "Quantize",
    "RandomCropFlip",
    "RandomLabels",
    "RankError",
    "RelabelClass",
    "ReportOptions",
    "ResNet18",
    "RingFed",
    "RoundStart",
    "Route",
    "RunTable",
    "RunningStrategy",
    "SVHNDataModule",
    "Scaffold",
    "ScaledUpdate",
    "SecureAggregation",
    "Sender",
    "ServerEvaluation",
    "ServerRoute",
    "ShapleyValues",
    "ShardPartitioner",
    "SignFlip",
    "SimulatedCellsDataModule",
    "Snapshot",
    "Strategy",
    "Study",
    "Sums",
    "TablePartitioner",
    "TensorLoader",
    "TopK",
    "Transform",
    "TrimmedMean",
    "UNet",
    "USPSDataModule",
    "WarmStart",
    "WeightedAverage",
    "Worth",
    "Yogi",
    "__version__",
    "keep_freed_memory",
]

_PARTS = (
    "errors",
    "types",
    "functional",
    "attacks",
    "losses",
    "metrics",
    "models",
    "optimizers",
    "partitioners",
    "strategies",
    "routes",
    "transforms",
    "tasks",
    "data",
    "clients",
    "callbacks",
    "allocator",
    "studies",
)


if not TYPE_CHECKING:  # else every name would be known to a type checker

    def __getattr__(name: str) -> Any:
        """Import what is asked for when it is: ``import fl_lightning`` alone does not wait for torch."""
        if name in _PARTS:
            return import_module(f"fl_lightning.{name}")
        if name in __all__:
            for part in _PARTS:
                found = getattr(import_module(f"fl_lightning.{part}"), name, None)
                if found is not None:
                    globals()[name] = found
                    return found
        raise AttributeError(f"module 'fl_lightning' has no attribute '{name}'")

    def __dir__() -> list[str]:
        return [*__all__, *_PARTS]
