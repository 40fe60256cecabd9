"""Provide losses for the clients: ``nn.Module``s that map (outputs, target) to a scalar."""

from fl_lightning.losses.adaptive import AdaptiveLoss
from fl_lightning.losses.cross_entropy import CrossEntropy
from fl_lightning.losses.f1_weighted import F1WeightedCrossEntropy
from fl_lightning.losses.hinge import Hinge
from fl_lightning.losses.metric_weighted import MetricWeightedCrossEntropy
from fl_lightning.losses.proximal import ProximalLoss
from fl_lightning.losses.robust import RobustLoss
from fl_lightning.losses.squared_error import HalfSquaredError

__all__ = [
    "AdaptiveLoss",
    "CrossEntropy",
    "F1WeightedCrossEntropy",
    "HalfSquaredError",
    "Hinge",
    "MetricWeightedCrossEntropy",
    "ProximalLoss",
    "RobustLoss",
]
