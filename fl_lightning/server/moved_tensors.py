"""Aggregate frozen tensors that clients changed, and buffers that had no finite value before training."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from fl_lightning.errors import ConfigurationError
from fl_lightning.functional.exact_sum import to_float64
from fl_lightning.functional.model_parts import widened
from fl_lightning.functional.model_state import ModelState
from fl_lightning.functional.sums import Sums
from fl_lightning.types import ClientUpdate
from fl_lightning.utilities.collectives import Collectives

_MOVED, _UNWEIGHTED = "moved ", "plain moved "
"""The prefixes of the sums of changes, and of those of clients whose weight is 0."""
_NEW, _NEW_WEIGHT = "new ", "weight of new "
"""The prefixes of the sums of tensors that had no finite value before, and of the weights of the clients that have one."""


def prefixed(name: str) -> str:
    """Return the name of the sum of a tensor's weighted changes."""
    return _MOVED + name


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
        self._shapes: dict[str, torch.Size] = {}

    def add(self, moved: Mapping[str, Tensor], weight: float, sums: Sums) -> None:
        """Add a client's tensors to the sums, with its weight."""
        before = self._server.tensors() if moved else {}
        rules = self._server.extremes() if moved else {}
        for name, tensor in moved.items():
            if before[name].shape != tensor.shape:
                _require_one_shape(name, self._shapes.setdefault(name, tensor.shape), tensor.shape)
            if name in rules:
                self._extremes[name] = _extreme(rules[name], tensor, self._extremes.get(name, before[name]))
            elif _has_value(before[name], tensor):
                change = to_float64(tensor) - to_float64(before[name].to(tensor.device))
                # If all weights are 0, each client counts as 1, as in the strategies' averages.
                sums.add(*((_MOVED + name, change, weight) if weight > 0 else (_UNWEIGHTED + name, change)))
            else:
                counts = weight if weight > 0 else 1.0
                sums.add(_NEW + name, to_float64(tensor), counts)
                sums.add(_NEW_WEIGHT + name, 1.0, counts)

    def result(self, updates: Sequence[ClientUpdate], sums: Sums, comm: Collectives) -> dict[str, Tensor]:
        """Return the new values by name.

        Args:
            updates: all updates of the round, with their weights, in the same order on every rank.
            sums: the sums over all ranks.
            comm: the ranks.
        """
        total = math.fsum(update.weight for update in updates)
        prefix, total = (_MOVED, total) if total > 0 else (_UNWEIGHTED, float(len(updates)))
        before, names = self._server.tensors(), sums.sizes()
        found = {}
        for name in sorted(name.removeprefix(prefix) for name in names if name.startswith(prefix)):
            change = sums.value(prefix + name).to(before[name].device) / total
            found[name] = to_float64(before[name]) + change.view_as(before[name])
        new, rules = sorted(name.removeprefix(_NEW) for name in names if name.startswith(_NEW)), self._server.extremes()
        if not new and not rules:
            return found
        own = {name: tensor.cpu() for name, tensor in self._extremes.items()}
        ranks: list[tuple[dict[str, Tensor], dict[str, torch.Size]]] = comm.gather((own, self._shapes))
        shapes = {name: before[name].shape for name in new}
        for _, theirs in ranks:
            for name, shape in theirs.items():
                if name in self._shapes:
                    _require_one_shape(name, self._shapes[name], shape)
                shapes[name] = shape
        for name in new:
            mean = sums.value(_NEW + name) / sums.value(_NEW_WEIGHT + name)
            found[name] = mean.to(before[name].device).view(shapes[name])
        return found | _together([extremes for extremes, _ in ranks], rules, before)

    def of_all(self, updates: Sequence[ClientUpdate], weights: Sequence[float]) -> dict[str, Tensor]:
        """Return the new values for a strategy that saw all updates at once.

        Args:
            updates: all updates of the round, with their snapshots, in the same order on every rank.
            weights: the strategy's weight of each.
        """
        total = math.fsum(weights)
        shares = [weight / total if total > 0 else 1 / len(updates) for weight in weights]
        sent = [update.snapshot.moved for update in updates]
        before, rules = self._server.tensors(), self._server.extremes()
        averaged = {}
        for name in sorted({name for moved in sent for name in moved}):
            own = [(moved[name], share) for moved, share in zip(sent, shares, strict=True) if name in moved and share]
            for tensor, _ in own:
                _require_one_shape(name, own[0][0].shape, tensor.shape)
            if name in rules:
                continue
            base = to_float64(before[name])
            fits = all(_has_value(base, tensor) for tensor, _ in own)
            found = base.clone() if fits else torch.zeros_like(to_float64(own[0][0]))
            whole = 1.0 if fits else math.fsum(share for _, share in own)
            for tensor, share in own:
                value = to_float64(tensor.to(found.device))
                found += share / whole * (value - base if fits else value)
            averaged[name] = found
        chosen = [moved for moved, share in zip(sent, shares, strict=True) if share]
        kept = [{name: tensor for name, tensor in moved.items() if name in rules} for moved in chosen]
        return averaged | _together(kept, rules, before)


def _require_one_shape(name: str, one: torch.Size, other: torch.Size) -> None:
    """Refuse a buffer to which clients give different shapes.

    Raises:
        ConfigurationError: naming it.
    """
    if one != other:
        raise ConfigurationError(
            f"Training gave the buffer '{name}' the shape {tuple(one)} at one client and {tuple(other)} at another, so it "
            "cannot be averaged. Register it with its final shape, or let each client keep it: name it in 'client_state'."
        )


def _has_value(before: Tensor, tensor: Tensor) -> bool:
    """Return whether a tensor's change from its value before can be averaged."""
    return before.shape == tensor.shape and bool(torch.isfinite(widened(before)).all())


def _extreme(rule: str, one: Tensor, other: Tensor) -> Tensor:
    """Return the elementwise minimum or maximum; of one tensor alone if the other has another shape, so no value yet."""
    if one.shape != other.shape:
        return one
    return (torch.minimum if rule == "min" else torch.maximum)(one, other.to(one.device))


def _together(
    sent: Sequence[Mapping[str, Tensor]], rules: Mapping[str, str], before: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    for moved in sent:
        for name, tensor in moved.items():
            found[name] = _extreme(rules[name], tensor.to(before[name].device), found.get(name, before[name]))
    return dict(sorted(found.items()))
