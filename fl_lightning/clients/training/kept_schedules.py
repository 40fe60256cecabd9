"""Keep the state of a client's schedulers from turn to turn where it cannot be computed."""

from __future__ import annotations

import copy
from collections import Counter, OrderedDict
from collections.abc import Iterator, Sequence
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from fl_lightning.clients.isolation.attribute_values import is_kept, is_storable
from fl_lightning.clients.training.schedules import State, groups_of, states_of
from fl_lightning.errors import ConfigurationError

Functions = dict[tuple[Any, ...], Any]
"""The functions in the state of a scheduler, by the keys and indices that lead to them."""
_FUNCTIONS = (FunctionType, BuiltinFunctionType, MethodType)
_OWNERS = (type(None), type, ModuleType, LRScheduler, Optimizer, nn.Module)
"""Whose methods may be left out: what another object remembers would be lost with its method."""
_LISTS, _MAPPINGS = (list, tuple, set), (dict, OrderedDict, Counter)


def functions_of(configs: Sequence[Any]) -> list[Functions]:
    """Return the functions in the states of new schedulers, which each turn builds in the same way.

    Args:
        configs: Lightning's configurations of the schedulers.
    """
    return [dict(_functions(state)) for state in states_of(configs)]


def kept_state(optimizers: Sequence[Optimizer], configs: Sequence[Any], functions: Sequence[Functions]) -> State:
    """Return a copy of the schedulers' states, without functions, and of the settings that they change.

    Args:
        optimizers: the client's optimizers.
        configs: Lightning's configurations of its schedulers.
        functions: what :func:`functions_of` returned at the beginning of the turn.

    Raises:
        ConfigurationError: if a scheduler has replaced a function, or keeps anything else that cannot be stored.
    """
    states = []
    for state, config, begun in zip(states_of(configs), configs, functions, strict=True):
        name, now = type(config.scheduler).__name__, dict(_functions(state))
        changed = next((place for place in {**begun, **now} if begun.get(place) != now.get(place)), None)
        if changed is not None:
            raise ConfigurationError(
                f"{name} has replaced a function ('{changed[-1]}') in training, but clients do not store functions until their "
                "next turn. Keep a number or a text that says which function to use."
            )
        states.append(_without_functions(state))
        for place, value in _leaves(states[-1]):
            if not (isinstance(value, Tensor | torch.dtype | torch.device) or is_storable(value)):
                raise ConfigurationError(
                    f"{name} keeps a {type(value).__name__} ('{place}') from turn to turn, but clients store only tensors, "
                    "numbers, texts, and lists and dictionaries of them. Leave it out of its 'state_dict', or use another "
                    "scheduler."
                )
    groups = [[{k: v for k, v in group.items() if is_kept(v)} for group in own] for own in groups_of(optimizers)]
    return copy.deepcopy((states, groups))


def _is_function(value: Any) -> bool:
    return isinstance(value, _FUNCTIONS) and isinstance(getattr(value, "__self__", None), _OWNERS)


def _functions(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    if _is_function(value):
        yield place, value
    for key, item in _items(value):
        yield from _functions(item, (*place, key))


def _leaves(value: Any, name: Any = "") -> Iterator[tuple[Any, Any]]:
    if type(value) not in (*_LISTS, *_MAPPINGS):
        yield name, value
    for key, item in _items(value):
        yield from _leaves(item, key if isinstance(key, str) else name)


def _items(value: Any) -> Any:
    if type(value) in _MAPPINGS:
        return value.items()
    return enumerate(value) if type(value) in _LISTS else ()


def _without_functions(value: Any) -> Any:
    """Return a state without the functions in its dictionaries; schedulers within others have dictionaries of their own."""
    if type(value) is dict:
        return {key: _without_functions(item) for key, item in value.items() if not _is_function(item)}
    return type(value)(map(_without_functions, value)) if type(value) in (list, tuple) else value
