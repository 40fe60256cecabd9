"""The public names, for type checkers. Written by tools/write_stub.py; ``__init__.py`` imports them on first use."""

from fl_lightning.attacks import ALIE as ALIE, Backdoor as Backdoor, GaussianUpdate as GaussianUpdate, InnerProductManipulation as InnerProductManipulation, LabelAttack as LabelAttack, ModelAttack as ModelAttack, PermutedLabels as PermutedLabels, RandomLabels as RandomLabels, RelabelClass as RelabelClass, ScaledUpdate as ScaledUpdate, SignFlip as SignFlip
from fl_lightning.callbacks import BestCheckpoint as BestCheckpoint, FeatureCache as FeatureCache, FederatedOrchestrator as FederatedOrchestrator, FederationCallback as FederationCallback, FederationProgressBar as FederationProgressBar, FederationReport as FederationReport, LastCheckpoint as LastCheckpoint, PredictionImages as PredictionImages, TransferLearning as TransferLearning
from fl_lightning.cells import CellFolderDataModule as CellFolderDataModule, SimulatedCellsDataModule as SimulatedCellsDataModule
from fl_lightning.core import ClientHooks as ClientHooks, Option as Option, ServerHooks as ServerHooks
from fl_lightning.data import FederatedDataModule as FederatedDataModule, HDF5Clients as HDF5Clients, ImageDataModule as ImageDataModule, ImageFolderDataModule as ImageFolderDataModule, LabelAveraging as LabelAveraging, LazyClients as LazyClients, MNISTDataModule as MNISTDataModule, RandomCropFlip as RandomCropFlip, SimulatedTasksDataModule as SimulatedTasksDataModule, TableDataModule as TableDataModule, TorchvisionDataModule as TorchvisionDataModule
from fl_lightning.errors import CheckpointError as CheckpointError, ClientError as ClientError, ConfigurationError as ConfigurationError, DataError as DataError, FederationError as FederationError
from fl_lightning.flower import FlowerPool as FlowerPool
from fl_lightning.functional import Partition as Partition, Sums as Sums
from fl_lightning.losses import AdaptiveLoss as AdaptiveLoss, CrossEntropy as CrossEntropy, F1WeightedCrossEntropy as F1WeightedCrossEntropy, HalfSquaredError as HalfSquaredError, Hinge as Hinge, MetricWeightedCrossEntropy as MetricWeightedCrossEntropy, ProximalLoss as ProximalLoss, RobustLoss as RobustLoss
from fl_lightning.metrics import CalibrationCurve as CalibrationCurve, DiagnosticOddsRatio as DiagnosticOddsRatio, PercentageError as PercentageError
from fl_lightning.models import DensityCount as DensityCount, FrozenBackbone as FrozenBackbone, KerasCNN as KerasCNN, LeNet as LeNet, MLP as MLP, ResNet18 as ResNet18, Standardized as Standardized, UNet as UNet, VGG19 as VGG19
from fl_lightning.optimizers import Yogi as Yogi
from fl_lightning.options import Asynchronous as Asynchronous, Attackers as Attackers, Availability as Availability, ClientEvaluation as ClientEvaluation, ClientPrivacy as ClientPrivacy, Clock as Clock, ExamplePrivacy as ExamplePrivacy, PartialWork as PartialWork, PersonalPart as PersonalPart, SecureAggregation as SecureAggregation
from fl_lightning.partitioners import AdaFedSimulation1 as AdaFedSimulation1, ClassesPartitioner as ClassesPartitioner, ColumnPartitioner as ColumnPartitioner, DirichletPartitioner as DirichletPartitioner, DomainPartitioner as DomainPartitioner, FlowerPartitioner as FlowerPartitioner, IIDPartitioner as IIDPartitioner, Partitioner as Partitioner, QuantityPartitioner as QuantityPartitioner, ShardPartitioner as ShardPartitioner, TablePartitioner as TablePartitioner
from fl_lightning.reporting.wandb import FederationWandbLogger as FederationWandbLogger
from fl_lightning.routes import FedCyclic as FedCyclic, FedStar as FedStar, LocalOnly as LocalOnly, Mediators as Mediators, Mocha as Mocha, PeriodRoute as PeriodRoute, RingFed as RingFed, Route as Route, ServerRoute as ServerRoute, WarmStart as WarmStart
from fl_lightning.rules import ClientRule as ClientRule, ControlVariates as ControlVariates, ProximalRule as ProximalRule
from fl_lightning.settings import Checkpoints as Checkpoints, Faults as Faults, LocalTraining as LocalTraining, ServerEvaluation as ServerEvaluation, Storage as Storage
from fl_lightning.strategies import AFL as AFL, APFL as APFL, AdaFed as AdaFed, CosineFilter as CosineFilter, Ditto as Ditto, FedAdagrad as FedAdagrad, FedAsync as FedAsync, FedAvg as FedAvg, FedAvgM as FedAvgM, FedBABU as FedBABU, FedBuff as FedBuff, FedDyn as FedDyn, FedExP as FedExP, FedLoss as FedLoss, FedMedian as FedMedian, FedNova as FedNova, FedRep as FedRep, FedSGD as FedSGD, FederatedKMeans as FederatedKMeans, FilteringStrategy as FilteringStrategy, Focus as Focus, GeometricMedian as GeometricMedian, JointStrategy as JointStrategy, Krum as Krum, LastClient as LastClient, MOON as MOON, PFedMe as PFedMe, QFedAvg as QFedAvg, RunningStrategy as RunningStrategy, Scaffold as Scaffold, ShapleyValues as ShapleyValues, Strategy as Strategy, TrimmedMean as TrimmedMean, WeightedAverage as WeightedAverage
from fl_lightning.studies import Study as Study
from fl_lightning.tasks import ClassificationTask as ClassificationTask, KMeansTask as KMeansTask, LossAdaptation as LossAdaptation, RegressionTask as RegressionTask, SupervisedTask as SupervisedTask
from fl_lightning.transforms import ClipUpdate as ClipUpdate, HalfPrecision as HalfPrecision, Quantize as Quantize, TopK as TopK, Transform as Transform
from fl_lightning.types import ClientFailure as ClientFailure, ClientUpdate as ClientUpdate
from fl_lightning.utilities.allocator import keep_freed_memory as keep_freed_memory
from fl_lightning.utilities.checkpoints import AtomicCheckpointIO as AtomicCheckpointIO

__version__: str
__all__: list[str]
