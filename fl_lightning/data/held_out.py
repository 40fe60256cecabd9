"""Choose clients that never train, and put them after the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from fl_lightning.data.client_splits import ClientSplits
from fl_lightning.errors import ConfigurationError, did_you_mean, require, share_hint
from fl_lightning.functional.partition import Partition
from fl_lightning.functional.seeding import generator

HeldOut = int | float | list[str | int]
"""A share of the clients, their number, or their names; 0 for none."""
_NAME = "data.held_out_clients"
_MOST_NAMES = 10


def check_held_out(given: HeldOut) -> None:
    """Reject a share or a number outside its range, and names that occur twice.

    Raises:
        ConfigurationError: naming the setting.
    """
    if isinstance(given, list):
        require(len(set(map(str, given))) == len(given), _NAME, "names that differ", given)
        return
    share = isinstance(given, float)
    wanted = "a share of at least 0 and below 1, a number of clients, or a list of their names"
    require(0 <= given < 1 if share else given >= 0, _NAME, wanted, given, share_hint(given, counts=True) if share else "")


def chosen(given: HeldOut, names: Sequence[str], seed: int) -> list[int]:
    """Return the positions of the clients that are held out, ascending.

    Args:
        given: a share, of which at least one client, a number, or names.
        names: the names of all clients; clients without names are called by their numbers.
        seed: draws the clients of a share or a number.

    Raises:
        ConfigurationError: if a name is unknown, or no client is left to train.
    """
    count = len(names)
    if isinstance(given, list):
        known = {name: position for position, name in enumerate(names)}
        for name in map(str, given):
            if name not in known:
                shown = ", ".join(names[:_MOST_NAMES]) + (f" and {count - _MOST_NAMES} more" if count > _MOST_NAMES else "")
                raise ConfigurationError(
                    f"'{_NAME}' has '{name}', but the clients are: {shown}. Use their names.{did_you_mean(name, names)}"
                )
        found = sorted(known[str(name)] for name in given)
    else:
        number = max(1, round(given * count)) if isinstance(given, float) and given else int(given)
        found = sorted(torch.randperm(count, generator=generator(seed, "held-out clients"))[:number].tolist())
    require(len(found) < count, _NAME, f"fewer than the {count} clients, so that some train", given)
    return found


def held_out_last(splits: ClientSplits, held: Sequence[int]) -> tuple[ClientSplits, Partition, list[int]]:
    """Return the parts of the clients that train, what the others are tested on, and the order of all clients.

    Clients keep their names, or as a name the number that they had. A held-out client is tested on its test part, as the
    others are; without test parts, on all of its examples.

    Args:
        splits: the parts of all clients.
        held: the positions of the held-out clients, ascending.
    """
    out = set(held)
    trained = [client for client in range(len(splits.training)) if client not in out]
    own = {name: _of(getattr(splits, name), trained) for name in ("training", "validation", "test")}
    unseen = _of(splits.test, held)
    if unseen is None:
        kept = [part for part in (splits.training, splits.validation) if part is not None]
        unseen = _of(Partition.of_parts([torch.cat(one) for one in zip(*kept, strict=True)], splits.training.names), held)
    return replace(splits, **own), unseen, [*trained, *held]


def _of(partition: Partition | None, clients: Sequence[int]) -> Any:
    """Return the examples of some clients; None without a partition."""
    if partition is None:
        return None
    names = tuple(str(k) if partition.names is None else partition.names[k] for k in clients)
    return Partition.of_parts([partition[k] for k in clients], names)
