"""Wrong labels: the attacker trains as it should, on data that lie."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from fl_lightning.errors import require
from fl_lightning.functional.labels import wrong_labels

_NAME = "federation.attackers.labels."


class LabelAttack(ABC):
    """Changes a client's labels, once for all rounds."""

    @abstractmethod
    def change(self, labels: Tensor, num_classes: int, generator: torch.Generator) -> Tensor:
        """The labels that the client believes in.

        Args:
            labels: the true ones, int64, shape (n,).
            num_classes: C, at least 2.
            generator: for what is drawn; the client's own.

        Returns:
            Shape (n,).
        """


class RandomLabels(LabelAttack):
    """A share of the labels becomes another class, drawn uniformly (AdaFed, section 4.0.3).

    Args:
        share: in [0, 1]; round(share * n) labels become wrong, none by chance right.
    """

    def __init__(self, share: float = 1.0) -> None:
        require(0 <= share <= 1, _NAME + "share", "from 0 to 1", share)
        self.share = share

    def change(self, labels: Tensor, num_classes: int, generator: torch.Generator) -> Tensor:
        """See :meth:`LabelAttack.change`."""
        return wrong_labels(labels, self.share, num_classes, generator)


class PermutedLabels(LabelAttack):
    """Every class is taken for another one, the same for all attackers: class c for ``(c + shift) mod C``.

    Unlike labels drawn at random such errors agree with each other, so that attackers pull in one direction.

    Args:
        shift: >= 1; one that is a multiple of C would change nothing and is refused.
    """

    def __init__(self, shift: int = 1) -> None:
        require(shift >= 1, _NAME + "shift", "1 or above", shift)
        self.shift = shift

    def change(self, labels: Tensor, num_classes: int, generator: torch.Generator) -> Tensor:
        """See :meth:`LabelAttack.change`.

        Raises:
            ConfigurationError: if every class stays what it is.
        """
        require(self.shift % num_classes != 0, _NAME + "shift", f"no multiple of the {num_classes} classes", self.shift)
        return (labels + self.shift) % num_classes


class RelabelClass(LabelAttack):
    """One class is taken for another one: sevens for ones, say. The other labels stay true.

    Args:
        source: the class that is lied about.
        target: what it is said to be.
    """

    def __init__(self, source: int, target: int) -> None:
        require(source >= 0, _NAME + "source", "a class of 0 or above", source)
        require(target >= 0 and target != source, _NAME + "target", "another class than 'source', 0 or above", target)
        self.source = source
        self.target = target

    def change(self, labels: Tensor, num_classes: int, generator: torch.Generator) -> Tensor:
        """See :meth:`LabelAttack.change`.

        Raises:
            ConfigurationError: if there are fewer classes.
        """
        for name, label in (("source", self.source), ("target", self.target)):
            require(label < num_classes, _NAME + name, f"one of the classes 0 to {num_classes - 1}", label)
        return torch.where(labels == self.source, torch.full_like(labels, self.target), labels)
