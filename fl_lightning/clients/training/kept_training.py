"""Pack the state of a client's training that it keeps until its next turn, because it cannot be computed."""

from __future__ import annotations

import copy
import io
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from fl_lightning.clients.isolation.attribute_values import equal, holds, is_kept
from fl_lightning.clients.training.kept_optimizers import with_inner
from fl_lightning.clients.training.schedules import RATES
from fl_lightning.compat.torch import chained_schedules

NAME = "training"
"""The name of the packed state among the tensors that a client stores."""
OWN = "own training"
"""The name of that of the training of the client's own model."""


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
        every = with_inner(optimizers)
        unique = {id(group): group for optimizer in every for group in optimizer.param_groups}
        attributes: Groups = [vars(optimizer) for optimizer in every]
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
