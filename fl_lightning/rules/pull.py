"""Pull a client towards a model that the route chooses, as in MOCHA (Smith et al. 2017)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fl_lightning.functional.proximal import add_proximal_gradient
from fl_lightning.rules.base import ClientRule, LocalStart
from fl_lightning.types import Pull


class PullRule(ClientRule):
    """Add ``strength * (w - anchor)`` to the gradients of clients for which the route sets an anchor."""

    stacks = False

    def begin(self, start: LocalStart) -> list[Tensor]:
        """Return the anchor in the shapes of the parameters."""
        return [] if start.pull is None else like_parameters(start.pull.anchor, start.parameters)

    def correct_gradients(
        self, parameters: Sequence[Tensor], terms: Sequence[Tensor], scale: float = 1.0, pull: Pull | None = None
    ) -> None:
        """Add the pull's gradient; see :meth:`ClientRule.correct_gradients`."""
        add_proximal_gradient(parameters, terms, self.strength(pull) * scale)

    def strength(self, pull: Pull | None) -> float:
        """Return the strength of the client's pull."""
        return 0.0 if pull is None else pull.strength


def like_parameters(vector: Tensor, parameters: Sequence[Tensor]) -> list[Tensor]:
    """Return a vector of shape (p,) in the shapes and dtypes of the parameters, on their device."""
    pieces = torch.split(vector, [parameter.numel() for parameter in parameters])
    return [piece.view_as(p).to(p) for piece, p in zip(pieces, parameters, strict=True)]
