"""Notice what a training step or a hook leaves behind in Python, which the stacked clients would share."""

from __future__ import annotations

import itertools
import pickle
import random
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torchmetrics import Metric, MetricCollection

from fl_lightning.clients.attribute_values import PLAIN
from fl_lightning.compat.torch import buffers_of, parameters_of, parts_of, times_changed
from fl_lightning.errors import EngineError, FederationError
from fl_lightning.functional.description import is_users, own_class
from fl_lightning.functional.seeding import GENERATORS

REMEDY = "Set 'federation.local.engine' to 'fabric' or 'trainer'."
_OF_TORCH = vars(nn.Module()).keys() - {"training"}
_OF_LIGHTNING = vars(LightningModule()).keys() - {"_hparams"} | {"_hparams_initial", "log", "configure_callbacks"}
_LARGEST = 2**20
"""The bytes up to which an array is read; what is larger is data rather than state."""
_RANDOM = "random numbers"


class Traces:
    """Compare what a module holds before and after a part of the training.

    This covers the attributes of the module and its parts, those of its classes, and the data in them: numbers, texts, tensors,
    arrays, containers, generators of random numbers, and objects of the user's classes. What a function holds is not covered,
    such as closures, globals and caches: of these, :func:`.attempt` sees what changes the loss at once.

    Args:
        module: the clients' module.
    """

    def __init__(self, module: LightningModule) -> None:
        self._module = module

    def now(self) -> dict[str, Any]:
        """Return what the module holds, by name, and the states of the global random numbers."""
        parts = parts_of(self._module)
        parameters = parameters_of(self._module, parts)
        buffers = [buffer for part in parts.values() for buffer in buffers_of(part).values()]
        picture = _Picture([*parts.values(), *parameters.values(), *buffers])
        found = {name: picture.of(value) for name, value in self._held(parts)}
        found |= {name: _versions(parameter) for name, parameter in parameters.items()}
        numpy: Any = np.random.get_state()
        found[_RANDOM] = random.getstate(), numpy[1].tobytes(), numpy[2], torch.get_rng_state().numpy().tobytes()
        return found

    def _held(self, parts: Mapping[str, nn.Module]) -> Iterator[tuple[str, Any]]:
        classes: dict[type, None] = {}
        for prefix, part in parts.items():
            if isinstance(part, Metric | MetricCollection):
                continue
            ours = own_class(type(part)) is type(part)  # this package's parts keep caches alone behind underscores
            hidden = _OF_LIGHTNING | _OF_TORCH if isinstance(part, LightningModule) else _OF_TORCH
            for name, value in vars(part).items():
                if name == "training" or not (name in hidden or (ours and name.startswith("_"))):
                    yield f"{prefix}.{name}".lstrip("."), value
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
        changed = [name for name in {**before, **now} if before.get(name) != now.get(name)]
        if changed:
            what = "draws random numbers from torch, NumPy or Python's random"
            if changed[0] != _RANDOM:
                what = f"changes '{changed[0]}' or what it refers to"
            raise EngineError(f"{who} of {type(self._module).__name__} {what}, which stacked clients would share. {REMEDY}")


class _Picture:
    """Describe data by values that can be compared; what is not data, or described elsewhere, counts as unchanged.

    Args:
        known: the module's own parts and tensors, which are described elsewhere.
    """

    def __init__(self, known: Sequence[Any]) -> None:
        self._known = {id(one) for one in known}
        self._seen: set[int] = set()

    def of(self, value: Any) -> Any:
        """Return a description of a value and everything that it refers to."""
        if isinstance(value, PLAIN):
            return repr(value)
        if id(value) in self._known:
            return id(value)
        if id(value) in self._seen:
            return None
        self._seen.add(id(value))
        inside = _inside(value)
        return inside if inside is None or isinstance(inside, bytes | str) else [self.of(one) for one in inside]


def _inside(value: Any) -> Any:
    """Return the content of a value as bytes or text, or the values that it consists of; None if it is not data."""
    if isinstance(value, Tensor):
        return _versions(value)
    if isinstance(value, np.ndarray):
        return value.tobytes() if value.nbytes <= _LARGEST and not value.dtype.hasobject else None
    if isinstance(value, torch.Generator):
        return value.get_state().numpy().tobytes()
    if isinstance(value, GENERATORS):
        return pickle.dumps(value)
    if isinstance(value, itertools.count):
        return repr(value)
    if isinstance(value, dict):
        return [*value.keys(), *value.values(), *_attributes(value)]
    if isinstance(value, list | tuple | deque | set | frozenset):
        return [*value, *_attributes(value)]
    return _attributes(value) if isinstance(value, nn.Module) or is_users(type(value)) else None


def _attributes(value: Any) -> list[Any]:
    """Return the attributes of an object, and those of its class if it is the user's."""
    slots = [name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ())]
    own = [*getattr(value, "__dict__", {}).values(), *(getattr(value, name, None) for name in slots)]
    return own + ([*vars(type(value)).values()] if is_users(type(value)) else [])


def _versions(tensor: Tensor) -> str:
    return f"{id(tensor)} {times_changed(tensor)} {tensor.requires_grad}"


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
