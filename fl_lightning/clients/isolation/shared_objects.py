"""Notice objects in a module's attributes that training changes although all clients of a process share them."""

from __future__ import annotations

import hashlib
import pickle
import warnings
from collections.abc import Mapping
from typing import Any

import torch
from lightning.pytorch import LightningDataModule, Trainer
from torch import Tensor, nn

from fl_lightning.clients.isolation.attribute_values import generators_in
from fl_lightning.compat.torch import times_changed
from fl_lightning.functional.digest import digest

_LARGEST = 32 * 2**20
"""The bytes up to which an object is read; what is larger is data rather than state."""


class SharedObjects:
    """Compare objects before and after the first two turns of a process: the first one may create them.

    What cannot be pickled is not compared.

    Args:
        module: the clients' module, whose own parts and tensors do not count as an object's state.
    """

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._before: dict[str, str] = {}
        self._turns = 2
        self._found: set[str] = set()

    @property
    def compares(self) -> bool:
        """Return whether the present turn is compared."""
        return self._turns > 0

    def begin(self, objects: Mapping[str, Any]) -> None:
        """Remember the objects before a turn."""
        self._before = self._digests(objects)

    def end(self, objects: Mapping[str, Any]) -> list[str]:
        """Return the names of the objects that the turn has changed, each with its class, and each only once."""
        self._turns -= 1
        changed = [name for name, now in self._digests(objects).items() if self._before.get(name, now) != now]
        new = [name for name in changed if name not in self._found]
        self._found.update(new)
        return [f"'{name.lstrip('.')}' ({type(objects[name]).__name__})" for name in new]

    def _digests(self, objects: Mapping[str, Any]) -> dict[str, str]:
        if not objects:
            return {}
        own = {id(one) for one in (*self._module.modules(), *self._module.parameters(), *self._module.buffers())}
        own |= {id(found) for value in objects.values() for _, found in generators_in(value, "")}  # seeded in each turn
        found = {name: _digest(value, own) for name, value in objects.items()}
        return {name: digest for name, digest in found.items() if digest is not None}


def _digest(value: Any, own: set[int]) -> str | None:
    """Return a digest of an object's state; None if it cannot be read or is large."""
    content = _Digest()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # some classes announce that their pickles will end
            _StatePickler(content, own).dump(value)
    except Exception:  # whatever a class raises when it is pickled
        return None
    return content.text()


class _Digest:
    """A file that keeps only a digest of what is written."""

    def __init__(self) -> None:
        self._hash, self._size = hashlib.blake2b(digest_size=16), 0

    def write(self, content: Any) -> None:
        self._size += len(content)
        if self._size > _LARGEST:
            raise ValueError(f"more than {_LARGEST} bytes")
        self._hash.update(content)

    def text(self) -> str:
        return self._hash.hexdigest()


class _StatePickler(pickle.Pickler):
    """Write an object's state without what belongs to the module, the Trainer or the data.

    A tensor is written as a digest, a large one as how often it was changed, except through ``.data``.
    """

    def __init__(self, file: Any, own: set[int]) -> None:
        super().__init__(file, protocol=5)
        self._own = own

    def persistent_id(self, obj: Any) -> Any:
        if id(obj) in self._own or isinstance(obj, Trainer | LightningDataModule):
            return "not its own"
        if isinstance(obj, Tensor):
            return digest(obj) if obj.nbytes <= _LARGEST else (id(obj), times_changed(obj))
        return obj.get_state().numpy().tobytes() if isinstance(obj, torch.Generator) else None
