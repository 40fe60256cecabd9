"""Draw a client's representation to the global model's, as MOON's clients do (Li et al. 2021, Algorithm 1)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from fl_lightning.rules.base import ClientRule, LocalEnd, LocalStart
from fl_lightning.rules.passes import Batch


class ModelContrast(ClientRule):
    """Add ``mu`` times the contrast between the global model and the client's last one to the loss of each batch.

    Both models see the batch in evaluation mode. In a client's first turn, which has no last model, the term is 0.

    Args:
        mu: the weight of the term, >= 0.
        temperature: the temperature of the contrast, > 0.
        representation: the part of the module whose output is the representation.
    """

    stacks = False
    kept_like_parameters = ("previous",)

    def __init__(self, mu: float, temperature: float, representation: str) -> None:
        self.mu, self.temperature, self.representation = mu, temperature, representation
        self._others: list[dict[str, Tensor]] = []

    def begin(self, start: LocalStart) -> list[Tensor]:
        """Take copies of the global and the last model; the terms are the parameters themselves."""
        assert start.model is not None
        self.listens = (start.model.part(self.representation, "federation.strategy.representation"),)
        self._others = []
        if "previous" in start.kept:
            previous = start.model.tensors(start.kept["previous"], start.kept["previous buffers"])
            self._others = [start.model.tensors(), previous]
        return list(start.parameters)

    def loss_term(self, batch: Batch, parameters: Sequence[Tensor], terms: Sequence[Tensor]) -> Tensor | None:
        """Return the term; see :meth:`ClientRule.loss_term`."""
        if not self._others:
            return None
        (name,) = self.listens
        with torch.no_grad():
            near, far = (batch.again(tensors, training=False).outputs[name] for tensors in self._others)
        return self.mu * model_contrast(batch.own.outputs[name], near, far, self.temperature)

    def remember(self, end: LocalEnd) -> dict[str, Tensor]:
        """Return the trained model, the last one of the next turn."""
        self._others = []  # before the next client trains
        return {"previous": end.end, "previous buffers": end.buffers}


def model_contrast(own: Tensor, positive: Tensor, negative: Tensor, temperature: float) -> Tensor:
    """Return the mean of ``-log(exp(s_+ / t) / (exp(s_+ / t) + exp(s_- / t)))`` over the examples, a scalar >= 0.

    ``s_+`` and ``s_-`` are the cosine similarities of an example's representation to its positive and its negative one.

    Args:
        own: the representations, shape (N, ...).
        positive: those to which they are drawn, of the same shape.
        negative: those from which they are driven away, of the same shape.
        temperature: the temperature t, > 0.
    """
    near, far = (F.cosine_similarity(own.flatten(1), other.flatten(1)) for other in (positive, negative))
    return F.softplus((far - near) / temperature).mean()
