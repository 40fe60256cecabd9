"""Weight cross-entropy by any metric of each class (AdaFed, section 3.1, eq. 2: 'other metrics can be chosen')."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torchmetrics import Metric
from torchmetrics.classification import MulticlassF1Score

from fl_lightning.errors import ConfigurationError, require
from fl_lightning.losses.adaptive import AdaptiveLoss


class MetricWeightedCrossEntropy(AdaptiveLoss):
    """Weight cross-entropy by a per-class metric of the aggregated model on the server's set.

    Equation: ``-1/M * sum_m kappa[y_m] * log softmax(logits_m)[y_m]`` with ``kappa_c = 1 / (metric_c + epsilon)``. It
    divides by the number of samples M (eq. 2), not by the sum of their weights as ``torch.nn.CrossEntropyLoss`` does.
    The weights start at 1 and change only in :meth:`adapt`. They are a buffer that the server owns: it is saved in the
    checkpoint, sent to the clients with the model, and not averaged.

    Args:
        metric: a metric of (logits, labels) with one value in [0, 1] per class, higher is better: a torchmetrics class with
            ``average: none``, such as MulticlassRecall.
        num_classes: the number of classes C, at least 2.
        epsilon: limits a weight to 1 / epsilon, in (0, 1); 0.1 in the paper's Simulation 2.

    Shapes:
        logits (M, C) or (M, C, ...), target (M,) or (M, ...); the output is a scalar.

    Raises:
        ConfigurationError: if a value is outside its range, or the metric does not declare that higher is better; from
                :meth:`adapt`, if the metric does not return one value in [0, 1] per class.
    """

    server_buffers = ("class_weights",)
    class_weights: Tensor

    def __init__(self, metric: Metric, num_classes: int = 10, epsilon: float = 0.1) -> None:
        super().__init__()
        require(num_classes >= 2, "num_classes", "at least 2", num_classes)
        require(0 < epsilon < 1, "epsilon", "above 0 and below 1", epsilon)
        wanted = "a metric that sets its class attribute 'higher_is_better' to True"
        require(metric.higher_is_better is True, "model.loss.metric", wanted, type(metric).__name__)
        self.signal = PresentClasses(metric, num_classes)
        self.epsilon = epsilon
        self.register_buffer("class_weights", torch.ones(num_classes))

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return the weighted loss of a batch."""
        weight = self.class_weights.to(logits.dtype)
        return F.cross_entropy(logits, target, weight=weight, reduction="sum") / target.numel()

    @torch.no_grad()
    def adapt(self, signal: Tensor) -> None:
        """Set the class weights from a score of each class, in [0, 1], shape (C,); NaN means unknown and gives weight 1."""
        if signal.shape != self.class_weights.shape:
            raise ConfigurationError(
                f"{type(self).__name__} needs one value for each of {self.class_weights.numel()} classes, but its metric "
                f"returns shape {tuple(signal.shape)}. Give 'model.loss.metric' the setting 'average: none' and the same "
                "'num_classes'."
            )
        if bool(((signal < 0) | (signal > 1)).any()):
            raise ConfigurationError(
                f"{type(self).__name__} needs values in [0, 1], for which higher is better, but its metric returns "
                f"{signal.tolist()[:5]}. Set 'model.loss.metric' to a metric with such values, e.g. MulticlassRecall."
            )
        self.class_weights.copy_(torch.where(signal.isnan(), 1.0, 1.0 / (signal + self.epsilon)))

    def figures(self) -> dict[str, Tensor]:
        """Return the class weights."""
        return {f"class_weight/{c}": weight for c, weight in enumerate(self.class_weights)}


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


class PresentClasses(Metric):
    """Wrap a per-class metric to return NaN for classes without examples, where torchmetrics returns 0, the worst value.

    Args:
        metric: a metric that returns shape (C,).
        num_classes: the number of classes C.
    """

    higher_is_better = True
    full_state_update = False
    counts: Tensor

    def __init__(self, metric: Metric, num_classes: int) -> None:
        super().__init__()
        self.metric, self.num_classes = metric, num_classes
        self.add_state("counts", torch.zeros(num_classes, dtype=torch.int64), dist_reduce_fx="sum")

    def update(self, logits: Tensor, target: Tensor) -> None:
        """Add a batch."""
        self.metric.update(logits, target)
        self.counts += torch.bincount(target.flatten(), minlength=self.num_classes)[: self.num_classes]

    def compute(self) -> Any:
        """Return the metric, shape (C,)."""
        values = self.metric.compute()
        if values.shape != self.counts.shape:
            return values
        return values.masked_fill(self.counts == 0, torch.nan)

    def reset(self) -> None:
        """Forget all batches."""
        super().reset()
        self.metric.reset()
