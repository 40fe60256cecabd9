"""What a loss is that the server adapts after each round (AdaFed, section 3; Algorithm 1, lines 10-12)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

from torch import Tensor, nn
from torch.func import functional_call
from torchmetrics import Metric


class AdaptiveLoss(nn.Module, ABC):
    """A loss with buffers that the server sets from what it sees of the aggregated model on its own set.

    A new one is a subclass with ``forward``, a ``signal`` and :meth:`adapt`: no strategy, no callback. After each
    validation within ``fit``, the sanity check aside, :class:`~fl_lightning.LossAdaptation` calls :meth:`adapt`; the new
    buffers are in the round's checkpoint and go to the clients with the model. Losses around it, such as
    :class:`~fl_lightning.ProximalLoss`, do not matter.

    Attributes:
        signal: what is seen: a torchmetrics metric of (outputs, target), which gets all on which the module calls the loss in
            validation; or the name of a metric that the module logs in validation. To be set; None: the loss stays as it is.
        server_buffers: names of the buffers that :meth:`adapt` sets: sent to the clients, kept in checkpoints, never averaged.
        observed: whether calls count towards a metric in ``signal``.
    """

    signal: Metric | str | None  # without a default: a class attribute would hide the module that is set on the instance
    server_buffers: tuple[str, ...] = ()
    observed: bool = True

    @abstractmethod
    def forward(self, outputs: Tensor, target: Tensor) -> Tensor:
        """The loss of a batch, a scalar."""

    @abstractmethod
    def adapt(self, signal: Tensor) -> None:
        """Set the buffers.

        Args:
            signal: what the metric computed, or the figure of that name; the same on every rank.
        """

    def figures(self) -> Mapping[str, Tensor]:
        """What is logged of the new buffers after :meth:`adapt`, by name."""
        return {}


class PlainLoss:
    """Evaluate a loss as it was before the server adapted any part of it, so that rounds and strategies can be compared.

    With class weights that means weights of 1, plain cross-entropy; with a robust loss, its first shape and scale.

    Args:
        loss: with its adaptive parts as they were constructed.
    """

    def __init__(self, loss: nn.Module) -> None:
        self._first = {
            f"{name}.{buffer}".lstrip("."): getattr(part, buffer).detach().clone()
            for name, part in loss.named_modules()
            if isinstance(part, AdaptiveLoss)
            for buffer in part.server_buffers
        }

    @property
    def adapts(self) -> bool:
        """Whether the loss has a part that the server adapts."""
        return bool(self._first)

    def __call__(self, loss: nn.Module, outputs: Tensor, target: Tensor) -> Tensor:
        """Return the value of the loss with the buffers that it had at first."""
        parts = [part for part in loss.modules() if isinstance(part, AdaptiveLoss)]
        first = {name: value.to(outputs.device) for name, value in self._first.items()}
        try:
            for part in parts:
                part.observed = False
            value: Tensor = functional_call(loss, first, (outputs, target))
        finally:
            for part in parts:
                part.observed = True
        return value
