"""Falsify labels: the attacker trains correctly, but on wrong data."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from fl_lightning.errors import require
from fl_lightning.functional.labels import wrong_labels
from fl_lightning.utilities.argument_types import ChecksTypes

_NAME = "federation.attackers.labels."


class LabelAttack(ChecksTypes, ABC):
    """Change a client's labels, once for all rounds."""

    @abstractmethod
    def change(self, labels: Tensor, num_classes: int, generator: torch.Generator) -> Tensor:
        """Return the labels on which the client trains.

        Args:
            labels: the true labels, int64, shape (n,): a copy, which may be changed in place.
            num_classes: the number of classes C, at least 2.
            generator: the client's own random numbers.

        Returns:
            The changed labels, shape (n,).
        """


class RandomLabels(LabelAttack):
    """Replace a share of the labels by another class, drawn uniformly (AdaFed, section 4.0.3).

    Args:
        share: the share, in [0, 1]; round(share * n) labels change, and all of these are wrong.
    """

    def __init__(self, share: float = 1.0) -> None:
        require(0 <= share <= 1, _NAME + "share", "from 0 to 1", share)
        self.share = share

    def change(self, labels: Tensor, num_classes: int, generator: torch.Generator) -> Tensor:
        """Return the changed labels; see :meth:`LabelAttack.change`."""
        return wrong_labels(labels, self.share, num_classes, generator)


class PermutedLabels(LabelAttack):
    """Replace every class c by ``(c + shift) mod C``, in the same way at all attackers.

    Unlike labels drawn at random, these errors agree with each other, so attackers pull in one direction.

    Args:
        shift: the shift, >= 1; a multiple of C would change nothing and is rejected.
    """

    def __init__(self, shift: int = 1) -> None:
        require(shift >= 1, _NAME + "shift", "1 or above", shift)
        self.shift = shift

    def change(self, labels: Tensor, num_classes: int, generator: torch.Generator) -> Tensor:
        """Return the changed labels; see :meth:`LabelAttack.change`.

        Raises:
            ConfigurationError: if the shift would leave every class unchanged.
        """
        require(self.shift % num_classes != 0, _NAME + "shift", f"not a multiple of the {num_classes} classes", self.shift)
        return (labels + self.shift) % num_classes


class RelabelClass(LabelAttack):
    """Replace one class by another, for example sevens by ones. The other labels stay true.

    Args:
        source: the class to replace.
        target: the class to replace it by.
    """

    def __init__(self, source: int, target: int) -> None:
        require(source >= 0, _NAME + "source", "a class of 0 or above", source)
        require(target >= 0 and target != source, _NAME + "target", "a class other than 'source', 0 or above", target)
        self.source, self.target = source, target

    def change(self, labels: Tensor, num_classes: int, generator: torch.Generator) -> Tensor:
        """Return the changed labels; see :meth:`LabelAttack.change`.

        Raises:
            ConfigurationError: if the source or target is not one of the classes.
        """
        for name, label in (("source", self.source), ("target", self.target)):
            require(label < num_classes, _NAME + name, f"one of the classes 0 to {num_classes - 1}", label)
        return torch.where(labels == self.source, torch.full_like(labels, self.target), labels)
