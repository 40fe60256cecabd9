"""Feature skew: Gaussian noise that grows from client to client."""

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
    """Noise of variance sigma * i / N on all examples of client i = 1 .. N, the same in every round (FedLoss thesis, 3.2).

    Values are not clipped.

    Args:
        sigma: noise level, the variance at the last client, >= 0.
        num_clients: N.
        seed: of the noise.
    """

    sigma: float
    num_clients: int
    seed: int

    def deviation(self, client: int) -> float:
        """Standard deviation of the noise of client 0 .. N - 1."""
        return math.sqrt(self.sigma * (client + 1) / self.num_clients)

    def add(self, inputs: Any, client: int, what: int | str) -> Tensor:
        """Noisy inputs.

        Args:
            inputs: a tensor in floating point, one example or many; see :func:`scaled_to_one`.
            client: whose they are.
            what: which of the client's inputs: another name draws other noise.

        Raises:
            DataError: if they are no tensor.
        """
        if not isinstance(inputs, Tensor):
            raise DataError(
                f"'data.feature_noise' adds noise to tensors, but the dataset gives a {type(inputs).__name__}. Let its "
                "transform end in a tensor, or leave the noise out."
            )
        draw = generator(self.seed, client, what, "feature noise")
        return inputs + self.deviation(client) * torch.randn(inputs.shape, generator=draw, dtype=inputs.dtype)


def scaled_to_one(inputs: Tensor) -> Tensor:
    """Images in uint8 as float32 in [0, 1]; whatever else is in floating point already as it is."""
    return inputs.float().div_(255) if inputs.dtype == torch.uint8 else inputs
