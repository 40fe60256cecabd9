"""Train a second model at each client, as Ditto's and pFedMe's clients do."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.optim import Optimizer

from fl_lightning.errors import ConfigurationError
from fl_lightning.functional.proximal import add_proximal_gradient
from fl_lightning.rules.base import ClientRule, LocalStart
from fl_lightning.types import Pull


class OwnModel(ClientRule):
    """Train a model of the client's own after each turn, pulled towards the model that the turn began with (Ditto).

    Args:
        strength: the strength of the pull, >= 0.
    """

    stacks = False
    own_model = True

    def __init__(self, strength: float) -> None:
        self.pull_strength = strength

    def begin(self, start: LocalStart) -> list[Tensor]:
        """Return nothing: the shared model is trained as in FedAvg. The pull of the client's own is a ``PullRule``."""
        return []


class MoreauEnvelope(ClientRule):
    """Let a model w follow the client's own model theta, which stays near w (pFedMe).

    Each step of the optimizer moves theta along ``g + strength (theta - w)``. After ``steps`` of them,
    ``w <- w - rate * strength (w - theta)``. The client sends w and keeps theta.

    Args:
        strength: the strength lambda, > 0.
        steps: the number K of steps of theta for one of w, >= 1.
        rate: the learning rate eta of w, > 0.
    """

    stacks = False
    own_model = True

    def __init__(self, strength: float, steps: int, rate: float) -> None:
        self.pull_strength, self.steps, self.rate = strength, steps, rate
        self._done = 0

    def begin(self, start: LocalStart) -> list[Tensor]:
        """Return w in the parameters' shapes; it starts where theta starts."""
        self._done = 0
        return [parameter.detach().clone() for parameter in start.parameters]

    def correct_gradients(
        self, parameters: Sequence[Tensor], terms: Sequence[Tensor], scale: float = 1.0, pull: Pull | None = None
    ) -> None:
        """Add the pull's gradient, after a step of w if it is due; see :meth:`ClientRule.correct_gradients`."""
        if self._done == self.steps:
            self._follow(parameters, terms)
        add_proximal_gradient(parameters, terms, self.pull_strength * scale)
        self._done += 1

    def sends(self, parameters: Sequence[Tensor], terms: Sequence[Tensor]) -> list[Tensor]:
        """Return w, after its last step."""
        if self._done:
            self._follow(parameters, terms)
        return list(terms)

    @torch.no_grad()
    def _follow(self, parameters: Sequence[Tensor], terms: Sequence[Tensor]) -> None:
        for own, shared in zip(parameters, terms, strict=True):
            shared.sub_(shared - own.detach(), alpha=self.rate * self.pull_strength)
        self._done = 0

    def check_optimizers(self, optimizers: Sequence[Optimizer], words: str) -> None:
        """Refuse several optimizers, whose steps would be counted together; see :meth:`ClientRule.check_optimizers`."""
        if len(optimizers) > 1:
            raise ConfigurationError(
                f"pFedMe counts the steps of one optimizer, but the clients train with {words}. Return a single optimizer from "
                "the module's 'configure_optimizers', or use another strategy."
            )
