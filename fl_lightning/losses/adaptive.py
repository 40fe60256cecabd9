"""Define losses that the server adapts after each round (AdaFed, section 3; Algorithm 1, lines 10-12)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

from torch import Tensor, nn
from torch.func import functional_call
from torchmetrics import Metric

from fl_lightning.errors import ConfigurationError
from fl_lightning.functional.model_parts import server_buffers
from fl_lightning.utilities.argument_types import ChecksTypes


class AdaptiveLoss(ChecksTypes, nn.Module, ABC):
    """Compute a loss whose buffers the server sets after evaluating the aggregated model on its own set.

    To add one, subclass it with ``forward``, a ``signal`` and :meth:`adapt`; it does not need a strategy or a callback. After
    each validation within ``fit``, except the sanity check, :class:`~fl_lightning.LossAdaptation` calls :meth:`adapt`. The
    new buffers are saved in the round's checkpoint and sent to the clients with the model. Adaptation also works inside
    other losses, such as :class:`~fl_lightning.ProximalLoss`.

    Attributes:
        signal: the input of :meth:`adapt`, set by the subclass: a torchmetrics metric of (outputs, target), updated whenever
            the module calls the loss in validation; the name of a metric that the module logs in validation; or None, for a
            loss that never adapts.
        server_buffers: names of the buffers that :meth:`adapt` sets: sent to the clients, kept in checkpoints, never averaged.
            Clients do not receive anything else that it changes, and a warning names such attributes.
        observed: whether calls count towards a metric in ``signal``.
    """

    signal: Metric | str | None  # without a default: a class attribute would hide the module that is set on the instance
    server_buffers: tuple[str, ...] = ()
    observed: bool = True

    @abstractmethod
    def forward(self, outputs: Tensor, target: Tensor) -> Tensor:
        """Return the loss of a batch, a scalar."""

    @abstractmethod
    def adapt(self, signal: Tensor) -> None:
        """Set the buffers.

        Args:
            signal: the metric's value, or the logged value of that name; the same on every rank.
        """

    def figures(self) -> Mapping[str, Tensor]:
        """Return figures of the new buffers to log after :meth:`adapt`, by name."""
        return {}


def adapted_buffers(loss: AdaptiveLoss) -> dict[str, Tensor]:
    """Return the buffers that the server sets, by name.

    Raises:
        ConfigurationError: if ``server_buffers`` names one that the loss does not have.
    """
    own = dict(loss.named_buffers(recurse=False))
    names = server_buffers(loss)
    missing = [name for name in names if name not in own]
    if missing:
        raise ConfigurationError(
            f"'server_buffers' of {type(loss).__name__} names '{missing[0]}', but its buffers are: "
            f"{', '.join(own) or 'none'}. Correct the name, or call self.register_buffer('{missing[0]}', ...) in '__init__'."
        )
    return {name: own[name] for name in names}


class PlainLoss:
    """Evaluate a loss as it was before the server adapted any part of it, so that rounds and strategies can be compared.

    Class weights are then 1, which gives plain cross-entropy; a robust loss has its first shape and scale.

    Args:
        loss: the loss, with its adaptive parts as constructed.
    """

    def __init__(self, loss: nn.Module) -> None:
        self._first = {
            f"{name}.{buffer}".lstrip("."): value.detach().clone()
            for name, part in loss.named_modules()
            if isinstance(part, AdaptiveLoss)
            for buffer, value in adapted_buffers(part).items()
        }

    @property
    def adapts(self) -> bool:
        """Return whether the loss has a part that the server adapts."""
        return bool(self._first)

    def __call__(self, loss: nn.Module, outputs: Tensor, target: Tensor) -> Tensor:
        """Return the value of the loss with its original buffers."""
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
