"""Train a model that is mixed with the shared one, as APFL's clients do (Deng et al. 2020, Algorithm 1)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.optim import LBFGS, Optimizer

from fl_lightning.errors import ConfigurationError
from fl_lightning.rules.base import ClientRule, LocalEnd, LocalStart
from fl_lightning.rules.passes import Batch
from fl_lightning.types import Pull, Snapshot


class Mixture(ClientRule):
    """Train v beside w such that the mixture ``alpha v + (1 - alpha) w`` fits the client; only w is sent.

    The module's optimizer steps on v as well, with the gradient ``alpha g`` where g is that of the mixture's loss.

    Args:
        alpha: the first weight of v, in [0, 1].
        rate: the learning rate of alpha, which moves once a turn, >= 0.
    """

    stacks = False
    own_model = True
    kept_like_parameters = ("local",)

    def __init__(self, alpha: float, rate: float) -> None:
        self.alpha, self.rate = alpha, rate

    def begin(self, start: LocalStart) -> list[Tensor]:
        """Return v, which starts at the first w that the client receives."""
        assert start.model is not None
        self._model, kept, first = start.model, start.kept, start.parameters[0]
        size = sum(parameter.numel() for parameter in start.parameters)
        buffers = {"buffers": kept["vector"][size:], "counters": kept["counters"]} if "local" in kept else {}
        tensors = start.model.tensors(kept.get("local"), **buffers)
        own = [tensors.pop(name).requires_grad_() for name in start.model.parameters]
        self._others, self._moves = tensors, self.rate > 0
        self._alpha = kept["alpha"].to(first) if "alpha" in kept else first.new_tensor(self.alpha)
        self._parameters, self._local = start.parameters, own
        return own

    def check_optimizers(self, optimizers: Sequence[Optimizer], words: str) -> None:
        """Refuse LBFGS, whose step depends on all parameters together; see :meth:`ClientRule.check_optimizers`."""
        if any(isinstance(optimizer, LBFGS) for optimizer in optimizers):
            raise ConfigurationError(
                "APFL trains two models with one optimizer, but LBFGS treats all parameters as one vector. Return another "
                "optimizer from the module's 'configure_optimizers', or use another strategy."
            )

    def join_optimizers(self, optimizers: Sequence[Optimizer], parameters: Sequence[Tensor], terms: Sequence[Tensor]) -> None:
        """Add each tensor of v to the group of its counterpart in w, so that rates and schedules apply to both."""
        own = {id(parameter): term for parameter, term in zip(parameters, terms, strict=True)}
        for group in (group for optimizer in optimizers for group in optimizer.param_groups):
            group["params"] += [own[id(parameter)] for parameter in group["params"] if id(parameter) in own]

    def _mixed(self, parameters: Sequence[Tensor], terms: Sequence[Tensor]) -> dict[str, Tensor]:
        mixed = [self._alpha * own + (1 - self._alpha) * w for own, w in zip(terms, parameters, strict=True)]
        return dict(zip(self._model.parameters, mixed, strict=True))

    def loss_term(self, batch: Batch, parameters: Sequence[Tensor], terms: Sequence[Tensor]) -> Tensor | None:
        """Return 0, whose gradient with respect to v is g; see :meth:`ClientRule.loss_term`."""
        with torch.no_grad():
            mixed = self._mixed(parameters, terms)
        through = {name: mixed[name] + (own - own.detach()) for name, own in zip(mixed, terms, strict=True)}
        tensors = {**self._others, **through}
        loss = batch.again(tensors).loss
        self._others = {name: tensors[name].detach() for name in self._others}
        return None if loss is None else loss - loss.detach()

    @torch.no_grad()
    def correct_gradients(
        self, parameters: Sequence[Tensor], terms: Sequence[Tensor], scale: float = 1.0, pull: Pull | None = None
    ) -> None:
        """Scale g to v's gradient, and move alpha before the first step along ``<v - w, g>``."""
        pairs = [(own, w, own.grad) for own, w in zip(terms, parameters, strict=True) if own.grad is not None]
        slope = sum(((own - w) * g / scale).sum() for own, w, g in pairs) if self._moves else 0.0
        for _, _, g in pairs:
            g.mul_(self._alpha)
        self._alpha = (self._alpha - self.rate * slope).clamp(0, 1)
        self._moves = False

    @torch.no_grad()
    def keeps_model(self, model: Snapshot, terms: Sequence[Tensor]) -> Snapshot:
        """Return the mixture, with the batch statistics of its own passes.

        Raises:
            ConfigurationError: if training has changed frozen tensors, which v does not have.
        """
        if model.moved:
            raise ConfigurationError(
                "APFL trains a second model of each client, but training changes the frozen tensor "
                f"'{next(iter(model.moved))}', of which there is only one. Use another strategy, such as Ditto."
            )
        return self._model.snapshot({**self._others, **self._mixed(self._parameters, terms)})

    def figures(self) -> dict[str, float]:
        """Return alpha."""
        return {"apfl_alpha": float(self._alpha)}

    def remember(self, end: LocalEnd) -> dict[str, Tensor]:
        """Return v and alpha."""
        own = torch.cat([own.detach().reshape(-1) for own in self._local])
        self._local, self._others = [], {}  # before the next client trains
        return {"local": own, "alpha": self._alpha}
