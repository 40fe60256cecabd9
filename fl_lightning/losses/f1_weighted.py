"""Weight cross-entropy by each class's F1 (AdaFed, section 3.1, eq. 2; Algorithm 1, lines 10-12)."""

from __future__ import annotations

from torchmetrics.classification import MulticlassF1Score

from fl_lightning.errors import require
from fl_lightning.losses.metric_weighted import MetricWeightedCrossEntropy


class F1WeightedCrossEntropy(MetricWeightedCrossEntropy):
    """Weight cross-entropy by the per-class F1 of the aggregated model on the server's set.

    The weights are ``kappa_c = 1 / (F1_c + epsilon)``, the paper's choice of
    :class:`~fl_lightning.MetricWeightedCrossEntropy`.

    Args:
        num_classes: the number of classes C, at least 2.
        epsilon: limits a weight to 1 / epsilon, in (0, 1); 0.1 in the paper's Simulation 2.

    Shapes:
        logits (M, C) or (M, C, ...), target (M,) or (M, ...); the output is a scalar.

    Example:
        >>> import torch
        >>> loss = F1WeightedCrossEntropy(num_classes=2)
        >>> loss.adapt(torch.tensor([0.0, 0.9]))
        >>> loss.class_weights.tolist()
        [10.0, 1.0]
    """

    def __init__(self, num_classes: int = 10, epsilon: float = 0.1) -> None:
        require(num_classes >= 2, "num_classes", "at least 2", num_classes)
        super().__init__(MulticlassF1Score(num_classes, average="none", validate_args=False), num_classes, epsilon)
