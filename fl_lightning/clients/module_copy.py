"""Copy the user's module for the clients, so that functions and weak references that refer to it refer to the copy.

``copy.deepcopy`` shares functions, so a closure over a module, such as a hook, would read the user's module while the clients
train a copy of it.
"""

from __future__ import annotations

import copy
import types
import weakref
from collections.abc import Iterable
from functools import partial
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.utilities.rank_zero import rank_zero_warn
from torch import Tensor, nn

from fl_lightning.compat.jsonargparse import is_parsed_factory
from fl_lightning.compat.lightning import forget_compiled, forget_metric_names, is_compiled
from fl_lightning.compat.python import copying
from fl_lightning.compat.torch import hooks_of, parameters_of
from fl_lightning.errors import ConfigurationError

_SHARED = bool | int | float | complex | str | bytes | None | type | types.ModuleType | types.FunctionType | types.MethodType


def _copied(generator: torch.Generator) -> torch.Generator:
    own = torch.Generator(generator.device)
    own.set_state(generator.get_state())
    return own


def _with_uncopied(module: LightningModule, known: dict[int, Any]) -> dict[int, Any]:
    """Return the objects that copies share: the known ones, and attributes that cannot be copied, which a warning names."""
    memo = dict(known)
    for prefix, part in module.named_modules():
        for name, value in vars(part).items():
            if name.startswith("_") or isinstance(value, nn.Module | Tensor) or id(value) in memo:
                continue
            try:
                copy.deepcopy(value, dict(memo))
            except Exception as error:
                memo[id(value)] = value
                path = f"{prefix}.{name}".lstrip(".")
                rank_zero_warn(
                    f"'{path}' of {type(module).__name__} cannot be copied for the clients ({error}), so all "
                    "clients share it. Create it in 'on_train_start' if it must not be shared."
                )
    return memo


def client_copy(module: LightningModule) -> LightningModule:
    """Return a copy of the user's module for the clients.

    Raises:
        ConfigurationError: if the module cannot be copied.
    """
    # The command line builds optimizers as partials that hold the parser's state: share them instead of copying them.
    shared = {id(value): value for value in vars(module).values() if is_parsed_factory(value)}
    held = [value for part in module.modules() for value in vars(part).values()]
    shared |= {id(value): _copied(value) for value in held if isinstance(value, torch.Generator)}
    # Outputs that a module keeps, which have a history in autograd, cannot be copied with it.
    shared |= {id(value): value.detach().clone() for value in held if isinstance(value, Tensor) and value.grad_fn is not None}
    try:
        try:
            client = _rebound(module, shared)
        except Exception:
            client = _rebound(module, _with_uncopied(module, shared))
    except Exception as error:
        raise ConfigurationError(
            f"Cannot copy {type(module).__name__} for the clients (copy.deepcopy: {error}). Do not store locks, open files or "
            "generators in its attributes, or create them in 'on_train_start'."
        ) from error
    spoilt = next((name for name, parameter in client.named_parameters() if not parameter.is_leaf), None)
    if spoilt is not None:
        raise ConfigurationError(
            f"Cannot copy '{spoilt}' of {type(module).__name__} for the clients, because its copy is not a leaf of autograd, "
            "as in parts that torch.jit.script has made. Train the original part, and script the trained module."
        )
    if is_compiled(client):  # the compiled call on the instance still runs the original
        forget_compiled(client)
    forget_metric_names(client)
    vars(client)["configure_callbacks"] = list  # the module's callbacks belong to the federation, not to each client
    return client


def _rebound(module: LightningModule, shared: dict[int, Any]) -> LightningModule:
    """Return a deep copy of a module, with the gradient hooks and attributes of its parameters, which torch leaves out.

    Args:
        module: the module.
        shared: objects that the copy shares with the module, or their copies, by id.
    """
    references = _References(module)
    with copying(references.of_function, references.of_weak_reference):
        memo = dict(shared)
        result = copy.deepcopy(module, memo)
        theirs, mine = (parameters_of(one).values() for one in (module, result))
        for parameter, own in zip(theirs, mine, strict=True):
            for name, value in vars(parameter).items():
                vars(own).setdefault(name, copy.deepcopy(value, memo))
            if own.requires_grad:
                at: tuple[Any, Any] = (own.register_hook, own.register_post_accumulate_grad_hook)
                for register, hooks in zip(at, hooks_of(parameter), strict=True):
                    for hook in (hooks or {}).values():
                        register(copy.deepcopy(hook, memo))
    return result


class _References:
    """Find what refers to a module, its parts, tensors or the objects in its attributes."""

    def __init__(self, module: nn.Module) -> None:
        self._mine = {id(one) for one in (*module.modules(), *parameters_of(module).values(), *module.buffers())}
        for part in module.modules():
            self._mine |= {id(value) for value in vars(part).values() if not isinstance(value, _SHARED | Trainer)}

    def of_function(self, function: types.FunctionType, memo: dict[int, Any]) -> types.FunctionType:
        """Return the function itself, or a copy whose closure and defaults refer to the copy of the module."""
        if not self._refer(function, set()):
            return function
        cells = tuple(types.CellType() for _ in function.__closure__ or ())
        own = types.FunctionType(function.__code__, function.__globals__, function.__name__, None, cells)
        memo[id(function)] = own  # before the contents, which may refer to it
        for cell, filled in zip(cells, function.__closure__ or (), strict=True):
            for content in _contents(filled):
                cell.cell_contents = self._copied(content, memo)
        own.__defaults__ = function.__defaults__ and tuple(self._copied(value, memo) for value in function.__defaults__)
        named = function.__kwdefaults__
        own.__kwdefaults__ = named and {name: self._copied(value, memo) for name, value in named.items()}
        own.__qualname__, own.__doc__, own.__module__ = function.__qualname__, function.__doc__, function.__module__
        vars(own).update(vars(function))
        return own

    def of_weak_reference(self, reference: weakref.ref[Any], memo: dict[int, Any]) -> weakref.ref[Any]:
        """Return the reference itself, or one to the copy of what it refers to."""
        target = reference()
        return weakref.ref(copy.deepcopy(target, memo)) if id(target) in self._mine else reference

    def _copied(self, value: Any, memo: dict[int, Any]) -> Any:
        return copy.deepcopy(value, memo) if self._refer(value, set()) else value

    def _refer(self, value: Any, seen: set[int]) -> bool:
        if id(value) in self._mine:
            return True
        if id(value) in seen:
            return False
        seen.add(id(value))
        return any(self._refer(one, seen) for one in _inside(value))


def _contents(cell: types.CellType) -> list[Any]:
    try:
        return [cell.cell_contents]
    except ValueError:  # of a variable that has no value yet
        return []


def _inside(value: Any) -> Iterable[Any]:
    """Return the objects to which a function, method, partial, weak reference or container refers."""
    if isinstance(value, types.FunctionType):
        cells = [content for cell in value.__closure__ or () for content in _contents(cell)]
        return [*cells, *(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()]
    if isinstance(value, types.MethodType):
        return [value.__self__, value.__func__]
    if isinstance(value, partial):
        return [value.func, *value.args, *value.keywords.values()]
    if isinstance(value, weakref.ref):
        return [value()]
    if type(value) is dict:
        return list(value.values())
    return value if type(value) in (list, tuple, set) else ()
