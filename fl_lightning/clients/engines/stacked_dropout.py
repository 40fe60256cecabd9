"""Dropout for clients that are trained side by side: each draws its masks from random numbers of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from fl_lightning.errors import ConfigurationError

_PLAIN: tuple[Any, ...] = (F.dropout, torch.dropout, torch.dropout_)
_FEATURES: tuple[Any, ...] = (F.dropout1d, F.dropout2d, F.dropout3d, torch.feature_dropout, torch.feature_dropout_)


class MaskSpec:
    """One call of dropout in a training step.

    Args:
        shape: of one client's mask.
        p: probability of a zero, in (0, 1].
        dtype: of the mask.
        device: of the mask.
    """

    def __init__(self, shape: tuple[int, ...], p: float, dtype: torch.dtype, device: torch.device) -> None:
        self.shape, self.p, self.dtype, self.device = shape, p, dtype, device

    def draw(self, generator: torch.Generator) -> Tensor:
        """A mask, as torch draws it on a CPU: Bernoulli(1 - p), divided by 1 - p."""
        if self.p == 1:
            return torch.zeros(self.shape, dtype=self.dtype, device=self.device)
        mask = torch.empty(self.shape, dtype=self.dtype, device=generator.device).bernoulli_(1 - self.p, generator=generator)
        return mask.div_(1 - self.p).to(self.device)


class StackedDropout(TorchFunctionMode):
    """Within it, dropout takes masks that are given; without masks it notes what it would need.

    Args:
        masks: of one client, in the order of the calls; None to find out.
    """

    def __init__(self, masks: Sequence[Tensor] | None) -> None:
        super().__init__()
        self.specs: list[MaskSpec] = []
        self._masks = masks
        self._used = 0

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Take dropout over; leave everything else."""
        kwargs = kwargs or {}
        if func in _PLAIN or func in _FEATURES:
            return self._dropout(func in _FEATURES, *args, **kwargs)
        if func in (F.alpha_dropout, F.feature_alpha_dropout):
            raise ConfigurationError(
                "Alpha dropout has no form for stacked clients. Set 'federation.local.engine' to 'fabric' or 'trainer'."
            )
        return func(*args, **kwargs)

    def _dropout(
        self,
        features: bool,
        input: Tensor,
        p: float = 0.5,
        training: bool | None = None,
        inplace: bool = False,
        train: bool | None = None,
    ) -> Tensor:
        active = training if training is not None else train if train is not None else True
        if not active or p == 0 or not input.numel():
            return input
        if self._masks is None:
            shape = (*input.shape[:2], *(1 for _ in input.shape[2:])) if features else tuple(input.shape)
            self.specs.append(MaskSpec(shape, p, input.dtype, input.device))
            return input.clone()
        mask = self._masks[self._used]
        self._used += 1
        return input.mul_(mask) if inplace else input * mask
