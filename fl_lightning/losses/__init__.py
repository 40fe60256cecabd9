"""Losses for the clients: ``nn.Module``s that map (logits, target) to a scalar."""

from fl_lightning.losses.cross_entropy import CrossEntropy
from fl_lightning.losses.f1_weighted import F1WeightedCrossEntropy
from fl_lightning.losses.proximal import ProximalLoss

__all__ = ["CrossEntropy", "F1WeightedCrossEntropy", "ProximalLoss"]
