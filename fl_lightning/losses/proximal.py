"""Add FedProx's proximal term to any loss (Li et al. 2020, eq. 2)."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from fl_lightning.errors import ConfigurationError, require
from fl_lightning.functional.proximal import proximal_term
from fl_lightning.utilities.argument_types import ChecksTypes


class ProximalLoss(ChecksTypes, nn.Module):
    """Add a proximal term to a loss: ``loss(logits, target) + mu / 2 * ||w - w_t||^2``.

    w_t are the weights at the start of the round. :class:`~fl_lightning.ClassificationTask` anchors the loss automatically.
    In your own module, call :meth:`anchor` in ``on_train_start``. For a module whose loss you cannot change, use
    ``federation.local.proximal_mu`` instead: it adds the same gradient, after unscaling and before clipping.

    Args:
        loss: the loss to which the term is added.
        mu: the strength, >= 0; 0 leaves the loss unchanged.
    """

    turn_state = ("_anchors",)
    """What :meth:`anchor` sets at the start of every turn, so that no client keeps it."""

    def __init__(self, loss: nn.Module, mu: float = 0.01) -> None:
        super().__init__()
        require(mu >= 0, "mu", "0 or above", mu)
        self.loss, self.mu = loss, mu
        self._parameters_now: list[Tensor] = []
        self._anchors: list[Tensor] = []

    def anchor(self, parameters: Iterable[Tensor]) -> None:
        """Store the parameters' current values; later calls of the loss measure the distance from them."""
        self._parameters_now = [p for p in parameters if p.requires_grad]
        with torch.no_grad():
            self._anchors = [p.detach().clone() for p in self._parameters_now]

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return the loss of a batch. The term is added only while gradients are recorded, so that evaluation is comparable.

        Raises:
            ConfigurationError: if :meth:`anchor` was never called.
        """
        loss: Tensor = self.loss(logits, target)
        if self.mu == 0 or not torch.is_grad_enabled():
            return loss
        if not self._anchors:
            raise ConfigurationError(
                "ProximalLoss has no anchor, the weights to stay near. Call its anchor(self.parameters()) in 'on_train_start' "
                "of your module, or use 'federation.local.proximal_mu', which does not need this call."
            )
        return loss + proximal_term(self._parameters_now, self._anchors, self.mu)
