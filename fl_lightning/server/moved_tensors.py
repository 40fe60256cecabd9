"""Aggregate frozen tensors that clients changed, and buffers that had no finite value before training."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from fl_lightning.errors import ConfigurationError
from fl_lightning.functional.exact_sum import to_float64
from fl_lightning.functional.model_parts import widened
from fl_lightning.functional.model_state import ModelState
from fl_lightning.functional.sums import Sums
from fl_lightning.utilities.collectives import Collectives

_MOVED, _WEIGHT = "moved ", "weight of moved "
"""The prefixes of the sums of tensors, whose names end in the shape, and of the weights of those that had no value before."""
_LEAST = 2.0**-700
"""Stands for a weight of 0: it vanishes beside any other, and if all weights are 0, each client counts the same."""


class MovedTensors:
    """Average the tensors that clients changed with the clients' weights, or take their extremes.

    A client that did not change a tensor counts with the server's value. Where the server has no finite value yet, such as an
    observer's range before its first batch, the clients that found one are averaged. The minimum or the maximum is
    taken of buffers for which the module or torch's observers ask for it (``extreme_buffers``).

    Args:
        server: the view of the server's module, as it was when the round began.
    """

    def __init__(self, server: ModelState) -> None:
        self._server = server
        self._extremes: dict[str, Tensor] = {}

    def add(self, moved: Mapping[str, Tensor], weight: float, sums: Sums) -> None:
        """Add a client's tensors to the sums, with its weight."""
        before = self._server.tensors() if moved else {}
        rules = self._server.extremes() if moved else {}
        for name, tensor in moved.items():
            if name in rules:
                self._extremes[name] = _extreme(rules[name], tensor, self._extremes.get(name, before[name]))
                continue
            base = before[name].to(tensor.device)
            known, key = _has_value(base, tensor.shape), f"{name} {'x'.join(map(str, tensor.shape))}"
            sums.add(_MOVED + key, to_float64(tensor) - (to_float64(base) if known else 0.0), max(weight, _LEAST))
            if not known:
                sums.add(_WEIGHT + key, 1.0, max(weight, _LEAST))

    def result(self, weights: Iterable[float], sums: Sums, comm: Collectives) -> dict[str, Tensor]:
        """Return the new values by name.

        Args:
            weights: the weights of all models that the round has aggregated.
            sums: the sums over all ranks.
            comm: the ranks.

        Raises:
            ConfigurationError: if clients gave a buffer different shapes.
        """
        total = math.fsum(max(weight, _LEAST) for weight in weights)
        before, rules = self._server.tensors(), self._server.extremes()
        found: dict[str, Tensor] = {}
        for key in sorted(key.removeprefix(_MOVED) for key in sums.sizes() if key.startswith(_MOVED)):
            name, _, sizes = key.rpartition(" ")
            base, shape = before[name], torch.Size([int(size) for size in sizes.split("x") if size])
            if name in found:
                raise ConfigurationError(
                    f"Training gave the buffer '{name}' the shape {tuple(found[name].shape)} at one client and {tuple(shape)} "
                    "at another, so it cannot be averaged. Register it with its final shape, or let each client keep it: name "
                    "it in 'client_state'."
                )
            known = _has_value(base, shape)
            mean = sums.take(_MOVED + key).div_(total if known else sums.scalar(_WEIGHT + key)).to(base.device).view(shape)
            found[name] = mean.add_(widened(base)) if known else mean
        own = {name: tensor.cpu() for name, tensor in self._extremes.items()}
        for theirs in comm.gather(own) if rules else ():
            for name, tensor in theirs.items():
                found[name] = _extreme(rules[name], tensor.to(before[name].device), found.get(name, before[name]))
        return found


def _has_value(before: Tensor, shape: torch.Size) -> bool:
    """Return whether the change of a tensor from its value before can be averaged, once it has a shape."""
    return before.shape == shape and bool(torch.isfinite(widened(before)).all())


def _extreme(rule: str, one: Tensor, other: Tensor) -> Tensor:
    """Return the elementwise minimum or maximum; of one tensor alone if the other has another shape, so no value yet."""
    if one.shape != other.shape:
        return one
    return (torch.minimum if rule == "min" else torch.maximum)(one, other.to(one.device))
