"""Compute half the squared error, the loss of linear regression (survey, Table II)."""

from __future__ import annotations

from torch import Tensor, nn

from fl_lightning.errors import require_same_shape


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
        return nn.functional.mse_loss(outputs, target) / 2
