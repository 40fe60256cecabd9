"""Pack the state of a client's training that it keeps until its next turn, because it cannot be computed."""

from __future__ import annotations

import copy
import io
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from fl_lightning.clients.plain_values import decoded, encoded, is_storable
from fl_lightning.errors import ConfigurationError

NAME = "training"
"""The name of the packed state among the tensors that a client stores."""
OWN = "own training"
"""The name of that of the training of the client's own model."""


def pack(state: dict[str, Any]) -> Tensor:
    """Return tensors and plain values as bytes, uint8, shape (n,)."""
    buffer = io.BytesIO()
    torch.save(encoded(state), buffer)
    return torch.frombuffer(bytearray(buffer.getbuffer()), dtype=torch.uint8)


def unpack(content: Tensor) -> dict[str, Any]:
    """Return what :func:`pack` packed, as new tensors on the CPU, since this process may lack the GPU that trained."""
    stored = io.BytesIO(content.numpy().tobytes())
    found: dict[str, Any] = decoded(torch.load(stored, map_location="cpu", weights_only=True))
    return found


_RATES = ("lr", "initial_lr", "max_lr", "min_lr")
_SCHEDULED = (*_RATES, "swa_lr", "momentum", "betas", "max_momentum", "base_momentum")
"""The settings that schedulers change, which are computed anew in each turn."""
Groups = list[dict[str, Any]]


class ChangedSettings:
    """Follow what training changes in the groups of optimizers, so that it holds in the client's next turns.

    A module may lower rates by hand, and some optimizers count in their groups. What schedulers set is left to them.

    Args:
        optimizers: the optimizers at the beginning of a turn.
        scheduled: whether there are schedulers.
        factor: the factor of the round on the learning rates.
        kept: what :meth:`end` returned after the client's last turn, which is set again; None in the first one.
    """

    def __init__(
        self, optimizers: Sequence[Optimizer], scheduled: bool, factor: float, kept: dict[str, Any] | None = None
    ) -> None:
        self._groups: list[dict[str, Any]] = [group for optimizer in optimizers for group in optimizer.param_groups]
        self._left_out = ("params", *(_SCHEDULED if scheduled else ()))
        self._factor = factor
        self._known: Groups = kept["groups"] if kept else [{} for _ in self._groups]
        for group, own in zip(self._groups, self._known, strict=False):
            for name, value in own.items():
                scale = factor / kept["factor"] if kept and name in _RATES else 1
                group[name] = value * scale if scale != 1 else copy.deepcopy(value)
        self._begun = self._settings()

    def _settings(self) -> Groups:
        return [
            {k: copy.deepcopy(v) for k, v in group.items() if k not in self._left_out and _is_storable(v)}
            for group in self._groups
        ]

    def end(self) -> dict[str, Any] | None:
        """Return the settings that this turn or an earlier one changed, or None if no turn changed any."""
        changed = [
            {k: v for k, v in now.items() if k in known or k not in then or not _equal(v, then[k])}
            for known, then, now in zip(self._known, self._begun, self._settings(), strict=False)
        ]
        return {"groups": changed, "factor": self._factor} if any(changed) else None


def _is_storable(value: Any) -> bool:
    if isinstance(value, tuple | list):
        return all(map(_is_storable, value))
    return isinstance(value, Tensor) or is_storable(value)


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return torch.equal(one, other)
    return type(one) is type(other) and bool(one == other)


def optimizer_state(optimizers: Sequence[Optimizer]) -> list[dict[str, Any]]:
    """Return the state of each optimizer: its class, the number of its parameters, and their tensors and numbers.

    Raises:
        ConfigurationError: if an optimizer keeps anything else.
    """
    found = []
    for optimizer in optimizers:
        state = optimizer.state_dict().get("state", {})  # Lightning's stand-in for no optimizer has none
        for values in state.values():
            for name, value in values.items():
                if not (isinstance(value, Tensor) or is_storable(value)):
                    raise ConfigurationError(
                        f"{type(optimizer).__name__} keeps a {type(value).__name__} ('{name}') from step to step, but "
                        "'federation.local.optimizer_state' is 'kept', which stores only tensors and numbers. Set it to "
                        "'fresh', or use another optimizer."
                    )
        found.append({"class": type(optimizer).__name__, "size": _size(optimizer), "state": state})
    return found


def restore_optimizers(kept: Sequence[dict[str, Any]], optimizers: Sequence[Optimizer]) -> None:
    """Give optimizers the state that :func:`optimizer_state` returned.

    Raises:
        ConfigurationError: if the module's optimizers are others now, or have other parameters.
    """
    kinds = [type(optimizer).__name__ for optimizer in optimizers]
    earlier = [own.get("class", kind) for own, kind in zip(kept, kinds, strict=False)]
    if earlier != kinds[: len(earlier)]:
        raise ConfigurationError(
            f"The module's optimizers are of other classes ({', '.join(kinds)}) than in the client's last turn "
            f"({', '.join(earlier)}), but 'federation.local.optimizer_state' is 'kept'. Use the same in all rounds, or set it "
            "to 'fresh'."
        )
    if [own["size"] for own in kept] != [_size(optimizer) for optimizer in optimizers]:
        raise ConfigurationError(
            "The module's optimizers have other parameters than in the client's last turn, but "
            "'federation.local.optimizer_state' is 'kept'. Pass the same parameters in all rounds, or set it to 'fresh'."
        )
    for own, optimizer in zip(kept, optimizers, strict=True):
        optimizer.load_state_dict({**optimizer.state_dict(), "state": own["state"]})


def _size(optimizer: Optimizer) -> list[int]:
    return [len(group["params"]) for group in optimizer.param_groups]
