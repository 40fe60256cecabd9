"""Repeating rare classes at the clients: label averaging, and Astraea's augmentation."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fl_lightning.functional.labels import repeats
from fl_lightning.functional.seeding import generator


@dataclass(frozen=True)
class LabelAveraging:
    """A client repeats, with replacement, examples of each class of which it has fewer than the clients have on average.

    Clients share their counts of each class once; the draw is new in each round. A class that a client does not have at
    all is left (Fed-Cyclic and Fed-Star thesis, section 3.4, Algorithm 3). With a transform of one input, the repeated
    inputs are changed, as Astraea does to minority classes by random rotations and shifts (survey, section III-C).

    Weights by examples go on counting what a client really holds.

    Args:
        augmentation: applied to each repeated input, e.g. ``torchvision.transforms.v2.RandomAffine``.
    """

    augmentation: nn.Module | None = None

    def repeated(self, labels: Tensor, counts: Tensor, seed: int) -> Tensor:
        """Positions of the examples to repeat.

        Args:
            labels: the client's, shape (n,).
            counts: of all clients and classes, shape (K, C).
            seed: of the draw.
        """
        wanted = counts.double().mean(dim=0).floor().long()
        return repeats(labels, wanted, generator(seed, "LabelAveraging"))

    def change(self, inputs: Tensor) -> Tensor:
        """Augmented copies of inputs, shape (n, ...)."""
        if self.augmentation is None or not len(inputs):
            return inputs
        return torch.stack([self.augmentation(example) for example in inputs])
