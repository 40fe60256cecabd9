"""Notice what a training step or a hook leaves behind in Python, which the stacked clients would share."""

from __future__ import annotations

import hashlib
import pickle
import random
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import CellType, FunctionType, GeneratorType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from lightning.pytorch import LightningDataModule, LightningModule, Trainer
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torchmetrics import Metric, MetricCollection

from fl_lightning.compat.torch import buffers_of, parameters_of, parts_of, times_changed
from fl_lightning.errors import EngineError, FederationError
from fl_lightning.functional.description import is_users, own_class
from fl_lightning.functional.digest import digest

REMEDY = "Set 'federation.local.engine' to 'fabric' or 'trainer'."
_OF_TORCH = tuple(vars(nn.Module()))
_OF_LIGHTNING = vars(LightningModule()).keys() | {"_hparams_initial", "_hparams_name", "log", "configure_callbacks"}
_LARGEST = 2**20
"""The bytes up to which a value is read; what is larger is data rather than state."""
_RANDOM = "random numbers"


class Traces:
    """Compare what a module and its code hold before and after a part of the training.

    This covers attributes of the module and its parts, everything that they refer to, class attributes, and the closures,
    default arguments and globals of the methods; not what other libraries hold, and no large values.

    Args:
        module: the clients' module.
    """

    def __init__(self, module: LightningModule) -> None:
        self._module = module

    def now(self) -> dict[str, Any]:
        """Return a digest of each value by its name, and the states of the global random numbers."""
        found: dict[str, Any] = {}
        parts = parts_of(self._module)
        tensors = [*parameters_of(self._module, parts).values()]
        tensors += [buffer for part in parts.values() for buffer in buffers_of(part).values() if buffer is not None]
        own: dict[int, Any] = {id(part): None for part in parts.values()}
        own |= {id(tensor): (times_changed(tensor), tensor.requires_grad) for tensor in tensors}
        file = _Digest()
        pickler = _Pickler(file, own)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # some classes announce that their pickles will end
            for name, value in self._held(parts):
                try:
                    pickler.dump(value)
                except Exception:  # whatever a class raises when it is pickled
                    file.take()
                    continue
                found[name] = file.take()
        numpy: Any = np.random.get_state()
        found[_RANDOM] = random.getstate(), numpy[1].tobytes(), numpy[2], torch.get_rng_state().numpy().tobytes()
        return found

    def _held(self, parts: Mapping[str, nn.Module]) -> Iterator[tuple[str, Any]]:
        classes: dict[type, None] = {}
        for prefix, part in parts.items():
            if isinstance(part, Metric | MetricCollection):
                continue
            held = dict(vars(part))
            own = ((name, held.pop(name, None)) for name in _OF_TORCH)
            yield prefix or type(part).__name__, [pair for pair in own if pair[1]]  # most registers of hooks are empty
            if isinstance(part, LightningModule):
                held = {name: held[name] for name in held if name not in _OF_LIGHTNING} | {"_hparams": part.hparams}
            if own_class(type(part)) is type(part):  # this package's parts keep caches alone
                held = {name: value for name, value in held.items() if not name.startswith("_")}
            yield from ((f"{prefix}.{name}".lstrip("."), value) for name, value in held.items())
            classes.update(dict.fromkeys(kind for kind in type(part).__mro__ if is_users(kind)))
        for kind in classes:
            yield from ((f"{kind.__name__}.{name}", value) for name, value in vars(kind).items())

    @contextmanager
    def unchanged(self, who: str) -> Iterator[None]:
        """Refuse a change in the block, also if it has led to another error; see :meth:`refuse`."""
        before = self.now()
        try:
            yield
        except FederationError:
            raise
        except Exception:
            self.refuse(before, who)
            raise
        self.refuse(before, who)

    def refuse(self, before: dict[str, Any], who: str) -> None:
        """Refuse a change.

        Args:
            before: what :meth:`now` returned before.
            who: what may have changed something, as the beginning of a sentence.

        Raises:
            EngineError: if something has changed; it names the first.
        """
        now = self.now()
        # The pickler numbers what it has written, so a change also moves what follows: the first one counts.
        changed = [*(before.keys() - now.keys()), *(name for name in now if before.get(name) != now[name])]
        if changed:
            what = "draws random numbers from torch, NumPy or Python's random"
            if changed[0] != _RANDOM:
                what = f"changes '{changed[0]}' or what it refers to"
            raise EngineError(f"{who} of {type(self._module).__name__} {what}, which stacked clients would share. {REMEDY}")


class InPlace:
    """Notice a step that changes its parameters or its batch in place, of which each client has its own.

    Args:
        module: the clients' module.
        parameters: the parameters of the step.
        leaves: the tensors of its batch.
    """

    def __init__(self, module: LightningModule, parameters: Mapping[str, Tensor], leaves: Sequence[Tensor]) -> None:
        self._module = module
        self._tensors = [
            *((f"'{name}'", tensor) for name, tensor in parameters.items()),
            *(("its batch", one) for one in leaves),
        ]
        self._before = [times_changed(tensor) for _, tensor in self._tensors]

    def refuse(self) -> None:
        """Refuse a change.

        Raises:
            EngineError: if a tensor was changed; it names the first.
        """
        for (name, tensor), before in zip(self._tensors, self._before, strict=True):
            if times_changed(tensor) != before:
                raise EngineError(
                    f"The training_step of {type(self._module).__name__} changes {name} in place, which stacked clients do not "
                    f"support. Compute a new tensor, or set 'federation.local.engine' to 'fabric' or 'trainer'."
                )


class _Digest:
    """A file that keeps only a digest of what is written."""

    def __init__(self) -> None:
        self._hash, self._size = hashlib.blake2b(digest_size=16), 0

    def write(self, content: Any) -> None:
        self._size += len(content)
        if self._size > _LARGEST:
            raise ValueError(f"more than {_LARGEST} bytes")
        self._hash.update(content)

    def take(self) -> bytes:
        """Return the digest, and begin another one."""
        found = self._hash.digest()
        self._hash, self._size = hashlib.blake2b(digest_size=16), 0
        return found


class _Pickler(pickle.Pickler):
    """Write a value with everything that it refers to, but the module's own parts and what runs the training by identity."""

    def __init__(self, file: Any, own: Mapping[int, Any]) -> None:
        super().__init__(file, protocol=5)
        self._own = own

    def reducer_override(self, obj: Any) -> Any:
        if obj is list:  # stands for every object below, whose state follows
            return NotImplemented
        state = self._state_of(obj)
        if state is not None:
            return list, (), state
        try:
            found = obj.__reduce_ex__(4)
        except Exception:
            found = None
        return found if isinstance(found, tuple) else (list, (), (id(obj), getattr(obj, "__dict__", None)))

    def _state_of(self, obj: Any) -> Any:
        """Return what an object holds; None if the object itself says it when it is pickled."""
        if id(obj) in self._own:
            return id(obj), self._own[id(obj)]
        if isinstance(obj, FunctionType | type):
            return (id(obj), _around(obj) if is_users(obj) else None)
        if isinstance(obj, Tensor):
            return id(obj), times_changed(obj), _content(obj)
        if isinstance(obj, ModuleType | Trainer | LightningDataModule | Optimizer | LRScheduler):
            return (id(obj),)
        if isinstance(obj, nn.Module):
            return vars(obj)
        if isinstance(obj, torch.Generator):
            return obj.get_state().numpy().tobytes()
        if isinstance(obj, GeneratorType):
            return id(obj), obj.gi_frame and (obj.gi_frame.f_lasti, obj.gi_frame.f_locals)
        if isinstance(obj, MethodType | staticmethod | classmethod):
            return obj.__func__, getattr(obj, "__self__", None)
        return (obj.fget,) if isinstance(obj, property) else None


def _content(tensor: Tensor) -> Any:
    """Return a digest of a small tensor; None for one that a transform of torch has left behind."""
    try:
        return digest(tensor) if tensor.nbytes <= _LARGEST else None
    except Exception:
        return None


def _around(obj: Any) -> Any:
    """Return what a user's class or function holds: attributes, or closure, default arguments, and globals that it names."""
    held = dict(vars(obj))
    if isinstance(obj, type):
        return held
    named = [obj.__globals__[name] for name in obj.__code__.co_names if name in obj.__globals__]
    return held, obj.__defaults__, obj.__kwdefaults__, [_contents(cell) for cell in obj.__closure__ or ()], named


def _contents(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not set yet
        return None
