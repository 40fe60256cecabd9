"""Change a client's part of the training set: other labels, a trigger, noise, repeats of rare classes, a public share."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

from fl_lightning.data.client_part import ClientPart, read_examples
from fl_lightning.errors import DataError
from fl_lightning.functional.labels import repeats
from fl_lightning.functional.seeding import generator
from fl_lightning.messages import Part
from fl_lightning.utilities.argument_types import checks_types

NOTHING = torch.zeros(0, dtype=torch.int64)


class ExampleChange(Protocol):
    """Change one client's examples in its training and validation parts, in the same way whenever they are read.

    Attributes:
        setting: the setting that asks for the change, for messages.
    """

    setting: str

    def labels(self, labels: Tensor, part: Part, num_classes: int) -> Tensor:
        """Return the labels on which the client trains, int64, shape (n,).

        Args:
            labels: the true labels, int64, shape (n,); not modified.
            part: the part of the client's examples.
            num_classes: the number of classes.

        Raises:
            ConfigurationError: if a setting does not fit the classes.
        """

    def chosen(self, count: int, part: Part) -> Tensor | None:
        """Choose which of ``count`` examples get other inputs, bool, shape (count,); None for no example."""

    def inputs(self, inputs: Any) -> Tensor:
        """Return the inputs that replace those of one or many chosen examples.

        Raises:
            DataError: if they cannot be changed.
        """


@dataclass(frozen=True)
class FeatureNoise:
    """Add noise of variance sigma * i / N to all examples of client i = 1 .. N, the same in all rounds (FedLoss thesis, 3.2).

    Values are not clipped.

    Args:
        sigma: the noise level, i.e. the variance at the last client, >= 0.
        num_clients: the number of clients N.
        seed: the seed of the noise.
    """

    sigma: float
    num_clients: int
    seed: int

    def deviation(self, client: int) -> float:
        """Return the standard deviation of the noise of a client."""
        return math.sqrt(self.sigma * (client + 1) / self.num_clients)

    def add(self, inputs: Any, client: int, what: int | str) -> Tensor:
        """Return noisy inputs.

        Args:
            inputs: a floating-point tensor, one example or many; see :func:`scaled_to_one`.
            client: the client that owns them.
            what: which of the client's inputs they are; each name draws different noise.

        Raises:
            DataError: if the inputs are not a floating-point tensor.
        """
        if not (isinstance(inputs, Tensor) and inputs.is_floating_point()):
            kind = inputs.dtype if isinstance(inputs, Tensor) else type(inputs).__name__
            raise DataError(
                f"'data.feature_noise' adds noise to floating-point tensors, such as images, but the inputs are {kind}. Let "
                "the dataset return such tensors, or set 'data.feature_noise' to 0."
            )
        draw = generator(self.seed, client, what, "feature noise")
        return inputs + self.deviation(client) * torch.randn(inputs.shape, generator=draw, dtype=inputs.dtype)


def scaled_to_one(inputs: Tensor) -> Tensor:
    """Return uint8 images as float32 in [0, 1]; return other inputs, which are floating-point already, unchanged."""
    return inputs.float().div_(255) if inputs.dtype == torch.uint8 else inputs


@checks_types
@dataclass(frozen=True)
class LabelAveraging:
    """Let each client repeat examples of the classes that it has fewer of than the average client, drawn with replacement.

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


@dataclass(frozen=True)
class Changes:
    """Return a client's part of a dataset with its changes: its own examples, then repeated ones, then public ones.

    Args:
        client: the client's id.
        part: the part of its examples.
        labels: the labels on which the client trains, shape (n,); None for those that the examples have.
        change: the change of the client's inputs.
        chosen: the examples whose inputs it changes, bool, shape (n,); None if it changes none.
        noise: the noise on the client's own inputs.
        numbers: the numbers by which the noise of each example is drawn, int64, shape (n,), if it is read one by one.
        repeated: the positions 0 .. n - 1 of examples to append.
        augmentation: a transform of each repeated input.
        public: examples of the data set that are appended unchanged, int64.
    """

    client: int
    part: str
    labels: Tensor | None = None
    change: ExampleChange | None = None
    chosen: Tensor | None = None
    noise: FeatureNoise | None = None
    numbers: Tensor = NOTHING
    repeated: Tensor = NOTHING
    augmentation: nn.Module | None = None
    public: Tensor = NOTHING

    @property
    def none(self) -> bool:
        """Return whether the client holds examples of the data set without changes."""
        return self.labels is None and self.chosen is None and self.noise is None and not self.repeated.numel()

    def __call__(self, dataset: Any, indices: Tensor) -> Dataset[Any]:
        """Return the changed examples.

        Args:
            dataset: the whole training set, of examples (input, label, ...).
            indices: the client's examples, shape (n,).

        Returns:
            A TensorDataset if ``dataset`` is one, so that whole batches can still be indexed at once.
        """
        if type(dataset) is not TensorDataset:
            return _Changed(self, dataset, indices)
        own = [tensor[indices] for tensor in dataset.tensors]
        public = [tensor[self.public] for tensor in dataset.tensors]
        if self.labels is not None:
            own[1] = self.labels.to(own[1])
        if self.change is not None and self.chosen is not None:
            own[0][self.chosen] = self.change.inputs(own[0][self.chosen])
        own[0], public[0] = self.scaled(own[0]), self.scaled(public[0])
        if self.noise is not None:
            own[0] = self.noise.add(own[0], self.client, self.part)
        copies = [tensor[self.repeated] for tensor in own]
        if self.augmentation is not None and len(copies[0]):
            copies[0] = torch.stack([self.augmentation(example) for example in copies[0]])
        return TensorDataset(*(torch.cat(pieces) for pieces in zip(own, copies, public, strict=True)))

    def scaled(self, inputs: Any) -> Any:
        """Return uint8 images scaled to [0, 1] if the changes require it; other inputs unchanged."""
        scales = self.noise is not None or self.augmentation is not None
        return scaled_to_one(inputs) if scales and isinstance(inputs, Tensor) else inputs


class _Changed(Dataset[Any]):
    """Change examples as they are read."""

    def __init__(self, changes: Changes, dataset: Any, indices: Tensor) -> None:
        self._changes, self._own, self._kind = changes, len(indices), type(dataset).__name__
        self._positions = torch.cat([torch.arange(len(indices)), changes.repeated])
        self._examples = ClientPart(dataset, torch.cat([indices[self._positions], changes.public]).tolist())

    def __len__(self) -> int:
        return len(self._examples)

    def __getitem__(self, index: int) -> Any:
        """Return an example; repeated ones come after the client's own, public ones last."""
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: list[int]) -> list[Any]:
        """Return the examples of a batch, which the dataset may read at once."""
        examples = read_examples(self._examples, indices)  # one by one, so that random transforms draw in turns
        return [self._changed(index, example) for index, example in zip(indices, examples, strict=True)]

    def _changed(self, index: int, example: Any) -> Any:
        changes = self._changes
        if index >= len(self._positions):
            inputs, *rest = example
            return (changes.scaled(inputs), *rest)
        position = int(self._positions[index])
        pair = isinstance(example, list | tuple) and len(example) >= 2
        one = pair and (np.isscalar(example[1]) or (isinstance(example[1], Tensor) and example[1].numel() == 1))
        if not (pair if changes.labels is None else one):
            found = f"a label of type {type(example[1]).__name__}" if pair else f"a {type(example).__name__}"
            also = f" and '{changes.change.setting}'" if changes.change else ""
            raise DataError(
                "Changed, noisy and repeated examples need the form (input, label, ...), and other labels one number as label, "
                f"but {self._kind} returns {found}. Return tuples, or remove 'data.feature_noise', 'data.rebalancing'{also}."
            )
        inputs, label, *rest = example
        if changes.labels is not None:
            wrong = int(changes.labels[position])
            label = torch.full_like(label, wrong) if isinstance(label, Tensor) else type(label)(wrong)
        if changes.change is not None and changes.chosen is not None and changes.chosen[position]:
            inputs = changes.change.inputs(inputs)
        inputs = changes.scaled(inputs)
        if changes.noise is not None:
            inputs = changes.noise.add(inputs, changes.client, int(changes.numbers[position]))
        if index >= self._own and changes.augmentation is not None:
            inputs = changes.augmentation(inputs)
        return (inputs, label, *rest)
