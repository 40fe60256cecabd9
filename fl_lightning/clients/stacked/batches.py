"""Give a stack of clients their batches, grouped by shape."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, TypeVar

import torch
from lightning.fabric.utilities.apply_func import move_data_to_device
from lightning.pytorch import LightningDataModule, LightningModule
from torch import Tensor

from fl_lightning.clients.trainer import transfer_hooks, transferred
from fl_lightning.compat.torch import TreeSpec, tree_flatten, tree_map, tree_unflatten
from fl_lightning.data.resident_loader import ClientLoader, in_turn
from fl_lightning.data.tensor_loader import TensorLoader, beside
from fl_lightning.errors import EngineError
from fl_lightning.functional.seeding import RandomNumbers, isolated_rng

Tree = TypeVar("Tree")


class ClientRandom:
    """Hold the random states of one client (torch, NumPy and Python), so that it draws as in a fit of its own.

    Args:
        seed: the seed for :func:`~fl_lightning.functional.isolated_rng`.
        device: the device to train on.

    Attributes:
        torch: draws on the CPU.
        masks: draws dropout masks, on the GPU if the client trains there.
    """

    def __init__(self, seed: int, device: torch.device) -> None:
        self.torch = torch.Generator().manual_seed(seed)
        self.masks = torch.Generator(device).manual_seed(seed) if device.type == "cuda" else self.torch
        self._seed, self._device = seed, device
        self._left: RandomNumbers | None = None

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Install this client's random states as the global ones, and restore the previous ones afterwards."""
        with isolated_rng(self._seed, self._device):
            if self._left is not None:
                self._left.restore()
            torch.set_rng_state(self.torch.get_state())  # masks may have been drawn since
            if self.masks is not self.torch:
                torch.cuda.set_rng_state(self.masks.get_state(), self._device)
            try:
                yield
            finally:
                self._left = RandomNumbers.now(self._device)
                self.torch.set_state(self._left.cpu)
                if self._left.cuda is not None:
                    self.masks.set_state(self._left.cuda)


class StackedBatch:
    """Hold one batch of each of several clients.

    Args:
        leaves: the tensors of the batch, each of shape (K, ...).
        rest: the other parts of the batch, by position, the same for all clients; ``TENSOR`` in the place of each leaf.
        spec: the structure of the batch.
    """

    TENSOR: ClassVar[object] = object()

    def __init__(self, leaves: list[Tensor], rest: list[Any], spec: TreeSpec) -> None:
        self.leaves, self._rest, self._spec = leaves, rest, spec

    @property
    def key(self) -> Any:
        """Return a key that is equal for batches of the same shape."""
        return tuple((tuple(leaf.shape), leaf.dtype) for leaf in self.leaves), str(self._rest), str(self._spec)

    @property
    def size(self) -> int:
        """Return the number of examples in one client's batch."""
        return self.leaves[0].shape[1] if self.leaves and self.leaves[0].ndim > 1 else 1

    def padded(self, rows: int) -> StackedBatch:
        """Return batches for this many clients, by repeating the last client's."""
        return StackedBatch(padded(self.leaves, rows), self._rest, self._spec)

    def rebuild(self, leaves: Sequence[Any]) -> Any:
        """Return the batch with its tensors replaced."""
        own = iter(leaves)
        return tree_unflatten([next(own) if item is self.TENSOR else item for item in self._rest], self._spec)


Groups = list[tuple[list[int], StackedBatch]]
"""The positions of clients in the stack, and the batches of these clients."""


class StackedBatches:
    """Iterate over the batches of one local epoch of a stack.

    Args:
        module: the clients' module.
        data: the clients' datamodules.
        loaders: the clients' batches.
        rngs: the clients' random numbers.
        convert: the function that converts batches to the precision of the training.
        device: the device to train on.
    """

    def __init__(
        self,
        module: LightningModule,
        data: Sequence[LightningDataModule],
        loaders: Sequence[Any],
        rngs: Sequence[ClientRandom],
        convert: Callable[[Any], Any],
        device: torch.device,
    ) -> None:
        self._hooks = [transfer_hooks(module, own) for own in data]
        self._draws = [
            bool(hooks) or not isinstance(own, TensorLoader) for hooks, own in zip(self._hooks, loaders, strict=True)
        ]
        self._rngs, self._convert, self._device, self._module = rngs, convert, device, module
        self._data = data
        self._iterators: list[Iterator[Any]] = []
        if any(isinstance(loader, ClientLoader) for loader in loaders):
            with rngs[0].in_place():
                self._iterators = [in_turn(loaders)] * len(loaders)
            return
        for loader, rng, draws in zip(loaders, rngs, self._draws, strict=True):
            if draws:
                with rng.in_place():
                    self._iterators.append(iter(loader))
            else:
                self._iterators.append(iter(loader))

    def __iter__(self) -> Iterator[Groups]:
        return self

    def __next__(self) -> Groups:
        flat = [tree_flatten(self._batch(position)) for position in range(len(self._iterators))]
        groups: dict[Any, list[int]] = {}
        for position, (leaves, spec) in enumerate(flat):
            shapes = tuple(tuple(leaf.shape) if isinstance(leaf, Tensor) else repr(leaf) for leaf in leaves)
            groups.setdefault((shapes, str(spec)), []).append(position)
        return [(positions, self._stack([flat[position] for position in positions])) for positions in groups.values()]

    def _batch(self, position: int) -> Any:
        if not self._draws[position]:
            return move_data_to_device(self._convert(next(self._iterators[position])), self._device)
        self._module.trainer = self._data[position].trainer
        with self._rngs[position].in_place():
            return transferred(self._convert(next(self._iterators[position])), self._hooks[position], self._device)

    def _stack(self, flat: Sequence[tuple[list[Any], TreeSpec]]) -> StackedBatch:
        first, spec = flat[0]
        columns = zip(*(leaves for leaves, _ in flat), strict=True)
        leaves = [torch.stack(list(column)) for column in columns if isinstance(column[0], Tensor)]
        if not leaves:
            raise EngineError("Cannot stack batches without tensors. Set 'federation.local.engine' to 'fabric' or 'trainer'.")
        return StackedBatch(leaves, [StackedBatch.TENSOR if isinstance(leaf, Tensor) else leaf for leaf in first], spec)


def can_gather(loaders: Sequence[Any], hooks: Sequence[Any]) -> bool:
    """Return whether all clients read the same tensors, on one device, and no transfer hook sees their batches."""
    if any(hooks) or not all(isinstance(loader, TensorLoader) for loader in loaders):
        return False
    tensors = loaders[0].tensors
    same = all(len(o.tensors) == len(tensors) and all(map(operator.is_, o.tensors, tensors)) for o in loaders)
    return same and len({tensor.device for tensor in tensors}) == 1


class GatheredBatches:
    """Iterate over the batches of one local epoch of a stack.

    Args:
        loaders: the clients' batches, for which :func:`can_gather` holds.
        convert: the function that converts batches to the precision of the training.
        device: the device to train on.
    """

    def __init__(self, loaders: Sequence[TensorLoader], convert: Callable[[Any], Any], device: torch.device) -> None:
        self._tensors, self._convert, self._device = loaders[0].tensors, convert, device
        self._loaders, self._step = loaders, 0
        orders = [loader.order() for loader in loaders]
        rows = [torch.arange(own.num_examples) if order is None else order for own, order in zip(loaders, orders, strict=True)]
        matrix = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)  # (K, m), padded with 0, which is never read
        self._indices = beside(matrix, self._tensors[0].device)

    def __iter__(self) -> Iterator[Groups]:
        return self

    def __next__(self) -> Groups:
        groups: dict[tuple[int, int], list[int]] = {}
        for position, loader in enumerate(self._loaders):
            start = self._step * loader.batch_size
            if start >= loader.num_served:
                raise StopIteration
            groups.setdefault((start, min(start + loader.batch_size, loader.num_examples)), []).append(position)
        self._step += 1
        return [(positions, self._batch(positions, start, stop)) for (start, stop), positions in groups.items()]

    def _batch(self, positions: Sequence[int], start: int, stop: int) -> StackedBatch:
        columns = self._indices[:, start:stop]
        indices = columns if len(positions) == len(self._loaders) else columns[torch.tensor(positions, device=columns.device)]
        found = [tensor[indices] for tensor in self._tensors]
        leaves, spec = tree_flatten(move_data_to_device(self._convert(found), self._device))
        return StackedBatch(leaves, [StackedBatch.TENSOR] * len(leaves), spec)


def padded(tree: Tree, rows: int) -> Tree:
    """Repeat the last client's tensors, each of shape (K, ...), until their shape is (rows, ...)."""

    def longer(tensor: Tensor) -> Tensor:
        last = tensor[-1:].expand(rows - len(tensor), *tensor.shape[1:])
        if tensor.stride(0) * len(tensor) != tensor.numel():
            return torch.cat([tensor, last])
        # Keep the memory layout, such as channels_last: another layout would be compiled again.
        result = tensor.new_empty_strided((rows, *tensor.shape[1:]), tensor.stride())
        result[: len(tensor)] = tensor
        result[len(tensor) :] = last
        return result

    repeated: Tree = tree_map(longer, tree)
    return repeated
