"""Change a client's part of the training set: other labels, a trigger, repeats, noise, a public share."""

from __future__ import annotations

import bisect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import ConcatDataset, Dataset, Subset, TensorDataset

from fl_lightning.data.client_part import read_examples
from fl_lightning.data.example_change import ExampleChange
from fl_lightning.data.feature_noise import FeatureNoise, scaled_to_one
from fl_lightning.data.labels import has_own_labels, labels_at_hand
from fl_lightning.data.rebalancing import LabelAveraging
from fl_lightning.errors import DataError

NOTHING = torch.zeros(0, dtype=torch.int64)


@dataclass(frozen=True)
class Changes:
    """Describe how a client's examples differ from those of the data set.

    Args:
        client: the client's id.
        part: the part of its examples.
        true: their classes, as the dataset stores them, shape (n,); None if they were not read.
        labels: the labels on which the client trains, shape (n,); None for the true ones.
        change: the change of the client's inputs.
        chosen: the examples whose inputs it changes, bool, shape (n,); None if it changes none.
        repeated: the positions 0 .. n - 1 of examples to append.
        rebalancing: changes the repeated inputs.
        noise: the noise on the client's own inputs.
        numbers: the numbers by which the noise of each example is drawn, int64, shape (n,), if it is read one by one.
        public: examples of the data set that are appended unchanged, int64.
    """

    client: int
    part: str
    true: Tensor | None = None
    labels: Tensor | None = None
    change: ExampleChange | None = None
    chosen: Tensor | None = None
    repeated: Tensor = NOTHING
    rebalancing: LabelAveraging | None = None
    noise: FeatureNoise | None = None
    numbers: Tensor = NOTHING
    public: Tensor = NOTHING

    @property
    def none(self) -> bool:
        """Return whether the client holds examples of the data set without changes."""
        return self.labels is None and self.chosen is None and self.noise is None and not self.repeated.numel()

    @property
    def augmentation(self) -> nn.Module | None:
        """Return the transform that changes the repeated inputs."""
        return None if self.rebalancing is None else self.rebalancing.augmentation

    @property
    def scales(self) -> bool:
        """Return whether uint8 images are scaled to [0, 1] here, because the changes require it."""
        return self.noise is not None or self.augmentation is not None


def changed_dataset(dataset: Any, indices: Tensor, changes: Changes) -> Dataset[Any]:
    """Return a client's examples with its changes: its own, then repeated ones, then public ones.

    Args:
        dataset: the whole training set, of examples (input, label, ...).
        indices: the client's examples, shape (n,).
        changes: the changes.

    Returns:
        A TensorDataset if ``dataset`` is one, so that whole batches can still be indexed at once.
    """
    if type(dataset) is not TensorDataset:
        return _Changed(dataset, indices, changes)
    own = [tensor[indices] for tensor in dataset.tensors]
    public = [tensor[changes.public] for tensor in dataset.tensors]
    if changes.labels is not None:
        own[1] = changes.labels.to(own[1])
    if changes.change is not None and changes.chosen is not None:
        own[0][changes.chosen] = changes.change.inputs(own[0][changes.chosen])
    if changes.scales:
        own[0], public[0] = scaled_to_one(own[0]), scaled_to_one(public[0])
    if changes.noise is not None:
        own[0] = changes.noise.add(own[0], changes.client, changes.part)
    copies = [tensor[changes.repeated] for tensor in own]
    if changes.rebalancing is not None:
        copies[0] = changes.rebalancing.change(copies[0])
    return TensorDataset(*(torch.cat(pieces) for pieces in zip(own, copies, public, strict=True)))


class _Changed(Dataset[Any]):
    def __init__(self, dataset: Any, indices: Tensor, changes: Changes) -> None:
        self._dataset, self._changes, self._own = dataset, changes, indices
        self._stored = labels_at_hand(dataset) is not None  # otherwise labels were read as the dataset returns them
        self._positions = torch.cat([torch.arange(len(indices)), changes.repeated])

    def __len__(self) -> int:
        return len(self._positions) + len(self._changes.public)

    def __getitem__(self, index: int) -> Any:
        """Return an example; repeated ones come after the client's own, public ones last."""
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: list[int]) -> list[Any]:
        """Return the examples of a batch, which the dataset may read at once."""
        sources = [self._source(index) for index in indices]
        examples = read_examples(self._dataset, sources)
        return [self._changed(*each) for each in zip(indices, sources, examples, strict=True)]

    def _source(self, index: int) -> int:
        count = len(self._positions)
        return int(self._own[self._positions[index]] if index < count else self._changes.public[index - count])

    def _changed(self, index: int, source: int, example: Any) -> Any:
        changes = self._changes
        if index >= len(self._positions):
            inputs, *rest = example
            return (scaled_to_one(inputs) if changes.scales and isinstance(inputs, Tensor) else inputs, *rest)
        position = int(self._positions[index])
        if not (isinstance(example, list | tuple) and len(example) >= 2):
            settings = ["data.feature_noise", "data.rebalancing", *([changes.change.setting] if changes.change else [])]
            raise DataError(
                f"Changed, noisy and repeated examples need examples of the form (input, label, ...), but "
                f"{type(self._dataset).__name__} returns a {type(example).__name__}. Return tuples, or remove "
                f"{' and '.join(map(repr, settings))}."
            )
        inputs, label, *rest = example
        if changes.labels is not None and changes.true is not None and changes.labels[position] != changes.true[position]:
            transform = _target_transform(self._dataset, source) if self._stored else int
            wrong = transform(int(changes.labels[position]))
            label = torch.as_tensor(wrong).to(label) if isinstance(label, Tensor) else wrong
        if changes.change is not None and changes.chosen is not None and changes.chosen[position]:
            inputs = changes.change.inputs(inputs)
        if changes.scales and isinstance(inputs, Tensor):
            inputs = scaled_to_one(inputs)
        if changes.noise is not None:
            inputs = changes.noise.add(inputs, changes.client, int(changes.numbers[position]))
        if index >= len(self._own) and changes.augmentation is not None:
            inputs = changes.augmentation(inputs)
        return (inputs, label, *rest)


def _target_transform(dataset: Any, index: int) -> Callable[[int], Any]:
    """Return the function by which an example's torchvision dataset changes a stored label before returning it."""
    while isinstance(dataset, Subset | ConcatDataset) and not has_own_labels(dataset):
        if isinstance(dataset, Subset):
            dataset, index = dataset.dataset, int(dataset.indices[index])
        else:
            part = bisect.bisect_right(dataset.cumulative_sizes, index)
            index -= dataset.cumulative_sizes[part - 1] if part else 0
            dataset = dataset.datasets[part]
    return getattr(dataset, "target_transform", None) or int
