"""Compute losses that stay as they are: cross-entropy, hinge and half the squared error."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from fl_lightning.errors import ConfigurationError, require_same_shape
from fl_lightning.utilities.argument_types import ChecksTypes


class CrossEntropy(ChecksTypes, nn.Module):
    """Compute the mean cross-entropy of unnormalised scores and class indices (AdaFed, eq. 1).

    Args:
        label_smoothing: the share of the target spread evenly over all classes, in [0, 1).

    Shapes:
        logits (M, C) or (M, C, ...), target (M,) or (M, ...); the output is a scalar.
    """

    def __init__(self, label_smoothing: float = 0.0) -> None:
        super().__init__()
        self.label_smoothing = label_smoothing

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return the mean loss of a batch."""
        return F.cross_entropy(logits, target, label_smoothing=self.label_smoothing)


class Hinge(ChecksTypes, nn.Module):
    """Compute the squared or plain hinge loss, ``mean max(0, 1 - y f(x))``, for each class against the rest.

    Of C outputs, the one of the true class has y = 1 and the others -1. A sample's loss is the sum over the outputs, as in
    scikit-learn's LinearSVC. With two classes, the two outputs mirror each other. The survey names its model squared-SVM
    but prints the plain hinge; both are available. The task's ``l2`` provides the SVM's L2 term.

    Args:
        squared: whether to use ``max(0, 1 - y f)^2``, which is differentiable everywhere, instead of the plain hinge.

    Shapes:
        outputs (M, C), labels (M,); the output is a scalar.

    Example:
        >>> import torch
        >>> Hinge(squared=False)(torch.tensor([[0.5, -2.0]]), torch.tensor([0])).item()
        0.5
    """

    convex = True

    def __init__(self, squared: bool = True) -> None:
        super().__init__()
        self.squared = squared

    def forward(self, outputs: Tensor, target: Tensor) -> Tensor:
        """Return the mean loss of a batch.

        Raises:
            ConfigurationError: if the targets are not classes.
        """
        if target.is_floating_point() or outputs.ndim != 2 or target.ndim != 1:
            raise ConfigurationError(
                f"Hinge needs outputs (M, C) and one class per example, but got {tuple(outputs.shape)} and targets of "
                f"{target.dtype}, shape {tuple(target.shape)}. Use it with ClassificationTask and data with labels."
            )
        sign = F.one_hot(target, outputs.shape[1]).to(outputs.dtype) * 2 - 1
        missing = (1 - sign * outputs).clamp(min=0)
        return (missing.square() if self.squared else missing).sum(dim=1).mean()


class HalfSquaredError(nn.Module):
    """Compute half the mean squared error, ``mean 1/2 (y - f(x))^2``, whose gradient is the residual itself.

    Shapes:
        outputs and target of one shape; the output is a scalar.
    """

    convex = True

    def forward(self, outputs: Tensor, target: Tensor) -> Tensor:
        """Return the mean loss of a batch.

        Raises:
            ConfigurationError: if outputs and target differ in shape, since they would be broadcast.
        """
        require_same_shape("HalfSquaredError", outputs.shape, target.shape)
        return F.mse_loss(outputs, target) / 2
