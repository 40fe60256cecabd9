"""Align each client's optimum with the global one by a dynamic regulariser, as FedDyn does (Acar et al. 2021, Algorithm 1)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fl_lightning.compat.torch import add_to_each
from fl_lightning.functional.exact_sum import to_float64
from fl_lightning.functional.proximal import add_proximal_gradient
from fl_lightning.rules.base import ClientRule, LocalEnd, LocalStart
from fl_lightning.rules.pull import like_parameters
from fl_lightning.types import Pull


class DynamicRegularizer(ClientRule):
    """Add ``alpha (w - w_t) - g_k`` to the gradients, and keep ``g_k <- g_k - alpha (w_k - w_t)``, which starts at 0.

    Args:
        alpha: the strength of the regulariser, > 0.
    """

    kept_like_parameters = ("gradient",)

    def __init__(self, alpha: float) -> None:
        self.alpha = alpha

    def begin(self, start: LocalStart) -> list[Tensor]:
        """Return ``w_t + g_k / alpha``, the anchor of a pull that equals the regulariser's gradient.

        A weight that never has a gradient has the anchor w_t to the bit: Adam would enlarge any residue to a step.
        """
        anchors = [parameter.detach().clone() for parameter in start.parameters]
        if "gradient" in start.kept:
            own = start.kept["gradient"].to(anchors[0].device)
            add_to_each(anchors, like_parameters(own, start.parameters), alpha=1 / self.alpha)
        return anchors

    def correct_gradients(
        self, parameters: Sequence[Tensor], terms: Sequence[Tensor], scale: float = 1.0, pull: Pull | None = None
    ) -> None:
        """Add the regulariser's gradient; see :meth:`ClientRule.correct_gradients`."""
        add_proximal_gradient(parameters, terms, self.alpha * scale)

    def remember(self, end: LocalEnd) -> dict[str, Tensor]:
        """Return the new g_k, in float64 so that many small changes add up."""
        start = torch.cat([to_float64(parameter.detach().reshape(-1)) for parameter in end.start])
        change = (to_float64(end.end) - start.to(end.end.device)) * -self.alpha
        return {"gradient": change.cpu() + end.kept.get("gradient", torch.zeros(()))}

    def strength(self, pull: Pull | None) -> float:
        """Return alpha."""
        return self.alpha
