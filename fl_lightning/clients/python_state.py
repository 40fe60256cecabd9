"""Keep the Python state of the clients' module from leaking from client to client.

A module may count batches, collect outputs or draw from a generator of its own. Clients share one module per process, so before
each turn its attributes get the values that they had at the start of the fit. Then numbers and texts continue for each client,
as in one long training, and so does everything that the module names in ``client_state``.
"""

from __future__ import annotations

import copy
import operator
from collections import OrderedDict, defaultdict, deque
from collections.abc import Container, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.utilities.model_helpers import is_overridden
from lightning.pytorch.utilities.rank_zero import rank_zero_warn
from torch import Tensor, nn
from torchmetrics import Metric

from fl_lightning.clients.hook_registers import HookRegisters
from fl_lightning.compat.torch import children_of, parameters_of, parts_of
from fl_lightning.errors import ConfigurationError
from fl_lightning.functional.model_parts import client_state
from fl_lightning.functional.seeding import GENERATORS, derive_seed, reseed

_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_CONTAINERS = (list, dict, tuple, set, frozenset, deque, defaultdict, OrderedDict)
_HOLDERS = (Tensor, *_CONTAINERS)
_INTERNAL = vars(LightningModule()).keys() | {"trainer", "log", "configure_callbacks", "stacked_hooks"}
_OF_THE_LAYOUT = {"track_running_stats"}
"""What the server's model switches on and off at the clients, so that no turn may restore it."""
_NOT_THE_USERS = _INTERNAL | _OF_THE_LAYOUT
_ABSENT = object()


class PythonState:
    """Save the attributes of a module, and restore them before each turn of a client.

    Args:
        module: the clients' module, at the start of the fit.
    """

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._beginning: dict[tuple[str, str], Any] = {}
        self._constants: dict[str, dict[str, Any]] = {}  # of each part: what is unchanged while it is the same object
        self._quiet: dict[str, tuple[tuple[str, ...], tuple[Any, ...]]] = {}  # of each part: names and values
        self._warned: set[tuple[str, str]] = set()
        self._hooks: HookRegisters | None = None  # before the first turn
        builds = isinstance(module, LightningModule) and any(is_overridden(n, module) for n in ("setup", "configure_model"))
        self._children = [] if builds else [(part, dict(children_of(part))) for part in module.modules()]
        for key, value in self._attributes(self._parts()):
            if isinstance(value, _PLAIN):
                self._beginning[key] = value
            elif _is_copied(value):
                self._beginning[key] = copy.deepcopy(value)
            if _is_constant(value):
                self._constants.setdefault(key[0], {})[key[1]] = value

    def _parts(self) -> dict[str, Any]:
        return _parts_of(self._module)

    def _attributes(self, parts: Mapping[str, Any]) -> Iterator[tuple[tuple[str, str], Any]]:
        """Yield the user's attributes of the module and its parts: not parameters, buffers, parts and metrics.

        Lists of them are left out as well, such as ``_flat_weights`` of an LSTM, with which it computes; and, to save time,
        constants that are still the objects of the start.
        """
        own: set[int] | None = None
        for prefix, part in parts.items():
            attributes = _attributes_of(part)
            if self._is_quiet(prefix, attributes) or isinstance(part, Metric):
                continue
            constants, quiet = self._constants.get(prefix, {}), not isinstance(part, LightningModule)  # it holds its Trainer
            for name, value in list(attributes.items()):
                # Lightning creates '_hparams' when they are read for the first time.
                if constants.get(name, _ABSENT) is value or name in _NOT_THE_USERS or name.startswith("_hparams"):
                    continue
                quiet = False
                if isinstance(value, _HOLDERS):
                    if own is None:
                        found = parameters_of(self._module).values()
                        own = {id(tensor) for tensor in (*found, *self._module.buffers())}
                    if _holds(value, own):
                        continue
                yield (prefix, name), value
            if quiet:
                self._quiet[prefix] = (tuple(attributes), tuple(attributes.values()))

    def _is_quiet(self, prefix: str, attributes: Mapping[str, Any]) -> bool:
        """Return whether all attributes of a part are the objects that were looked through before, without a find.

        Most layers are like that in every turn, and this comparison does not run any Python code for each attribute.
        """
        names, values = self._quiet.get(prefix, ((), ()))
        return tuple(attributes) == names and all(map(operator.is_, attributes.values(), values))

    def begin(self, seed: int, kept: Mapping[str, Any]) -> None:
        """Restore the attributes, continue those that the client keeps, and seed generators.

        Args:
            seed: the seed of the client's turn.
            kept: what :meth:`end` returned after the client's last turn.
        """
        self._hooks = self._hooks or HookRegisters(self._module)
        self._hooks.restore()
        parts, generators = self._restored()
        for (prefix, name), generator in generators.items():
            reseed(generator, derive_seed(seed, f"{prefix}.{name}"))
        for path, value in kept.items():
            prefix, _, name = path.rpartition(".")
            if prefix in parts and name not in _buffers_of(parts[prefix]):
                setattr(parts[prefix], name, copy.deepcopy(value))

    def _replaced(self) -> list[tuple[nn.Module, str, nn.Module]]:
        """Return the layers of the start that others have replaced: the part that had each, its name there, and the layer."""
        return [
            (part, name, child)
            for part, children in self._children
            if children_of(part) != children
            for name, child in children.items()
            if child is not None and children_of(part).get(name) is not child
        ]

    def restore(self) -> None:
        """Give the attributes their values of the start of the fit, as before an evaluation."""
        self._restored()

    def _restored(self) -> tuple[dict[str, Any], dict[tuple[str, str], Any]]:
        """Restore the attributes, and return the module's parts and its generators, which are not copied."""
        for owner, name, child in self._replaced():
            setattr(owner, name, child)
        parts, generators = self._parts(), dict[tuple[str, str], Any]()
        for (prefix, name), value in self._attributes(parts):
            if isinstance(value, GENERATORS):
                generators[prefix, name] = value
            elif (prefix, name) not in self._beginning and (isinstance(value, _PLAIN) or _is_copied(value)):
                del _attributes_of(parts[prefix])[name]  # it did not exist at the start
        self._set_beginning(parts)
        return parts, generators

    def _set_beginning(self, parts: Mapping[str, Any]) -> None:
        for (prefix, name), value in self._beginning.items():
            part = parts.get(prefix)
            if part is not None and not _equal(_attributes_of(part).get(name, _ABSENT), value):
                setattr(part, name, value if isinstance(value, _PLAIN) else copy.deepcopy(value))

    def give(self, module: nn.Module) -> None:
        """Give the attributes of a copy of the module the values that these had at first, before a checkpoint was loaded."""
        self._set_beginning(_parts_of(module))

    def _is_renewed(self, key: tuple[str, str], value: Any) -> bool:
        """Return whether the next turn does not find an attribute as this one leaves it, although it is not shared."""
        return _is_copied(value) or key in self._beginning

    def load_buffers(self, kept: Mapping[str, Any]) -> None:
        """Load the client's own buffers, after the global model has been loaded."""
        parts = self._parts() if kept else {}
        for path, value in kept.items():
            prefix, _, name = path.rpartition(".")
            buffer = _buffers_of(parts[prefix]).get(name) if prefix in parts else None
            if buffer is not None:
                with torch.no_grad():
                    buffer.copy_(value)

    def end(self, ignored: Container[str] = ()) -> dict[str, Any]:
        """Return what the client keeps: numbers and texts that differ from the start, and the module's ``client_state``.

        Args:
            ignored: attributes that are not the user's.

        Raises:
            ConfigurationError: if the module wants to keep something other than tensors and plain values.
        """
        kept: dict[str, Any] = {}
        renewed: list[str] = []
        parts = self._parts()
        own = {(prefix, name) for prefix, part in parts.items() for name in client_state(part)}
        for key, value in self._attributes(parts):
            changed = not _equal(value, self._beginning.get(key, _ABSENT))
            if key in own or not changed or key[1] in ignored:
                continue
            if isinstance(value, _PLAIN):
                kept[".".join(key)] = value
            elif key not in self._warned and self._is_renewed(key, value) and not _is_computed(parts[key[0]], key[1]):
                self._warned.add(key)
                renewed.append(".".join(key).lstrip("."))
        prefixes = {id(part): prefix for prefix, part in parts.items()}
        for part, name, _ in self._replaced():
            key = prefixes.get(id(part), ""), name
            if key not in self._warned:
                self._warned.add(key)
                renewed.append(".".join(key).lstrip("."))
        for prefix, name in own:
            value = getattr(parts[prefix], name)
            _require_storable(name, value)
            kept[f"{prefix}.{name}"] = value.detach().clone().cpu() if isinstance(value, Tensor) else copy.deepcopy(value)
        if renewed:
            rank_zero_warn(
                f"Training changed {', '.join(repr(name) for name in renewed)} of {type(self._module).__name__}, which every "
                "client's turn finds as it was at the start of the fit. To let each client keep it, name it in a class "
                f"attribute of the module: client_state = ({renewed[0].rpartition('.')[2]!r},)."
            )
        return kept


def _parts_of(module: nn.Module) -> dict[str, Any]:
    """Return a module and its parts by name, and the hyperparameters of Lightning modules, which are dictionaries."""
    parts: dict[str, Any] = dict(parts_of(module))
    for prefix, part in list(parts.items()):
        if isinstance(part, LightningModule) and "_hparams" in vars(part):
            parts[f"{prefix}.hparams".lstrip(".")] = part.hparams
    return parts


def _attributes_of(part: Any) -> dict[str, Any]:
    return part if isinstance(part, dict) else vars(part)


def _buffers_of(part: Any) -> dict[str, Tensor]:
    return dict(part.named_buffers(recurse=False)) if isinstance(part, nn.Module) else {}


def _is_computed(part: Any, name: str) -> bool:
    """Return whether a layer computes a tensor from its parameters before each use, as torch's older weight norm does."""
    return isinstance(part, nn.Module) and any(hasattr(part, f"{name}_{end}") for end in ("orig", "g"))


def _is_copied(value: Any) -> bool:
    if isinstance(value, Tensor | np.ndarray):
        return True
    if not isinstance(value, _CONTAINERS):
        return False
    items = [*value.keys(), *value.values()] if isinstance(value, dict) else value
    return all(isinstance(item, _PLAIN) or _is_copied(item) for item in items)


def _is_constant(value: Any) -> bool:
    return isinstance(value, _PLAIN) or (type(value) is tuple and all(map(_is_constant, value)))


def _holds(value: Any, tensors: set[int]) -> bool:
    """Return whether a value is one of some tensors, or a container of one."""
    if isinstance(value, Tensor):
        return id(value) in tensors
    items = value.values() if isinstance(value, dict) else value
    return isinstance(value, _CONTAINERS) and any(_holds(item, tensors) for item in items)


def _equal(one: Any, other: Any) -> bool:
    """Return whether two values are equal in type and content; NaN equals NaN."""
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if isinstance(one, Tensor):
        same = one.shape == other.shape and one.dtype == other.dtype and one.device == other.device
        return bool(same and ((one == other) | ((one != one) & (other != other))).all())
    if isinstance(one, np.ndarray):
        return bool(one.shape == other.shape and one.dtype == other.dtype and one.tobytes() == other.tobytes())
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_equal(value, other[key]) for key, value in one.items())
    if isinstance(one, list | tuple | deque):
        return len(one) == len(other) and all(map(_equal, one, other))
    return bool(one == other) or bool(one != one and other != other)


def _require_storable(name: str, value: Any) -> None:
    if isinstance(value, dict | list | tuple | set) and type(value) in (dict, OrderedDict, list, tuple, set):
        for item in [*value.keys(), *value.values()] if isinstance(value, dict) else value:
            _require_storable(name, item)
    elif not isinstance(value, Tensor | bool | int | float | complex | str | bytes | None):
        raise ConfigurationError(
            f"'client_state' names '{name}', which holds a {type(value).__name__}, but clients keep only tensors, numbers, "
            "texts, and lists, tuples, sets and dictionaries of them. Store it as one of these."
        )
