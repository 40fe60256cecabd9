"""Keep the Python state of the clients' module from leaking from client to client.

A module may count batches, collect outputs or draw from a generator of its own. Clients share one module per process, so before
each turn its attributes get the values that they had at the start of the fit. Then numbers and texts continue for each client,
as in one long training, and so does everything that the module names in ``client_state``. What it names in ``turn_state`` is
restored without a warning.
"""

from __future__ import annotations

import copy
import operator
import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.utilities.model_helpers import is_overridden
from lightning.pytorch.utilities.rank_zero import rank_zero_warn
from torch import Tensor, nn
from torchmetrics import Metric, MetricCollection

from fl_lightning.clients import attribute_values as values
from fl_lightning.clients.attribute_values import PLAIN, copied, equal, is_copied
from fl_lightning.compat.torch import Hooks, children_of, hooks_of, parameters_of, parts_of, times_changed
from fl_lightning.errors import ConfigurationError
from fl_lightning.functional.model_parts import declared_names, is_computed
from fl_lightning.functional.seeding import derive_seed, reseed
from fl_lightning.messages import ModelLayout

_INTERNAL = vars(LightningModule()).keys() | {"trainer", "log", "configure_callbacks", "stacked_hooks"}
_OF_THE_LAYOUT = {"track_running_stats", "_is_measured"}
"""What the server's model switches on and off at the clients, so that no turn may restore it; the second is Standardized's."""
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
        self._quiet: dict[str, tuple[tuple[str, ...], tuple[Any, ...]]] = {}  # of each part: names and values
        self._warned: set[tuple[str, str]] = set()
        self._hooks: list[tuple[weakref.ref[Any], list[Hooks]]] | None = None  # before the first turn
        self._shared: dict[str, dict[str, Any]] | None = None  # in the first turn
        builds = isinstance(module, LightningModule) and any(is_overridden(n, module) for n in ("setup", "configure_model"))
        self._children = [] if builds else [(part, dict(children_of(part))) for part in module.modules()]
        self._begun_with = set(parts_of(module))
        for key, value in self._attributes(_parts_of(module)):
            if isinstance(value, PLAIN):
                self._beginning[key] = value
            elif is_copied(value):
                self._beginning[key] = copied(value)

    def _attributes(self, parts: Mapping[str, Any]) -> Iterator[tuple[tuple[str, str], Any]]:
        """Yield the user's attributes of the module and its parts: not parameters, buffers, parts and metrics.

        Lists of them are left out as well, such as ``_flat_weights`` of an LSTM, with which it computes, tensors that a layer
        computes before each use, and, to save time, constants that are still the objects of the start.
        """
        own: set[int] | None = None
        for prefix, part in parts.items():
            attributes = part if isinstance(part, dict) else vars(part)
            names, known = self._quiet.get(prefix, ((), ()))
            # Most layers are as they were in every turn, and this comparison runs no Python code for each attribute.
            unchanged = tuple(attributes) == names and all(map(operator.is_, attributes.values(), known))
            if unchanged or isinstance(part, Metric):
                continue
            quiet = not isinstance(part, LightningModule)  # it holds its Trainer
            for name, value in list(attributes.items()):
                # Lightning creates '_hparams' when they are read for the first time.
                if (
                    self._beginning.get((prefix, name), _ABSENT) is value
                    or name in _NOT_THE_USERS
                    or name.startswith("_hparams")
                ):
                    continue
                quiet = False
                if isinstance(value, values.HOLDERS):
                    if own is None:
                        found = parameters_of(self._module).values()
                        own = {id(tensor) for tensor in (*found, *self._module.buffers())}
                    if values.holds(value, own) or (isinstance(value, Tensor) and is_computed(part, name)):
                        continue
                yield (prefix, name), value
            if quiet:
                self._quiet[prefix] = (tuple(attributes), tuple(attributes.values()))

    def begin(self, seed: int, kept: Mapping[str, Any]) -> None:
        """Restore the attributes, continue those that the client keeps, and seed generators.

        Args:
            seed: the seed of the client's turn.
            kept: what :meth:`end` returned after the client's last turn.
        """
        self._restore_hooks()
        parts, generators = self.restore()
        for path, generator in generators.items():
            reseed(generator, derive_seed(seed, path))
        for path, value in kept.items():
            prefix, _, name = path.rpartition(".")
            if prefix in parts and name not in _buffers_of(parts[prefix]):
                found, before = copy.deepcopy(value), getattr(parts[prefix], name, None)
                if isinstance(found, Tensor) and isinstance(before, Tensor):  # as the one before it
                    found = found.to(before.device).requires_grad_(before.requires_grad)
                setattr(parts[prefix], name, found)
        self._shared = values.shared_values(self._module) if self._shared is None else {}

    def _restore_hooks(self) -> None:
        """Remove the hooks that turns have registered, and register those again that they have removed."""
        if self._hooks is None:
            owners: list[nn.Module | nn.Parameter] = [*parts_of(self._module).values(), *parameters_of(self._module).values()]
            self._hooks = [(weakref.ref(owner), [dict(register or {}) for register in hooks_of(owner)]) for owner in owners]
        for reference, registers in self._hooks:
            owner = reference()  # None where the module builds its layers again in each turn
            for now, before in zip(hooks_of(owner), registers, strict=True) if owner is not None else ():
                if now is not None and now.keys() != before.keys():
                    now.clear()
                    now.update(before)

    def tensors(self) -> set[int]:
        """Return the ids of the tensors in attributes."""
        return {id(tensor) for _, value in self._attributes(_parts_of(self._module)) for tensor in values.tensors_in(value)}

    def _changed_layers(self) -> list[tuple[nn.Module, str, nn.Module | None]]:
        """Return the layers that training has replaced or created: the part that has each, its name, and the former one."""
        return [
            (part, name, before.get(name))
            for part, before in self._children
            if (now := children_of(part)) != before
            for name in {**before, **now}
            if before.get(name, _ABSENT) is not None and now.get(name) is not before.get(name)
        ]

    def restore(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Give the attributes their values of the start of the fit, as before a turn or an evaluation.

        Returns:
            The module's parts, and its generators of random numbers, which are not copied.
        """
        for owner, name, former in self._changed_layers():
            if former is not None:
                setattr(owner, name, former)
            else:
                delattr(owner, name)  # training created it
        parts, generators = _parts_of(self._module), dict[str, Any]()
        for (prefix, name), value in self._attributes(parts):
            if (prefix, name) in self._beginning:
                continue
            part = parts[prefix]
            if not (isinstance(value, PLAIN) or is_copied(value)):
                generators.update(values.generators_in(value, f"{prefix}.{name}"))
            elif prefix in self._begun_with or not isinstance(part, nn.Module):
                del (part if isinstance(part, dict) else vars(part))[name]  # it did not exist at the start
        self._set_beginning(parts)
        return parts, generators

    def _set_beginning(self, parts: Mapping[str, Any]) -> None:
        attributes = {prefix: part if isinstance(part, dict) else vars(part) for prefix, part in parts.items()}
        for (prefix, name), value in self._beginning.items():
            now = attributes[prefix].get(name, _ABSENT) if prefix in parts else value
            if now is not value and not equal(now, value):
                setattr(parts[prefix], name, value if isinstance(value, PLAIN) else copied(value))

    def give(self, module: nn.Module) -> None:
        """Give the attributes of a copy of the module the values that these had at first, before a checkpoint was loaded."""
        self._set_beginning(_parts_of(module))

    def load_buffers(self, kept: Mapping[str, Any]) -> None:
        """Load the client's own buffers, after the global model has been loaded."""
        parts = _parts_of(self._module) if kept else {}
        for path, value in kept.items():
            prefix, _, name = path.rpartition(".")
            buffer = _buffers_of(parts[prefix]).get(name) if prefix in parts else None
            if buffer is not None and buffer.shape != value.shape:
                setattr(parts[prefix], name, value.to(buffer.device))
            elif buffer is not None:
                with torch.no_grad():
                    buffer.copy_(value)

    def end(self) -> dict[str, Any]:
        """Return what the client keeps: numbers and texts that differ from the start, and the module's ``client_state``.

        Raises:
            ConfigurationError: if an attribute to keep is missing, or is neither a tensor nor a plain value.
        """
        parts = _parts_of(self._module)
        own, turn = (
            {(prefix, name) for prefix, names in declared_names(parts, attribute).items() for name in names}
            for attribute in ("client_state", "turn_state")
        )
        changed = [
            (key, value)
            for key, value in self._attributes(parts)
            if key not in own
            and key not in turn
            and not isinstance(parts[key[0]], MetricCollection)  # it groups its metrics in its first update
            and not equal(value, self._beginning.get(key, _ABSENT))
        ]
        continued = {key: plain for key, value in changed if type(plain := values.builtin(value)) in values.BUILTIN}
        kept = {".".join(key): value for key, value in continued.items()}
        kept |= {f"{prefix}.{name}": _state_of(parts[prefix], name) for prefix, name in own}
        if self._shared:
            values.warn_of_changes(self._module, self._shared)
        # Nearly all whole numbers are counts, and the server does not read what layers have that training creates.
        self._warn(
            [key for key, value in continued.items() if type(value) is not int and key in self._beginning],
            ". Each client keeps its own value, and the server evaluates with that of the start. If validation reads it and "
            "the federation should average it, make it a buffer: self.register_buffer({0!r}, torch.tensor(0.0)). If it is "
            "right as it is, name it in a class attribute of the module: client_state = ({0!r},).",
        )
        prefixes = {id(part): prefix for prefix, part in parts.items()}
        replaced = [(prefixes.get(id(part), ""), name) for part, name, former in self._changed_layers() if former is not None]
        renewed = [
            key
            for key, value in changed
            if key not in continued and (isinstance(value, PLAIN) or is_copied(value) or key in self._beginning)
        ]
        self._warn(
            [*renewed, *replaced],
            ", which every client's turn finds as it was at the start of the fit. To let each client keep it, name it in a "
            "class attribute of the module: client_state = ({0!r},). If every turn sets it again, for example in "
            "'on_train_start', write turn_state = ({0!r},).",
        )
        return kept

    def _warn(self, keys: Sequence[tuple[str, str]], advice: str) -> None:
        """Warn once of attributes that training has changed."""
        names = [".".join(key).lstrip(".") for key in keys if key not in self._warned]
        self._warned.update(keys)
        if names:
            changed = f"Training changed {', '.join(map(repr, names))} of {type(self._module).__name__}"
            rank_zero_warn(changed + advice.format(names[0].rpartition(".")[2]))


def _state_of(part: Any, name: str) -> Any:
    """Return a copy of what a part names in ``client_state``, its tensors on the CPU and without a history."""
    if not hasattr(part, name):
        raise ConfigurationError(
            f"'client_state' of {type(part).__name__} names '{name}', but after a client's training the part has no attribute "
            "or buffer of this name. Correct the name, or create it in '__init__'."
        )
    value = values.builtin(getattr(part, name))
    for item in values.not_storable(value):
        raise ConfigurationError(
            f"'client_state' names '{name}', which holds a {type(item).__name__}, but clients keep only tensors, numbers, "
            "texts, and lists, tuples, sets and dictionaries of them. Store it as one of these."
        )
    return value.detach().clone().cpu() if isinstance(value, Tensor) else copied(value)


def _parts_of(module: nn.Module) -> dict[str, Any]:
    """Return a module and its parts by name, and the hyperparameters of Lightning modules, which are dictionaries."""
    parts: dict[str, Any] = dict(parts_of(module))
    for prefix, part in list(parts.items()):
        if isinstance(part, LightningModule) and "_hparams" in vars(part):
            parts[f"{prefix}.hparams".lstrip(".")] = part.hparams
    return parts


def _buffers_of(part: Any) -> dict[str, Tensor]:
    return dict(part.named_buffers(recurse=False)) if isinstance(part, nn.Module) else {}


def switches_of(module: nn.Module, layout: ModelLayout) -> dict[str, bool]:
    """Return what differs from a layout: which parameters are trained, by name, and which parts are, by ``<part>:mode``."""
    parts = parts_of(module)
    flags = zip(parameters_of(module, parts).items(), layout.trained, strict=True)
    frozen = {name: p.requires_grad for (name, p), trained in flags if p.requires_grad is not trained}
    modes = {f"{n}:mode": p.training for n, p in parts.items() if p.training is not layout.modes.get(n, (p.training, None))[0]}
    return frozen | modes


def set_switches(module: nn.Module, switches: Mapping[str, bool]) -> None:
    """Set what :func:`switches_of` returned."""
    if not switches:
        return
    parts = parts_of(module)
    for name, parameter in parameters_of(module, parts).items():
        parameter.requires_grad_(switches.get(name, parameter.requires_grad))
    for name, part in parts.items():
        part.training = switches.get(f"{name}:mode", part.training)


def foreign_tensors(module: nn.Module, optimizers: Sequence[Any], python: PythonState) -> list[tuple[Tensor, float]]:
    """Return the tensors of optimizers that are neither the module's nor in its attributes, and how often each was changed."""
    tensors = [tensor for optimizer in optimizers for group in optimizer.param_groups for tensor in group["params"]]
    parameters = {id(parameter) for parameter in parameters_of(module).values()}
    others = [tensor for tensor in tensors if id(tensor) not in parameters]
    known = python.tensors() | {id(buffer) for buffer in module.buffers()} if others else set()
    return [(tensor, times_changed(tensor)) for tensor in others if id(tensor) not in known]


def refuse_trained(module: nn.Module, foreign: Sequence[tuple[Tensor, float]]) -> None:
    """Refuse a fit that has changed one of the :func:`foreign_tensors`.

    Raises:
        ConfigurationError: with its shape.
    """
    shapes = [tuple(tensor.shape) for tensor, before in foreign if times_changed(tensor) != before]
    if shapes:
        raise ConfigurationError(
            f"The optimizers of {type(module).__name__} train {len(shapes)} tensors that it does not contain, the "
            f"first of shape {shapes[0]}, so no client would send them. Register them: layers in 'nn.ModuleList' or "
            "'nn.ModuleDict' instead of a list or dictionary, tensors as 'nn.Parameter'."
        )
