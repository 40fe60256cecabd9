"""Federated learning as an ordinary Lightning run: one callback federates any LightningModule."""

from fl_lightning.callbacks import (
    AtomicCheckpointIO,
    BestCheckpoint,
    FederatedOrchestrator,
    FederationCallback,
    FederationProgressBar,
    LastCheckpoint,
)
from fl_lightning.clients import LocalTraining
from fl_lightning.data import FederatedDataModule, MNISTDataModule, TensorLoader
from fl_lightning.errors import CheckpointError, ClientError, ConfigurationError, DataError, FederationError
from fl_lightning.functional import Sums
from fl_lightning.losses import CrossEntropy, F1WeightedCrossEntropy, ProximalLoss
from fl_lightning.models import KerasCNN
from fl_lightning.partitioners import IIDPartitioner, Partitioner, TablePartitioner
from fl_lightning.strategies import AdaFed, FedAvg, Strategy, WeightedAverage
from fl_lightning.tasks import ClassificationTask
from fl_lightning.types import ClientUpdate

__version__ = "0.1.0"

__all__ = [
    "AdaFed",
    "AtomicCheckpointIO",
    "BestCheckpoint",
    "CheckpointError",
    "ClassificationTask",
    "ClientError",
    "ClientUpdate",
    "ConfigurationError",
    "CrossEntropy",
    "DataError",
    "F1WeightedCrossEntropy",
    "FedAvg",
    "FederatedDataModule",
    "FederatedOrchestrator",
    "FederationCallback",
    "FederationError",
    "FederationProgressBar",
    "IIDPartitioner",
    "KerasCNN",
    "LastCheckpoint",
    "LocalTraining",
    "MNISTDataModule",
    "Partitioner",
    "ProximalLoss",
    "Strategy",
    "Sums",
    "TablePartitioner",
    "TensorLoader",
    "WeightedAverage",
    "__version__",
]
