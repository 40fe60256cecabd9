"""Repeat rare classes at the clients: label averaging, and Astraea's augmentation."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fl_lightning.functional.labels import repeats
from fl_lightning.functional.seeding import generator
from fl_lightning.utilities.argument_types import checks_types


@checks_types
@dataclass(frozen=True)
class LabelAveraging:
    """Let each client repeat examples, drawn with replacement, of the classes of which it has fewer than the average client.

    Clients share their counts of each class once; each round draws anew. A class that a client lacks entirely stays missing
    (Fed-Cyclic and Fed-Star thesis, section 3.4, Algorithm 3). With a transform of one input, the repeated inputs are
    changed, as Astraea does to minority classes by random rotations and shifts (survey, section III-C).

    Repeated examples do not count in weights by number of examples.

    Args:
        augmentation: a transform of each repeated input, e.g. ``torchvision.transforms.v2.RandomAffine``.
    """

    augmentation: nn.Module | None = None

    def repeated(self, labels: Tensor, counts: Tensor, seed: int) -> Tensor:
        """Return the positions of the examples to repeat.

        Args:
            labels: the client's labels, shape (n,).
            counts: the counts of all clients and classes, shape (K, C).
            seed: the seed of the draw.
        """
        wanted = counts.double().mean(dim=0).floor().long()
        return repeats(labels, wanted, generator(seed, "LabelAveraging"))

    def change(self, inputs: Tensor) -> Tensor:
        """Return augmented copies of inputs, shape (n, ...)."""
        if self.augmentation is None or not len(inputs):
            return inputs
        return torch.stack([self.augmentation(example) for example in inputs])
