"""Check decoded messages against their declared types, and their tensors against the model here."""

from __future__ import annotations

import functools
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import is_dataclass
from typing import Any

import torch
from torch import Tensor

from fl_lightning.compat.torch import parameters_of
from fl_lightning.errors import WireError
from fl_lightning.functional.model_state import ModelState
from fl_lightning.messages import ClientTask, EvalOrder, Note, ServerModel

LARGEST_INT = 2**63
"""The limit of whole numbers in messages; JSON allows any number of digits, which neither a float nor an int64 holds."""
_hints: Callable[[Any], dict[str, Any]] = functools.cache(typing.get_type_hints)


def conforms(value: Any, hint: Any) -> bool:
    """Return whether a decoded value has a declared type: messages, tensors, mappings, tuples and plain values."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is object or hint is Any:
        return True
    if origin in (typing.Union, types.UnionType):
        return any(conforms(value, one) for one in arguments)
    if origin is typing.Literal:
        return any(value is one or (isinstance(value, str) and value == one) for one in arguments)
    if origin is tuple:
        if not isinstance(value, tuple):
            return False
        if arguments[-1] is Ellipsis:
            return all(conforms(item, arguments[0]) for item in value)
        return len(value) == len(arguments) and all(map(conforms, value, arguments))
    if origin is not None and isinstance(origin, type) and issubclass(origin, Mapping):
        return isinstance(value, Mapping) and all(conforms(item, arguments[1]) for item in value.values())
    if is_dataclass(hint) and isinstance(hint, type):
        return type(value) is hint and all(conforms(getattr(value, name), kind) for name, kind in _hints(hint).items())
    if hint in (int, float) and type(value) is int:
        return -LARGEST_INT < value < LARGEST_INT
    if hint is float:
        return isinstance(value, float)
    if hint in (int, bool, str, type(None)):
        return type(value) is hint
    return isinstance(hint, type) and isinstance(value, hint)


def require_message(value: Any, *kinds: type) -> None:
    """Refuse a value that is not a message of one of these kinds, with fields of their declared types.

    Raises:
        WireError: naming the kind.
    """
    if type(value) not in kinds:
        raise WireError(f"A {type(value).__name__} was received instead of a {' or '.join(kind.__name__ for kind in kinds)}.")
    for name, hint in _hints(type(value)).items():
        if not conforms(getattr(value, name), hint):
            raise WireError(f"The field '{name}' of {type(value).__name__} has the wrong type.")


def listed(asked: Mapping[str, Any], name: str) -> tuple[Any, ...]:
    """Return the messages of a request under a name.

    Raises:
        WireError: if there are none.
    """
    found = asked.get(name)
    if not isinstance(found, tuple):
        raise WireError(f"The request does not have {name}.")
    return found


def unlike(mine: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> str:
    """Return in words the first of named tensors that differs in its presence, shape or type; empty if none does."""
    here, there = ({name: f"{t.dtype} of shape {tuple(t.shape)}" for name, t in one.items()} for one in (mine, other))
    name = min((name for name, _ in here.items() ^ there.items()), default=None)
    return "" if name is None else f"'{name[:100]}' is {there.get(name, 'missing')} instead of {here.get(name, 'missing')}"


def require_model(model: ServerModel, module: torch.nn.Module) -> None:
    """Refuse a global model whose tensors differ from the module's in names, shapes or types.

    Raises:
        WireError: naming the tensor.
    """
    state = ModelState(module)
    state.set_apart(held=model.layout.held)
    said = unlike(state.tensors(), model.tensors) or unlike(state.held_tensors(), model.first)
    if said:
        raise WireError(f"The server's model does not fit the model here: {said}.")
    if len(model.layout.trained) != len(parameters_of(module)):
        raise WireError("The layout of the server's model does not fit the model here.")
    unknown = set(model.layout.modes) - {name for name, _ in module.named_modules()}
    if unknown:
        raise WireError(f"The layout names a part '{min(unknown)[:100]}' that the model here does not have.")


def require_order(order: ClientTask | EvalOrder | Note, view: ModelState, broadcast: Mapping[str, Tensor], client: int) -> None:
    """Refuse an order for another client, or with tensors that do not fit the model.

    Args:
        order: the order.
        view: the view of the module here.
        broadcast: the tensors of the strategy that came with the global model.
        client: the number of this site.

    Raises:
        WireError: saying what does not fit.
    """
    tasks = (order,) if isinstance(order, ClientTask) else order.tasks if isinstance(order, EvalOrder) else ()
    asked = {order.client, *(task.client for task in tasks)}
    if asked != {client}:
        raise WireError(f"The order is for the clients {sorted(asked)}, but this site is client {client}.")
    for task in tasks:
        turn = 0 if task.progress is None else task.progress.turn
        least = min(task.round_idx, task.period, turn, 0 if task.epochs is None else task.epochs)
        if least < 0 or turn >= 10**9 or not 1 <= task.slowness < 1e9:
            raise WireError("The order has a round, period, epochs, a slowness or a place in the training outside its range.")
        if task.pull is not None:
            _require_vector(task.pull.anchor, view.num_parameters, "anchor")
    start = order.start if isinstance(order, ClientTask) else order.model if isinstance(order, EvalOrder) else None
    if start is not None:
        _require_vector(start.vector, view.size, "model")
        if start.counters.dtype != torch.int64 or start.counters.shape != view.counters().shape:
            raise WireError(f"The counters of the model are {start.counters.dtype} of shape {tuple(start.counters.shape)}.")
    for name, tensor in broadcast.items():
        _require_vector(tensor, view.num_parameters, name)


def _require_vector(vector: Tensor, size: int, name: str) -> None:
    if vector.shape != (size,) or not vector.is_floating_point():
        raise WireError(f"'{name}' is {vector.dtype} of shape {tuple(vector.shape)}, not {size} floating-point numbers.")
