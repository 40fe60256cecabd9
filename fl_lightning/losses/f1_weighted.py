"""F1-adaptive weighted cross-entropy (AdaFed, section 3.1, eq. 2; Algorithm 1, lines 10-12)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fl_lightning.errors import require
from fl_lightning.functional.class_weights import f1_class_weights, weighted_cross_entropy


class F1WeightedCrossEntropy(nn.Module):
    """Cross-entropy whose class weights follow the per-class F1 of the aggregated model on the server's set.

    Equation: ``-1/M * sum_m kappa[y_m] * log softmax(logits_m)[y_m]`` with ``kappa_c = 1 / (F1_c + epsilon)``. It
    divides by the number of samples M (eq. 2), not by the sum of their weights as ``torch.nn.CrossEntropyLoss`` does.
    The weights start at 1 and change only in :meth:`adapt`. They are a buffer that the server owns: it is in the
    checkpoint, travels to the clients with the model, and is not averaged.

    Args:
        num_classes: C, at least 2.
        epsilon: limits a weight to 1 / epsilon, in (0, 1); 0.1 in the paper's Simulation 2.

    Shapes:
        logits (M, C) or (M, C, ...), target (M,) or (M, ...); the output is a scalar.

    Example:
        >>> loss = F1WeightedCrossEntropy(num_classes=2)
        >>> loss.adapt(torch.tensor([0.0, 0.9]))
        >>> loss.class_weights.tolist()
        [10.0, 1.0]
    """

    server_buffers = ("class_weights",)
    class_weights: Tensor

    def __init__(self, num_classes: int = 10, epsilon: float = 0.1) -> None:
        super().__init__()
        require(num_classes >= 2, "num_classes", "at least 2", num_classes)
        require(0 < epsilon < 1, "epsilon", "above 0 and below 1", epsilon)
        self.epsilon = epsilon
        self.register_buffer("class_weights", torch.ones(num_classes))

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        """The weighted loss of a batch."""
        return weighted_cross_entropy(logits, target, self.class_weights.to(logits.dtype))

    @torch.no_grad()
    def adapt(self, f1: Tensor) -> None:
        """Set the class weights from the F1 score of each class, in [0, 1], shape (C,); NaN counts as 'unknown', weight 1."""
        self.class_weights.copy_(f1_class_weights(f1, self.epsilon))
