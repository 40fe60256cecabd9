"""Federated learning as an ordinary Lightning run: one callback federates any LightningModule."""

from fl_lightning.callbacks import (
    AtomicCheckpointIO,
    BestCheckpoint,
    FederatedOrchestrator,
    FederationCallback,
    FederationProgressBar,
    LastCheckpoint,
)
from fl_lightning.clients import Attackers, LocalTraining, PartialWork
from fl_lightning.data import FederatedDataModule, LabelAveraging, MNISTDataModule, TensorLoader
from fl_lightning.errors import CheckpointError, ClientError, ConfigurationError, DataError, FederationError
from fl_lightning.functional import Sums
from fl_lightning.losses import CrossEntropy, F1WeightedCrossEntropy, ProximalLoss
from fl_lightning.metrics import DiagnosticOddsRatio
from fl_lightning.models import KerasCNN, LeNet
from fl_lightning.optimizers import Yogi
from fl_lightning.partitioners import IIDPartitioner, Partitioner, TablePartitioner
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
    FedAvg,
    FedAvgM,
    FedLoss,
    FedMedian,
    FedNova,
    FedSGD,
    Focus,
    JointStrategy,
    LastClient,
    RunningStrategy,
    Scaffold,
    ShapleyValues,
    Strategy,
    WeightedAverage,
    Worth,
)
from fl_lightning.tasks import ClassificationTask
from fl_lightning.types import ClientUpdate, RoundStart, Snapshot

__version__ = "0.1.0"

__all__ = [
    "AdaFed",
    "AtomicCheckpointIO",
    "Attackers",
    "BestCheckpoint",
    "CheckpointError",
    "ClassificationTask",
    "ClientError",
    "ClientUpdate",
    "Cohort",
    "ConfigurationError",
    "CrossEntropy",
    "DataError",
    "DiagnosticOddsRatio",
    "F1WeightedCrossEntropy",
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
    "Focus",
    "IIDPartitioner",
    "JointStrategy",
    "KerasCNN",
    "LabelAveraging",
    "LastCheckpoint",
    "LastClient",
    "LeNet",
    "LocalOnly",
    "LocalTraining",
    "MNISTDataModule",
    "Mediators",
    "PartialWork",
    "Partitioner",
    "PeriodRoute",
    "ProximalLoss",
    "RingFed",
    "RoundStart",
    "Route",
    "RunningStrategy",
    "Scaffold",
    "ServerRoute",
    "ShapleyValues",
    "Snapshot",
    "Strategy",
    "Sums",
    "TablePartitioner",
    "TensorLoader",
    "WarmStart",
    "WeightedAverage",
    "Worth",
    "Yogi",
    "__version__",
]
