"""Create feature skew: Gaussian noise that grows from client to client."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fl_lightning.errors import DataError
from fl_lightning.functional.seeding import generator


@dataclass(frozen=True)
class FeatureNoise:
    """Add noise of variance sigma * i / N to all examples of client i = 1 .. N, the same in all rounds (FedLoss thesis, 3.2).

    Values are not clipped.

    Args:
        sigma: the noise level, i.e. the variance at the last client, >= 0.
        num_clients: the number of clients N that train.
        seed: the seed of the noise.
        held: the places among all clients, from 0, of the held-out ones, whose ids are N and above; each has the noise of its
            place.
    """

    sigma: float
    num_clients: int
    seed: int
    held: tuple[int, ...] = ()

    def deviation(self, client: int) -> float:
        """Return the standard deviation of the noise of a client."""
        place, among = client, self.num_clients
        if client >= among:
            place, among = self.held[client - among], among + len(self.held)
        return math.sqrt(self.sigma * (place + 1) / among)

    def add(self, inputs: Any, client: int, what: int | str) -> Tensor:
        """Return noisy inputs.

        Args:
            inputs: a floating-point tensor, one example or many; see :func:`scaled_to_one`.
            client: the client that owns them.
            what: which of the client's inputs they are; each name draws different noise.

        Raises:
            DataError: if the inputs are not a floating-point tensor.
        """
        if not isinstance(inputs, Tensor):
            raise DataError(
                f"'data.feature_noise' adds noise to tensors, but the dataset returns a {type(inputs).__name__}. Let its "
                "transform return a tensor, or set 'data.feature_noise' to 0."
            )
        if not inputs.is_floating_point():
            raise DataError(
                f"'data.feature_noise' adds noise to images and other measurements, but the inputs are {inputs.dtype}, such as "
                "numbers of tokens. Set 'data.feature_noise' to 0, or let the dataset return floating-point inputs."
            )
        draw = generator(self.seed, client, what, "feature noise")
        return inputs + self.deviation(client) * torch.randn(inputs.shape, generator=draw, dtype=inputs.dtype)


def scaled_to_one(inputs: Tensor) -> Tensor:
    """Return uint8 images as float32 in [0, 1]; return other inputs, which are floating-point already, unchanged."""
    return inputs.float().div_(255) if inputs.dtype == torch.uint8 else inputs
