"""The classes that a site accepts by default, each looked at for what its tensors and numbers can carry of the site's rows.

What leaves a site with them is a model's change, sums over many rows such as control variates, and figures that its policy
allows. A new class is added to one of the two tables by hand; a test finds those that are in neither.
"""

from __future__ import annotations

from fl_lightning import options
from fl_lightning.core.option import OptionSettings

OPTIONS: dict[str, type[OptionSettings]] = {
    kind.setting: kind
    for kind in (getattr(options, name) for name in options.__all__)
    if issubclass(kind, OptionSettings) and kind.at_sites
}
"""The options that sites build, by the setting that holds them."""
_MODELS = {
    "tasks": "ClassificationTask LossAdaptation RegressionTask",
    "models": "DensityCount FrozenBackbone KerasCNN LeNet MLP ResNet18 Standardized UNet VGG19",
}
_PARTS = {
    "losses": "CrossEntropy F1WeightedCrossEntropy HalfSquaredError Hinge MetricWeightedCrossEntropy ProximalLoss RobustLoss",
    "metrics": "CalibrationCurve DiagnosticOddsRatio PercentageError",
    "optimizers": "Yogi",
    "routes": "FedCyclic FedStar LocalOnly Mediators RingFed ServerRoute WarmStart",
    "strategies": (
        "AFL APFL AdaFed CosineFilter Ditto FedAdagrad FedAsync FedAvg FedAvgM FedBABU FedBuff FedDyn FedExP FedLoss FedMedian "
        "FedNova FedRep FedSGD GeometricMedian Krum LastClient MOON PFedMe QFedAvg Scaffold ShapleyValues TrimmedMean"
    ),
    "options": "Asynchronous ClientPrivacy ExamplePrivacy PartialWork SecureAggregation",
    "settings": "Faults LocalTraining",
    "transforms": "ClipUpdate HalfPrecision Quantize TopK",
}
_TORCH = {
    "torch.nn": (
        "BCELoss BCEWithLogitsLoss CrossEntropyLoss HuberLoss L1Loss MSELoss MultiLabelSoftMarginLoss MultiMarginLoss NLLLoss "
        "PoissonNLLLoss SmoothL1Loss SoftMarginLoss"
    ),
    "torch.optim": "ASGD Adadelta Adagrad Adam AdamW Adamax NAdam RAdam RMSprop Rprop SGD",
    "torch.optim.lr_scheduler": (
        "ConstantLR CosineAnnealingLR CosineAnnealingWarmRestarts ExponentialLR LinearLR MultiStepLR PolynomialLR StepLR"
    ),
}
_TORCHMETRICS = {
    "torchmetrics.classification": (
        "BinaryAUROC BinaryAccuracy BinaryAveragePrecision BinaryCohenKappa BinaryConfusionMatrix BinaryF1Score "
        "BinaryMatthewsCorrCoef BinaryPrecision BinaryPrecisionRecallCurve BinaryROC BinaryRecall BinarySpecificity "
        "MulticlassAUROC MulticlassAccuracy MulticlassAveragePrecision MulticlassCohenKappa MulticlassConfusionMatrix "
        "MulticlassF1Score MulticlassMatthewsCorrCoef MulticlassPrecision MulticlassPrecisionRecallCurve MulticlassROC "
        "MulticlassRecall MulticlassSpecificity"
    ),
    "torchmetrics.regression": "MeanAbsoluteError MeanSquaredError PearsonCorrCoef R2Score SpearmanCorrCoef",
}
"""Metrics to which every example contributes: no largest or smallest error, which is one row's, and no maximum over bins."""
_NO_SETTINGS = (
    "AdaptiveLoss FilteringStrategy JointStrategy PeriodRoute Route RunningStrategy Strategy SupervisedTask Transform "
    "WeightedAverage"
)
NOT_ACCEPTED = {
    "KMeansTask": "its centroids are rows of the site, or means of a few of them",
    "FederatedKMeans": "it works on those centroids",
    "Focus": "it measures every site's model on every other site",
    "Mocha": "it keeps a model for each site at the server",
    **dict.fromkeys(_NO_SETTINGS.split(), "it is a base class, or no part of a configuration"),
}
"""The other public classes of the same subpackages, with the reason why a server may not name them."""
PARTS = (*_MODELS, *(part for part in _PARTS if part not in ("options", "settings")))
"""The subpackages whose public classes the tables cover."""


def model_classes() -> frozenset[str]:
    """Return the dotted paths of the tasks and networks that a site accepts by default."""
    return frozenset(f"fl_lightning.{name}" for names in _MODELS.values() for name in names.split())


def default_classes() -> frozenset[str]:
    """Return all dotted paths that a site accepts by default."""
    own = {f"fl_lightning.{name}" for names in _PARTS.values() for name in names.split()}
    own |= {f"fl_lightning.{kind.__name__}" for kind in OPTIONS.values()}
    return (
        frozenset(own | {f"{module}.{name}" for module, names in (_TORCH | _TORCHMETRICS).items() for name in names.split()})
        | model_classes()
    )
