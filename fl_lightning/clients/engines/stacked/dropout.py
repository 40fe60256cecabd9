"""Apply dropout to clients that train side by side, each with masks from its own random numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from fl_lightning.errors import EngineError

_PLAIN: tuple[Any, ...] = (F.dropout, torch.dropout, torch.dropout_)
_DATA: tuple[Any, ...] = (torch.Tensor.data.__set__,)  # type: ignore[attr-defined]
"""Setting ``tensor.data`` to a client's tensor under vmap can end the process instead of raising an error."""
_FEATURES: tuple[Any, ...] = (F.dropout1d, F.dropout2d, F.dropout3d, torch.feature_dropout, torch.feature_dropout_)


class MaskSpec:
    """Describe one call of dropout in a training step.

    Args:
        like: a tensor of the mask's shape, layout in memory, dtype and device.
        p: the probability of a zero, in (0, 1].
    """

    def __init__(self, like: Tensor, p: float) -> None:
        self.p = p
        self._shape, self._stride = tuple(like.shape), tuple(like.stride())
        self._dtype, self._device = like.dtype, like.device

    @property
    def key(self) -> tuple[tuple[int, ...], float]:
        """Return a key that is equal for calls that accept the same masks."""
        return self._shape, self.p

    def draw(self, generator: torch.Generator) -> Tensor:
        """Draw a mask as torch does on a CPU: Bernoulli(1 - p), divided by 1 - p."""
        mask = torch.empty_strided(self._shape, self._stride, dtype=self._dtype, device=generator.device)
        if self.p == 1:
            return mask.zero_().to(self._device)
        return mask.bernoulli_(1 - self.p, generator=generator).div_(1 - self.p).to(self._device)


class StackedDropout(TorchFunctionMode):
    """Make dropout use the given masks inside this context, or record the masks that it needs.

    Args:
        masks: the masks of one client, in the order of the calls; None to record the calls.
        expected: the calls that the masks were drawn for.
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
        """Replace dropout, refuse what cannot be stacked, and leave every other function unchanged."""
        kwargs = kwargs or {}
        if func in _PLAIN:
            return self._dropout(None, *args, **kwargs)
        if func in _FEATURES:
            return self._dropout(func, *args, **kwargs)
        if func in _DATA:
            raise EngineError(
                "Stacked clients do not support setting 'tensor.data' in 'training_step'. Set 'federation.local.engine' to "
                "'fabric' or 'trainer'."
            )
        if func in (F.alpha_dropout, F.feature_alpha_dropout):
            raise EngineError(
                "Stacked clients do not support alpha dropout. Set 'federation.local.engine' to 'fabric' or 'trainer'."
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
                "A call of dropout differs from the trial run of the training step, so it depends on something that stacked "
                "clients would share. Set 'federation.local.engine' to 'fabric' or 'trainer'."
            )
        mask = self._masks[self._used]
        self._used += 1
        return input.mul_(mask) if inplace else input * mask


def _of_features(function: Callable[..., Any], input: Tensor) -> Tensor:
    """Return a tensor with one number per example and channel, or per channel if torch reads the shape as one example."""
    alone = (function is F.dropout1d and input.ndim == 2) or (function is F.dropout3d and input.ndim == 4)
    kept = 1 if alone else 2
    return input.new_empty((*input.shape[:kept], *(1 for _ in input.shape[kept:])))
