"""Provide losses for the clients: ``nn.Module``s that map (outputs, target) to a scalar."""

from fl_lightning.losses.adaptive import AdaptiveLoss
from fl_lightning.losses.metric_weighted import F1WeightedCrossEntropy, MetricWeightedCrossEntropy
from fl_lightning.losses.plain import CrossEntropy, HalfSquaredError, Hinge
from fl_lightning.losses.proximal import ProximalLoss
from fl_lightning.losses.robust import RobustLoss

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
