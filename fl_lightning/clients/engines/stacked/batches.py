"""Group the batches of a stack of clients by shape."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

import numpy as np
import torch
from lightning.fabric.utilities.apply_func import move_data_to_device
from lightning.pytorch import LightningDataModule, LightningModule
from torch import Tensor

from fl_lightning.clients.engines.stacked.padding import padded
from fl_lightning.clients.training.inner_trainer import transfer_hooks
from fl_lightning.compat.torch import TreeSpec, tree_flatten, tree_unflatten
from fl_lightning.data.resident_loader import ClientLoader, in_turn
from fl_lightning.data.tensor_loader import TensorLoader
from fl_lightning.data.views import TRANSFER_HOOKS
from fl_lightning.errors import EngineError


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
        self._gpu = torch.Generator(device).manual_seed(seed) if device.type == "cuda" else None
        self.masks = self._gpu or self.torch
        self._seed = seed
        self._python: Any = None
        self._numpy: Any = None

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Install this client's random states as the global ones, and restore the previous ones afterwards."""
        before = torch.get_rng_state(), random.getstate(), np.random.get_state()
        torch.set_rng_state(self.torch.get_state())
        if self._python is None:  # most clients' data and hooks draw nothing
            random.seed(self._seed)
            np.random.seed(self._seed % 2**32)
        else:
            random.setstate(self._python)
            np.random.set_state(self._numpy)
        try:
            with self._on_gpu():
                yield
        finally:
            self.torch.set_state(torch.get_rng_state())
            self._python, self._numpy = random.getstate(), np.random.get_state()
            torch.set_rng_state(before[0])
            random.setstate(before[1])
            np.random.set_state(before[2])

    @contextmanager
    def _on_gpu(self) -> Iterator[None]:
        if self._gpu is None:
            yield
            return
        before = torch.cuda.get_rng_state(self._gpu.device)
        torch.cuda.set_rng_state(self._gpu.get_state(), self._gpu.device)
        try:
            yield
        finally:
            self._gpu.set_state(torch.cuda.get_rng_state(self._gpu.device))
            torch.cuda.set_rng_state(before, self._gpu.device)


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
            batch = self._convert(next(self._iterators[position]))
            before, move, after = (self._hooks[position].get(name) for name in TRANSFER_HOOKS)
            batch = before(batch, 0) if before else batch
            batch = move(batch, self._device, 0) if move else move_data_to_device(batch, self._device)
            return after(batch, 0) if after else batch

    def _stack(self, flat: Sequence[tuple[list[Any], TreeSpec]]) -> StackedBatch:
        first, spec = flat[0]
        columns = zip(*(leaves for leaves, _ in flat), strict=True)
        leaves = [torch.stack(list(column)) for column in columns if isinstance(column[0], Tensor)]
        if not leaves:
            raise EngineError("Cannot stack batches without tensors. Set 'federation.local.engine' to 'fabric' or 'trainer'.")
        return StackedBatch(leaves, [StackedBatch.TENSOR if isinstance(leaf, Tensor) else leaf for leaf in first], spec)
