"""Keep the state of a client's training until its next turn, because it cannot be computed."""

from __future__ import annotations

import copy
import io
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from fl_lightning.clients.attribute_values import equal, holds, is_kept
from fl_lightning.clients.training.schedules import RATES, State, groups_of, states_of
from fl_lightning.compat.torch import chained_schedules
from fl_lightning.errors import ConfigurationError

NAME = "training"
"""The name of the packed state among the tensors that a client stores."""
OWN = "own training"
"""The name of that of the training of the client's own model."""
_FRESH = "Set 'federation.local.optimizer_state' to 'fresh'"


def pack(state: dict[str, Any]) -> Tensor:
    """Return tensors and plain values as bytes, uint8, shape (n,)."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return torch.frombuffer(bytearray(buffer.getbuffer()), dtype=torch.uint8)


def unpack(content: Tensor) -> dict[str, Any]:
    """Return what :func:`pack` packed, as new tensors on the CPU, since this process may lack the GPU that trained."""
    stored = io.BytesIO(content.numpy().tobytes())
    found: dict[str, Any] = torch.load(stored, map_location="cpu", weights_only=True)
    return found


# ---------------------------------------------------------------- optimizers and schedules


def refuse_nested(optimizers: Sequence[Any]) -> None:
    """Refuse optimizers that step with another one within them, as SAM does, whose state theirs leaves out.

    Raises:
        ConfigurationError: naming the classes.
    """
    for optimizer in optimizers:
        inner = next((value for value in vars(optimizer).values() if isinstance(value, Optimizer)), None)
        if inner is not None:
            raise ConfigurationError(
                f"{type(optimizer).__name__} steps with the {type(inner).__name__} within it, whose state would be lost, but "
                f"'federation.local.optimizer_state' is 'kept'. {_FRESH}."
            )


def optimizer_states(optimizers: Sequence[Any]) -> list[dict[str, Any]]:
    """Return of each optimizer what it saves apart from its groups, its class, and the numbers of its parameters.

    Raises:
        ConfigurationError: if an optimizer saves anything but tensors, plain values, and lists and dictionaries of them.
    """
    found = []
    for optimizer in optimizers:  # Lightning's stand-in for no optimizer saves nothing
        saved = {name: value for name, value in optimizer.state_dict().items() if name != "param_groups"}
        values = [value for own in saved.get("state", {}).values() for value in own.items()]
        _require_kept(optimizer, [*values, *((name, value) for name, value in saved.items() if name != "state")], _FRESH)
        found.append({"class": type(optimizer).__name__, "sizes": _sizes(optimizer), "saved": saved})
    return found


def restore_optimizers(kept: Sequence[dict[str, Any]], optimizers: Sequence[Any]) -> None:
    """Give optimizers the state that :func:`optimizer_states` returned.

    Raises:
        ConfigurationError: if the module's optimizers are others now, or have other parameters.
    """
    now = [(type(optimizer).__name__, _sizes(optimizer)) for optimizer in optimizers]
    before = [(own["class"], own["sizes"]) for own in kept]
    if now != before:
        one, other = (", ".join(f"{kind} of {sum(sizes)} parameters" for kind, sizes in found) for found in (now, before))
        raise ConfigurationError(
            f"The module's optimizers are other ones ({one}) than in the client's last turn ({other}), but "
            f"'federation.local.optimizer_state' is 'kept'. Use the same in all rounds, or set it to 'fresh'."
        )
    for own, optimizer in zip(kept, optimizers, strict=True):
        groups, state = optimizer.param_groups, optimizer.state
        optimizer.load_state_dict({**optimizer.state_dict(), **own["saved"]})
        # Lightning's wrapper of an optimizer holds the lists and dictionaries that loading has replaced.
        for group, new in zip(groups, optimizer.param_groups, strict=True):
            group.update(new)
        if optimizer.state is not state:
            state.clear()
            state.update(optimizer.state)
        optimizer.param_groups, optimizer.state = groups, state


def schedule_states(optimizers: Sequence[Optimizer], configs: Sequence[Any]) -> State:
    """Return a copy of the schedulers' states, and of the settings that they change.

    Raises:
        ConfigurationError: if a scheduler saves anything but tensors, plain values, and lists and dictionaries of them.
    """
    states = states_of(configs)
    for state, config in zip(states, configs, strict=True):
        _require_kept(config.scheduler, list(state.items()), "Leave it out of its 'state_dict', or use another scheduler")
    groups = [[{name: v for name, v in group.items() if is_kept(v)} for group in own] for own in groups_of(optimizers)]
    return copy.deepcopy((states, groups))


def _require_kept(owner: Any, values: Sequence[tuple[Any, Any]], remedy: str) -> None:
    for name, value in values:
        if not is_kept(value):
            raise ConfigurationError(
                f"{type(owner).__name__} keeps '{name}' (a {type(value).__name__}) from turn to turn, but clients store only "
                f"tensors, numbers, texts, and lists and dictionaries of them. {remedy}."
            )


def _sizes(optimizer: Any) -> list[int]:
    return [len(group["params"]) for group in optimizer.param_groups]


# ---------------------------------------------------------------- settings


_CYCLED = ("momentum", "betas", "max_momentum", "base_momentum")
_LEFT_OUT = ("params", "defaults", "state", "param_groups", "_opt_called")
"""Keys of groups, and attributes of optimizers, that are kept otherwise or belong to torch."""
Groups = list[dict[str, Any]]


class ChangedSettings:
    """Follow what training changes in optimizers' groups and attributes, so that it holds in the client's next turns.

    A module may lower rates by hand, and some optimizers count in their groups or attributes. What schedulers set is left to
    them, and computed anew in each turn.

    Args:
        optimizers: the optimizers at the beginning of a turn.
        schedulers: their schedulers.
        factor: the factor of the round on the learning rates.
        kept: what :meth:`end` returned after the client's last turn, which is set again; None in the first one.
    """

    def __init__(
        self, optimizers: Sequence[Optimizer], schedulers: Sequence[Any], factor: float, kept: dict[str, Any] | None = None
    ) -> None:
        unique = {id(group): group for optimizer in optimizers for group in optimizer.param_groups}
        attributes: Groups = [vars(optimizer) for optimizer in optimizers]
        self._groups = [*unique.values(), *attributes]
        self._trained = {id(parameter) for group in unique.values() for parameter in group["params"]}
        cycled = any(map(_cycles_momentum, schedulers))
        self._left_out = (*_LEFT_OUT, *(RATES if schedulers else ()), *(_CYCLED if cycled else ()))
        self._factor = factor
        self._known: Groups = kept["groups"] if kept else [{} for _ in self._groups]
        for group, own in zip(self._groups, self._known, strict=False):
            for name, value in own.items():
                scale = factor / kept["factor"] if kept and name in RATES else 1
                group[name] = value * scale if scale != 1 else copy.deepcopy(value)
        self._begun = self._settings()

    def _settings(self) -> Groups:
        return [{name: copy.deepcopy(v) for name, v in group.items() if self._follows(name, v)} for group in self._groups]

    def _follows(self, name: str, value: Any) -> bool:
        return name not in self._left_out and is_kept(value) and not holds(value, self._trained)

    def end(self) -> dict[str, Any] | None:
        """Return the settings that this turn or an earlier one changed, or None if no turn changed any."""
        changed = [
            {k: v for k, v in now.items() if k in known or k not in then or not equal(v, then[k])}
            for known, then, now in zip(self._known, self._begun, self._settings(), strict=False)
        ]
        return {"groups": changed, "factor": self._factor} if any(changed) else None


def _cycles_momentum(scheduler: Any) -> bool:
    return getattr(scheduler, "cycle_momentum", False) is True or any(map(_cycles_momentum, chained_schedules(scheduler)))
