"""Keep what optimizers remember from step to step until a client's next turn: state, pending gradients, inner optimizers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from fl_lightning.clients.isolation.attribute_values import is_kept
from fl_lightning.errors import ConfigurationError

_ADVICE = "but 'federation.local.optimizer_state' is 'kept'"


def with_inner(optimizers: Sequence[Any]) -> list[Any]:
    """Return optimizers, each followed by those in its attributes, such as the one with which SAM steps."""
    found: dict[int, Any] = {}
    for optimizer in optimizers:
        found.setdefault(id(optimizer), optimizer)
        for inner in with_inner([own for own in _held(optimizer) if id(own) not in found]):
            found.setdefault(id(inner), inner)
    return list(found.values())


def _held(optimizer: Any) -> Iterator[Optimizer]:
    for value in vars(optimizer).values():
        yield from (item for item in (value if isinstance(value, list | tuple) else [value]) if isinstance(item, Optimizer))


def optimizer_state(optimizers: Sequence[Optimizer], gradients: bool) -> list[dict[str, Any]]:
    """Return the state of each optimizer, and of each within it: its class, the number of its parameters, and what it saves.

    Args:
        optimizers: the client's optimizers.
        gradients: whether the next turn adds to the gradients of this one, which only manual optimization does.

    Raises:
        ConfigurationError: if an optimizer keeps anything but tensors, plain values, and lists and dictionaries of them.
    """
    found = []
    for optimizer in with_inner(optimizers):
        saved = optimizer.state_dict()  # Lightning's stand-in for no optimizer has an empty one
        state, more = saved.get("state", {}), {k: v for k, v in saved.items() if k not in ("state", "param_groups")}
        _require_kept(optimizer, {name: value for own in (*state.values(), more) for name, value in own.items()})
        entry = {"class": type(optimizer).__name__, "size": _size(optimizer), "state": state, "more": more}
        if gradients:
            entry["gradients"] = [parameter.grad for parameter in _parameters(optimizer)]
        found.append(entry)
    return found


def _require_kept(optimizer: Any, values: dict[str, Any]) -> None:
    for name, value in values.items():
        if not is_kept(value):
            raise ConfigurationError(
                f"{type(optimizer).__name__} keeps a {type(value).__name__} ('{name}') from step to step, {_ADVICE}, which "
                "stores only tensors, numbers, texts, and lists and dictionaries of them. Set it to 'fresh', or use another "
                "optimizer."
            )


def restore_optimizers(kept: Sequence[dict[str, Any]], optimizers: Sequence[Optimizer]) -> None:
    """Give optimizers the state that :func:`optimizer_state` returned.

    Raises:
        ConfigurationError: if the module's optimizers are others now, or have other parameters.
    """
    now = with_inner(optimizers)
    kinds = [type(optimizer).__name__ for optimizer in now]
    earlier = [own.get("class", kind) for own, kind in zip(kept, kinds, strict=False)]
    if earlier != kinds[: len(earlier)]:
        raise ConfigurationError(
            f"The module's optimizers are of other classes ({', '.join(kinds)}) than in the client's last turn "
            f"({', '.join(earlier)}), {_ADVICE}. Use the same in all rounds, or set it to 'fresh'."
        )
    if [own["size"] for own in kept] != [_size(optimizer) for optimizer in now]:
        raise ConfigurationError(
            f"The module's optimizers have other parameters than in the client's last turn, {_ADVICE}. Pass the same "
            "parameters in all rounds, or set it to 'fresh'."
        )
    for own, optimizer in zip(kept, now, strict=True):
        _load(optimizer, own)
        for parameter, gradient in zip(_parameters(optimizer), own.get("gradients", ()), strict=False):
            parameter.grad = None if gradient is None else gradient.to(parameter.device)


def _load(optimizer: Any, own: dict[str, Any]) -> None:
    """Load a state in place: an optimizer may share its groups and its state with another, but loading creates new ones."""
    groups, state = optimizer.param_groups, optimizer.state
    optimizer.load_state_dict({**optimizer.state_dict(), **own.get("more", {}), "state": own["state"]})
    loaded = optimizer.state
    if loaded is not state:
        state.clear()
        state.update(loaded)
        optimizer.state = state
    if optimizer.param_groups is not groups:
        for group, new in zip(groups, optimizer.param_groups, strict=True):
            group.update(new)
        optimizer.param_groups = groups


def _parameters(optimizer: Any) -> list[Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _size(optimizer: Any) -> list[int]:
    return [len(group["params"]) for group in optimizer.param_groups]
