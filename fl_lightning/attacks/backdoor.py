"""Plant a backdoor: the model misbehaves only when it sees a trigger (Gu et al. 2017; Bagdasaryan et al. 2020)."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from fl_lightning.errors import DataError, require
from fl_lightning.utilities.argument_types import checks_types

_NAME = "federation.attackers.backdoor."


@checks_types
class Backdoor:
    """Stamp a square in the lower right corner of a share of the attacker's images, and label these as the target class.

    Combine it with ``ScaledUpdate`` as the attackers' model for model replacement. After each round the log shows its success
    rate: the share of the server's images of other classes that the aggregated model assigns to the target when
    they carry the trigger.

    Args:
        target: the class that the trigger stands for.
        share: the share of the attacker's images to stamp, in (0, 1]; round(share * n) images, the same in every round.
        size: the side of the square in pixels, >= 1.
        value: the value of its pixels, in the units of the dataset's images; null for white: 255 for uint8, otherwise 1.
    """

    def __init__(self, target: int = 0, share: float = 0.5, size: int = 4, value: float | None = None) -> None:
        require(target >= 0, _NAME + "target", "a class of 0 or above", target)
        require(0 < share <= 1, _NAME + "share", "above 0 and at most 1", share)
        require(size >= 1, _NAME + "size", "1 or above, in pixels", size)
        require(value is None or math.isfinite(value), _NAME + "value", "finite, or null", value)
        self.target, self.share, self.size, self.value = target, share, size, value

    def check(self, num_classes: int) -> None:
        """Reject a target that is not one of the classes.

        Raises:
            ConfigurationError: if the target does not exist; the message names the setting.
        """
        require(self.target < num_classes, _NAME + "target", f"one of the classes 0 to {num_classes - 1}", self.target)

    def chosen(self, count: int, generator: torch.Generator) -> Tensor:
        """Choose which of ``count`` examples are stamped, bool, shape (count,)."""
        drawn = torch.randperm(count, generator=generator)[: round(self.share * count)]
        return torch.zeros(count, dtype=torch.bool).index_fill_(0, drawn, True)

    def stamp(self, inputs: Any) -> Tensor:
        """Return images with the trigger.

        Args:
            inputs: one image or many, shape (..., H, W), any dtype; not modified.

        Raises:
            DataError: if the inputs are not such a tensor, or are smaller than the trigger.
        """
        if not isinstance(inputs, Tensor) or inputs.dim() < 2 or min(inputs.shape[-2:]) < self.size:
            came = f"shape {tuple(inputs.shape)}" if isinstance(inputs, Tensor) else f"type {type(inputs).__name__}"
            raise DataError(
                f"'federation.attackers.backdoor' stamps {self.size} x {self.size} pixels on images of shape (..., H, W), "
                f"but the dataset returns {came}. Let its transform return such a tensor, or lower 'size'."
            )
        white = 255 if inputs.dtype == torch.uint8 else 1
        value = white if self.value is None else self.value
        if inputs.dtype == torch.uint8 and not (0 <= value <= 255 and value == int(value)):
            raise DataError(
                f"'federation.attackers.backdoor.value' is {value}, but the dataset returns images in uint8, whose pixels are "
                "whole numbers from 0 to 255. Set it to one of these, or remove it to use 255."
            )
        stamped = inputs.clone()
        stamped[..., -self.size :, -self.size :] = value
        return stamped
