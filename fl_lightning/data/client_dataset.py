"""What a client holds, where that is not simply a part of the training set: other labels, repeated examples."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset, Subset, TensorDataset

from fl_lightning.data.rebalancing import LabelAveraging
from fl_lightning.errors import DataError


def altered_dataset(
    dataset: Any,
    indices: Tensor,
    true: Tensor,
    labels: Tensor | None,
    repeated: Tensor | None,
    rebalancing: LabelAveraging | None,
) -> Dataset[Any]:
    """A client's examples with other labels, followed by repeated ones.

    Args:
        dataset: the whole training set, of examples (input, label, ...).
        indices: the client's, shape (n,).
        true: their classes, as the dataset stores them, shape (n,).
        labels: what the client believes them to be, shape (n,); None for the true ones.
        repeated: positions 0 .. n - 1 of examples to append; None for none.
        rebalancing: changes the repeated inputs.

    Returns:
        A TensorDataset where ``dataset`` is one, so that batches are still indexed at once.
    """
    extra = torch.zeros(0, dtype=torch.int64) if repeated is None else repeated
    if type(dataset) is not TensorDataset:
        return _Altered(dataset, indices, true, labels, extra, rebalancing)
    own = [tensor[indices] for tensor in dataset.tensors]
    if labels is not None:
        own[1] = labels.to(own[1])
    copies = [tensor[extra] for tensor in own]
    if rebalancing is not None:
        copies[0] = rebalancing.change(copies[0])
    return TensorDataset(*(torch.cat(pair) for pair in zip(own, copies, strict=True)))


class _Altered(Dataset[Any]):
    def __init__(
        self,
        dataset: Any,
        indices: Tensor,
        true: Tensor,
        labels: Tensor | None,
        extra: Tensor,
        rebalancing: LabelAveraging | None,
    ) -> None:
        self._dataset, self._labels, self._rebalancing = dataset, labels, rebalancing
        self._true = true
        self._transform = _target_transform(dataset)
        self._own = indices
        self._positions = torch.cat([torch.arange(len(indices)), extra])

    def __len__(self) -> int:
        return len(self._positions)

    def __getitem__(self, index: int) -> Any:
        """The example; repeated ones come after the client's own."""
        position = int(self._positions[index])
        example = self._dataset[int(self._own[position])]
        if not (isinstance(example, list | tuple) and len(example) >= 2):
            raise DataError(
                f"Label errors and repeated examples need examples of (input, label, ...), but {type(self._dataset).__name__} "
                f"gives a {type(example).__name__}. Return tuples, or leave 'federation.attackers.wrong_labels' and "
                "'data.rebalancing' out."
            )
        inputs, label, *rest = example
        if self._labels is not None and self._labels[position] != self._true[position]:
            wrong = self._transform(int(self._labels[position]))
            label = torch.as_tensor(wrong).to(label) if isinstance(label, Tensor) else wrong
        if index >= len(self._own) and self._rebalancing is not None and self._rebalancing.augmentation is not None:
            inputs = self._rebalancing.augmentation(inputs)
        return (inputs, label, *rest)


def _target_transform(dataset: Any) -> Callable[[int], Any]:
    """What a torchvision dataset makes of a stored label before it gives it out."""
    while isinstance(dataset, Subset):
        dataset = dataset.dataset
    return getattr(dataset, "target_transform", None) or int
