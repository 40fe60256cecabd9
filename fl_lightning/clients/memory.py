"""What clients keep over rounds: their control variates, and the models of those who discard the global one."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, MutableMapping

import torch
from torch import Tensor

from fl_lightning.types import Snapshot

Kept = dict[str, Tensor]
"""By name: ``control``, ``vector``, ``counters``, ``score``, and those of drawers."""


class ClientMemory:
    """Every rank holds every client's, in the CPU's memory, brought up to date after each round: any may train any next.

    Args:
        keepers: clients that go on from their own last model.
    """

    def __init__(self, keepers: Collection[int] = ()) -> None:
        self.keepers = frozenset(keepers)
        self._kept: dict[int, Kept] = {}
        self._changed: set[int] = set()

    def forget(self) -> None:
        """Begin anew: the first round starts."""
        self._kept, self._changed = {}, set()

    def recall(self, client: int) -> Snapshot | None:
        """The model that a client goes on from; None where it takes the one it is given."""
        return self.last_model(client) if client in self.keepers else None

    def last_model(self, client: int) -> Snapshot | None:
        """The model that a client has kept; None where it keeps none."""
        kept = self._kept.get(client, {})
        return Snapshot(kept["vector"], kept["counters"]) if "vector" in kept else None

    def remember(self, client: int, model: Snapshot) -> None:
        """Keep a model that was trained, if the client is one that keeps its own."""
        if client in self.keepers:
            self.put(client, vector=model.vector, counters=model.counters)

    def vectors(self) -> Iterator[tuple[str, Tensor]]:
        """What clients keep that may be of all parameters of a model, by name."""
        for kept in self._kept.values():
            yield from ((name, tensor) for name, tensor in kept.items() if tensor.ndim == 1 and name != "counters")

    def control(self, client: int) -> Tensor | None:
        """c_k, shape (p,); None where it is still 0."""
        return self._kept.get(client, {}).get("control")

    def change_control(self, client: int, change: Tensor, in_place: bool = False) -> None:
        """Add a change to c_k, in place where the c_k before is needed no more."""
        own = self.control(client)
        if own is not None:
            change = own.add_(change.to(own)) if in_place else own.to(change) + change
        self.put(client, control=change)

    def score(self, client: int) -> float | None:
        """What the client's model scored when it was measured last; None where it never was, or scores are not kept."""
        kept = self._kept.get(client, {}).get("score")
        return None if kept is None else float(kept)

    def remember_score(self, client: int, score: float) -> None:
        """Keep a score for rounds in which nothing is measured."""
        self.put(client, score=torch.tensor(score, dtype=torch.float64))

    def drawer(self, client: int, prefix: str) -> MutableMapping[str, Tensor]:
        """What the client keeps under names that begin with a prefix: reads and writes through."""
        return _Drawer(self, client, prefix)

    def kept(self, client: int) -> Kept:
        """All that a client keeps."""
        return self._kept.get(client, {})

    def restore(self, client: int, kept: Kept) -> None:
        """Let a client keep what it kept before."""
        self._kept[client] = dict(kept)
        self._changed.add(client)

    def put(self, client: int, **kept: Tensor) -> None:
        """Keep tensors by name."""
        self._kept.setdefault(client, {}).update({name: tensor.cpu() for name, tensor in kept.items()})
        self._changed.add(client)

    def changes(self) -> dict[int, Kept]:
        """What changed since the last call, by client."""
        changed = {client: self._kept[client] for client in self._changed}
        self._changed = set()
        return changed

    def update(self, kept: Mapping[int, Kept]) -> None:
        """Take over what other ranks' clients keep."""
        self._kept |= kept

    def state_dict(self) -> dict[int, Kept]:
        """Everything, for a checkpoint."""
        return {client: dict(kept) for client, kept in sorted(self._kept.items())}

    def load_state_dict(self, state: Mapping[int, Kept]) -> None:
        """Take everything back."""
        self._kept, self._changed = {client: dict(kept) for client, kept in state.items()}, set()


class _Drawer(MutableMapping[str, Tensor]):
    def __init__(self, memory: ClientMemory, client: int, prefix: str) -> None:
        self._memory, self._client, self._prefix = memory, client, prefix

    def __getitem__(self, name: str) -> Tensor:
        return self._memory.kept(self._client)[self._prefix + name]

    def __setitem__(self, name: str, tensor: Tensor) -> None:
        self._memory.put(self._client, **{self._prefix + name: tensor})

    def __delitem__(self, name: str) -> None:
        raise TypeError("What a client keeps is overwritten, not deleted.")

    def __iter__(self) -> Iterator[str]:
        return (n.removeprefix(self._prefix) for n in self._memory.kept(self._client) if n.startswith(self._prefix))

    def __len__(self) -> int:
        return sum(1 for _ in self)
