"""Dropout for clients that are trained side by side: each draws its masks from random numbers of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from fl_lightning.errors import EngineError

_PLAIN: tuple[Any, ...] = (F.dropout, torch.dropout, torch.dropout_)
_FEATURES: tuple[Any, ...] = (F.dropout1d, F.dropout2d, F.dropout3d, torch.feature_dropout, torch.feature_dropout_)


class MaskSpec:
    """One call of dropout in a training step.

    Args:
        like: a tensor of the mask's shape, layout in memory, dtype and device.
        p: probability of a zero, in (0, 1].
    """

    def __init__(self, like: Tensor, p: float) -> None:
        self.p = p
        self._shape, self._stride = tuple(like.shape), tuple(like.stride())
        self._dtype, self._device = like.dtype, like.device

    @property
    def key(self) -> tuple[tuple[int, ...], float]:
        """Equal for calls that take the same masks."""
        return self._shape, self.p

    def draw(self, generator: torch.Generator) -> Tensor:
        """A mask, as torch draws it on a CPU: Bernoulli(1 - p), divided by 1 - p."""
        mask = torch.empty_strided(self._shape, self._stride, dtype=self._dtype, device=generator.device)
        if self.p == 1:
            return mask.zero_().to(self._device)
        return mask.bernoulli_(1 - self.p, generator=generator).div_(1 - self.p).to(self._device)


class StackedDropout(TorchFunctionMode):
    """Within it, dropout takes masks that are given; without masks it notes what it would need.

    Args:
        masks: of one client, in the order of the calls; None to find out.
        expected: what the masks were drawn for.
    """

    def __init__(self, masks: Sequence[Tensor] | None, expected: Sequence[MaskSpec] = ()) -> None:
        super().__init__()
        self._expected = expected
        self.specs: list[MaskSpec] = []
        self._masks = masks
        self._used = 0

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Take dropout over; leave everything else."""
        kwargs = kwargs or {}
        if func in _PLAIN:
            return self._dropout(None, *args, **kwargs)
        if func in _FEATURES:
            return self._dropout(func, *args, **kwargs)
        if func in (F.alpha_dropout, F.feature_alpha_dropout):
            raise EngineError(
                "Alpha dropout has no form for stacked clients. Set 'federation.local.engine' to 'fabric' or 'trainer'."
            )
        return func(*args, **kwargs)

    def _dropout(
        self,
        features: Callable[..., Any] | None,
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
            self.specs.append(MaskSpec(torch.empty_like(input) if features is None else _of_features(features, input), p))
            return input.clone()
        if self._used >= len(self._masks) or self._expected[self._used].p != p:
            raise EngineError(
                "Dropout is not what it was when the training step was tried: stacked clients would share what changed it. Set "
                "'federation.local.engine' to 'fabric' or 'trainer'."
            )
        mask = self._masks[self._used]
        self._used += 1
        return input.mul_(mask) if inplace else input * mask


def _of_features(function: Callable[..., Any], input: Tensor) -> Tensor:
    """A number for each example and channel, or each channel of the one example that torch takes these shapes for."""
    alone = (function is F.dropout1d and input.ndim == 2) or (function is F.dropout3d and input.ndim == 4)
    kept = 1 if alone else 2
    return input.new_empty((*input.shape[:kept], *(1 for _ in input.shape[kept:])))
