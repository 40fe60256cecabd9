"""The public names, for type checkers. ``__init__.py`` imports them on first use."""

from fl_lightning.attacks import (
    ALIE as ALIE,
)
from fl_lightning.attacks import (
    Backdoor as Backdoor,
)
from fl_lightning.attacks import (
    GaussianUpdate as GaussianUpdate,
)
from fl_lightning.attacks import (
    InnerProductManipulation as InnerProductManipulation,
)
from fl_lightning.attacks import (
    LabelAttack as LabelAttack,
)
from fl_lightning.attacks import (
    ModelAttack as ModelAttack,
)
from fl_lightning.attacks import (
    PermutedLabels as PermutedLabels,
)
from fl_lightning.attacks import (
    RandomLabels as RandomLabels,
)
from fl_lightning.attacks import (
    RelabelClass as RelabelClass,
)
from fl_lightning.attacks import (
    ScaledUpdate as ScaledUpdate,
)
from fl_lightning.attacks import (
    SignFlip as SignFlip,
)
from fl_lightning.callbacks import (
    BestCheckpoint as BestCheckpoint,
)
from fl_lightning.callbacks import (
    ClientTable as ClientTable,
)
from fl_lightning.callbacks import (
    FailureLog as FailureLog,
)
from fl_lightning.callbacks import (
    FeatureCache as FeatureCache,
)
from fl_lightning.callbacks import (
    FederatedOrchestrator as FederatedOrchestrator,
)
from fl_lightning.callbacks import (
    FederationCallback as FederationCallback,
)
from fl_lightning.callbacks import (
    FederationProgressBar as FederationProgressBar,
)
from fl_lightning.callbacks import (
    FederationReport as FederationReport,
)
from fl_lightning.callbacks import (
    LastCheckpoint as LastCheckpoint,
)
from fl_lightning.callbacks import (
    PartitionReport as PartitionReport,
)
from fl_lightning.callbacks import (
    PredictionImages as PredictionImages,
)
from fl_lightning.callbacks import (
    TransferLearning as TransferLearning,
)
from fl_lightning.core import (
    ClientHooks as ClientHooks,
)
from fl_lightning.core import (
    Option as Option,
)
from fl_lightning.core import (
    ServerHooks as ServerHooks,
)
from fl_lightning.data import (
    ArrayClients as ArrayClients,
)
from fl_lightning.data import (
    CellFolderDataModule as CellFolderDataModule,
)
from fl_lightning.data import (
    CIFAR10DataModule as CIFAR10DataModule,
)
from fl_lightning.data import (
    CIFAR100DataModule as CIFAR100DataModule,
)
from fl_lightning.data import (
    FashionMNISTDataModule as FashionMNISTDataModule,
)
from fl_lightning.data import (
    FederatedDataModule as FederatedDataModule,
)
from fl_lightning.data import (
    HDF5Clients as HDF5Clients,
)
from fl_lightning.data import (
    ImageDataModule as ImageDataModule,
)
from fl_lightning.data import (
    ImageFolderDataModule as ImageFolderDataModule,
)
from fl_lightning.data import (
    LabelAveraging as LabelAveraging,
)
from fl_lightning.data import (
    LazyClients as LazyClients,
)
from fl_lightning.data import (
    MNISTDataModule as MNISTDataModule,
)
from fl_lightning.data import (
    ParquetClients as ParquetClients,
)
from fl_lightning.data import (
    RandomCropFlip as RandomCropFlip,
)
from fl_lightning.data import (
    SimulatedCellsDataModule as SimulatedCellsDataModule,
)
from fl_lightning.data import (
    SimulatedTasksDataModule as SimulatedTasksDataModule,
)
from fl_lightning.data import (
    SVHNDataModule as SVHNDataModule,
)
from fl_lightning.data import (
    TableDataModule as TableDataModule,
)
from fl_lightning.data import (
    USPSDataModule as USPSDataModule,
)
from fl_lightning.errors import (
    CheckpointError as CheckpointError,
)
from fl_lightning.errors import (
    ClientError as ClientError,
)
from fl_lightning.errors import (
    ConfigurationError as ConfigurationError,
)
from fl_lightning.errors import (
    DataError as DataError,
)
from fl_lightning.errors import (
    FederationError as FederationError,
)
from fl_lightning.flower import (
    FlowerPool as FlowerPool,
)
from fl_lightning.functional import (
    Partition as Partition,
)
from fl_lightning.functional import (
    Sums as Sums,
)
from fl_lightning.losses import (
    AdaptiveLoss as AdaptiveLoss,
)
from fl_lightning.losses import (
    CrossEntropy as CrossEntropy,
)
from fl_lightning.losses import (
    F1WeightedCrossEntropy as F1WeightedCrossEntropy,
)
from fl_lightning.losses import (
    HalfSquaredError as HalfSquaredError,
)
from fl_lightning.losses import (
    Hinge as Hinge,
)
from fl_lightning.losses import (
    MetricWeightedCrossEntropy as MetricWeightedCrossEntropy,
)
from fl_lightning.losses import (
    ProximalLoss as ProximalLoss,
)
from fl_lightning.losses import (
    RobustLoss as RobustLoss,
)
from fl_lightning.metrics import (
    CalibrationCurve as CalibrationCurve,
)
from fl_lightning.metrics import (
    DiagnosticOddsRatio as DiagnosticOddsRatio,
)
from fl_lightning.metrics import (
    PercentageError as PercentageError,
)
from fl_lightning.models import (
    MLP as MLP,
)
from fl_lightning.models import (
    VGG19 as VGG19,
)
from fl_lightning.models import (
    DensityCount as DensityCount,
)
from fl_lightning.models import (
    FrozenBackbone as FrozenBackbone,
)
from fl_lightning.models import (
    KerasCNN as KerasCNN,
)
from fl_lightning.models import (
    LeNet as LeNet,
)
from fl_lightning.models import (
    ResNet18 as ResNet18,
)
from fl_lightning.models import (
    Standardized as Standardized,
)
from fl_lightning.models import (
    UNet as UNet,
)
from fl_lightning.optimizers import (
    Yogi as Yogi,
)
from fl_lightning.options import (
    Asynchronous as Asynchronous,
)
from fl_lightning.options import (
    Attackers as Attackers,
)
from fl_lightning.options import (
    Availability as Availability,
)
from fl_lightning.options import (
    ClientEvaluation as ClientEvaluation,
)
from fl_lightning.options import (
    ClientPrivacy as ClientPrivacy,
)
from fl_lightning.options import (
    Clock as Clock,
)
from fl_lightning.options import (
    ExamplePrivacy as ExamplePrivacy,
)
from fl_lightning.options import (
    PartialWork as PartialWork,
)
from fl_lightning.options import (
    PersonalPart as PersonalPart,
)
from fl_lightning.options import (
    SecureAggregation as SecureAggregation,
)
from fl_lightning.partitioners import (
    AdaFedSimulation1 as AdaFedSimulation1,
)
from fl_lightning.partitioners import (
    ClassesPartitioner as ClassesPartitioner,
)
from fl_lightning.partitioners import (
    ColumnPartitioner as ColumnPartitioner,
)
from fl_lightning.partitioners import (
    DirichletPartitioner as DirichletPartitioner,
)
from fl_lightning.partitioners import (
    DomainPartitioner as DomainPartitioner,
)
from fl_lightning.partitioners import (
    FlowerPartitioner as FlowerPartitioner,
)
from fl_lightning.partitioners import (
    IIDPartitioner as IIDPartitioner,
)
from fl_lightning.partitioners import (
    Partitioner as Partitioner,
)
from fl_lightning.partitioners import (
    QuantityPartitioner as QuantityPartitioner,
)
from fl_lightning.partitioners import (
    ShardPartitioner as ShardPartitioner,
)
from fl_lightning.partitioners import (
    TablePartitioner as TablePartitioner,
)
from fl_lightning.plugins import (
    AtomicCheckpointIO as AtomicCheckpointIO,
)
from fl_lightning.routes import (
    FedCyclic as FedCyclic,
)
from fl_lightning.routes import (
    FedStar as FedStar,
)
from fl_lightning.routes import (
    LocalOnly as LocalOnly,
)
from fl_lightning.routes import (
    Mediators as Mediators,
)
from fl_lightning.routes import (
    Mocha as Mocha,
)
from fl_lightning.routes import (
    PeriodRoute as PeriodRoute,
)
from fl_lightning.routes import (
    RingFed as RingFed,
)
from fl_lightning.routes import (
    Route as Route,
)
from fl_lightning.routes import (
    ServerRoute as ServerRoute,
)
from fl_lightning.routes import (
    WarmStart as WarmStart,
)
from fl_lightning.rules import ClientRule as ClientRule
from fl_lightning.rules import ControlVariates as ControlVariates
from fl_lightning.rules import ProximalRule as ProximalRule
from fl_lightning.settings import (
    Faults as Faults,
)
from fl_lightning.settings import (
    LocalTraining as LocalTraining,
)
from fl_lightning.settings import (
    ServerEvaluation as ServerEvaluation,
)
from fl_lightning.strategies import (
    AFL as AFL,
)
from fl_lightning.strategies import (
    APFL as APFL,
)
from fl_lightning.strategies import (
    MOON as MOON,
)
from fl_lightning.strategies import (
    AdaFed as AdaFed,
)
from fl_lightning.strategies import (
    CosineFilter as CosineFilter,
)
from fl_lightning.strategies import (
    Ditto as Ditto,
)
from fl_lightning.strategies import (
    FedAdagrad as FedAdagrad,
)
from fl_lightning.strategies import (
    FedAsync as FedAsync,
)
from fl_lightning.strategies import (
    FedAvg as FedAvg,
)
from fl_lightning.strategies import (
    FedAvgM as FedAvgM,
)
from fl_lightning.strategies import (
    FedBABU as FedBABU,
)
from fl_lightning.strategies import (
    FedBuff as FedBuff,
)
from fl_lightning.strategies import (
    FedDyn as FedDyn,
)
from fl_lightning.strategies import (
    FederatedKMeans as FederatedKMeans,
)
from fl_lightning.strategies import (
    FedExP as FedExP,
)
from fl_lightning.strategies import (
    FedLoss as FedLoss,
)
from fl_lightning.strategies import (
    FedMedian as FedMedian,
)
from fl_lightning.strategies import (
    FedNova as FedNova,
)
from fl_lightning.strategies import (
    FedRep as FedRep,
)
from fl_lightning.strategies import (
    FedSGD as FedSGD,
)
from fl_lightning.strategies import (
    FilteringStrategy as FilteringStrategy,
)
from fl_lightning.strategies import (
    Focus as Focus,
)
from fl_lightning.strategies import (
    GeometricMedian as GeometricMedian,
)
from fl_lightning.strategies import (
    JointStrategy as JointStrategy,
)
from fl_lightning.strategies import (
    Krum as Krum,
)
from fl_lightning.strategies import (
    LastClient as LastClient,
)
from fl_lightning.strategies import (
    PFedMe as PFedMe,
)
from fl_lightning.strategies import (
    QFedAvg as QFedAvg,
)
from fl_lightning.strategies import (
    RunningStrategy as RunningStrategy,
)
from fl_lightning.strategies import (
    Scaffold as Scaffold,
)
from fl_lightning.strategies import (
    ShapleyValues as ShapleyValues,
)
from fl_lightning.strategies import (
    Strategy as Strategy,
)
from fl_lightning.strategies import (
    TrimmedMean as TrimmedMean,
)
from fl_lightning.strategies import (
    WeightedAverage as WeightedAverage,
)
from fl_lightning.studies import (
    Study as Study,
)
from fl_lightning.tasks import (
    ClassificationTask as ClassificationTask,
)
from fl_lightning.tasks import (
    KMeansTask as KMeansTask,
)
from fl_lightning.tasks import (
    LossAdaptation as LossAdaptation,
)
from fl_lightning.tasks import (
    RegressionTask as RegressionTask,
)
from fl_lightning.tasks import (
    SupervisedTask as SupervisedTask,
)
from fl_lightning.transforms import (
    ClipUpdate as ClipUpdate,
)
from fl_lightning.transforms import (
    HalfPrecision as HalfPrecision,
)
from fl_lightning.transforms import (
    Quantize as Quantize,
)
from fl_lightning.transforms import (
    TopK as TopK,
)
from fl_lightning.transforms import (
    Transform as Transform,
)
from fl_lightning.types import (
    ClientFailure as ClientFailure,
)
from fl_lightning.types import (
    ClientUpdate as ClientUpdate,
)
from fl_lightning.utilities.allocator import (
    keep_freed_memory as keep_freed_memory,
)

__version__: str
__all__: list[str]
