"""Describe a round under masks: what every client must see alike before its update is added to the others'."""

from __future__ import annotations

import hashlib
import json
import math
import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from typing import Any

from fl_lightning.errors import ProtocolError
from fl_lightning.functional.digest import Digest
from fl_lightning.functional.sums import Grid
from fl_lightning.functional.words import WholeLayout, WordLayout
from fl_lightning.messages import ClientTask, ServerModel

BEFORE = -1
"""The place of what clients add up before round 0: whole numbers, without a training."""
COMPLETE = 100
"""The largest cohort of which every two clients share a mask."""
_MOST_CLIENTS = 10**6
_PER_DOUBLING = 8
"""How many others share a mask with a client of a larger cohort, for each doubling of its size."""


@dataclass(frozen=True)
class RoundTerms:
    """Say what is known of a round under masks before it begins. Keys are signed, and shares sealed, for these terms alone.

    Attributes:
        federation: the id of the federation; empty in a simulation.
        contract: the digest of the settings that all clients got; empty in a simulation.
        session: the id of the attempt.
        round_idx: the communication round, from 0; :data:`BEFORE` for whole numbers before it.
        cohort: the ids and names of the clients that exchange keys, ascending.
        threshold: the least share of a client's neighbours, itself included, that must help to remove its masks.
    """

    federation: str
    contract: str
    session: str
    round_idx: int
    cohort: tuple[tuple[int, str], ...]
    threshold: float

    @cached_property
    def terms(self) -> bytes:
        """Return the digest of the terms, 32 bytes."""
        return _hashed(["terms", *self.plain_terms().values()])

    @cached_property
    def following(self) -> RoundTerms:
        """Return the terms of the next round, if it has the same cohort."""
        return RoundTerms(**{**self.plain_terms(), "round_idx": self.round_idx + 1})

    def plain_terms(self) -> dict[str, Any]:
        """Return the terms as plain values, for the way to a site."""
        return {field.name: getattr(self, field.name) for field in fields(RoundTerms)}  # 'asdict' copies each name

    @staticmethod
    def read_terms(values: Any) -> RoundTerms:
        """Read terms from plain values, which may be of a whole description.

        Raises:
            ProtocolError: if they are not valid.
        """
        with _reading():
            cohort = tuple((int(client), str(name)) for client, name in values["cohort"])
            plain = {name: values[name] for name in ("federation", "contract", "session", "round_idx", "threshold")}
            found = RoundTerms(**plain, cohort=cohort)
            sound = len({k for k, _ in cohort}) == len({name for _, name in cohort}) == len(cohort)
            sound &= all(0 <= client < _MOST_CLIENTS for client, _ in cohort)  # a share for the id -1 would be the secret
            sound &= type(found.round_idx) is int and found.round_idx >= BEFORE  # NaN is not below any round
            sound &= all(isinstance(plain[name], str) for name in ("federation", "contract", "session"))
            sound &= 0 < found.threshold <= 1
        _require(sound)
        return found

    @property
    def clients(self) -> tuple[int, ...]:
        """Return the ids of the clients that exchange keys, ascending."""
        return tuple(client for client, _ in self.cohort)

    @property
    def is_before(self) -> bool:
        """Return whether clients add up whole numbers before round 0."""
        return self.round_idx == BEFORE

    @property
    def title(self) -> str:
        """Return the name of the round in messages."""
        return "Before round 0" if self.is_before else f"Round {self.round_idx}"

    @cached_property
    def _neighbours(self) -> dict[int, tuple[int, ...]]:
        if len(self.cohort) <= COMPLETE:
            return {client: tuple(other for other in self.clients if other != client) for client in self.clients}
        ring = [*self.clients]
        random.Random(self.terms).shuffle(ring)  # the server cannot choose the neighbours
        reach = _PER_DOUBLING * (len(ring) - 1).bit_length() // 2
        steps = [step for step in range(-reach, reach + 1) if step]
        places = enumerate(ring)
        return {client: tuple(sorted(ring[(place + step) % len(ring)] for step in steps)) for place, client in places}

    def neighbours(self, client: int) -> tuple[int, ...]:
        """Return the clients that share masks and secrets with a client: all, or the nearest ones on a ring, both ways."""
        return self._neighbours[client]

    def least(self, client: int) -> int:
        """Return how many of a client's neighbours and itself must help: a share, and more than two thirds in any case."""
        return least_of(len(self.neighbours(client)) + 1, self.threshold)


@dataclass(frozen=True)
class RoundDescription(RoundTerms):
    """Describe a round under masks. Masks and lists of survivors depend on its digest.

    Attributes:
        model: the digest of the global model and of all that comes with it, but the limits of updates; for whole numbers
            :func:`digest_of_sums`.
        work: the digest of what each client is asked to do; empty if the clients have different tasks.
        sizes: the length of each sum, by name.
        grids: the grids of those that have one, by name.
    """

    model: str
    work: str
    sizes: Mapping[str, int]
    grids: Mapping[str, Grid]

    @cached_property
    def digest(self) -> bytes:
        """Return the digest of the whole description, 32 bytes."""
        return _hashed(self.plain())

    def plain(self) -> dict[str, Any]:
        """Return the description as plain values, for the way to a site."""
        grids = {name: asdict(grid) for name, grid in self.grids.items()}
        return {**self.plain_terms(), "model": self.model, "work": self.work, "sizes": dict(self.sizes), "grids": grids}

    @classmethod
    def read(cls, values: Any) -> RoundDescription:
        """Read a description from plain values.

        Raises:
            ProtocolError: if it is not a valid description.
        """
        terms = cls.read_terms(values)
        with _reading():
            grids = {str(name): _grid(one) for name, one in values["grids"].items()}
            sizes = {str(name): int(size) for name, size in values["sizes"].items()}
            model, work = values["model"], values["work"]
            sound = isinstance(model, str) and isinstance(work, str)
            sound &= not (terms.is_before and grids) and all(size >= 0 for size in sizes.values())
            sound &= all(_is_sound(grid) and sum(n for n, _ in grid.pieces) == sizes[name] for name, grid in grids.items())
        _require(sound)
        return cls(**terms.plain_terms(), model=model, work=work, sizes=sizes, grids=grids)

    @cached_property
    def layout(self) -> WordLayout:
        """Return how the sums are written as words."""
        return (WholeLayout if self.is_before else WordLayout)(self.sizes, self.grids)


@contextmanager
def _reading() -> Iterator[None]:
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise ProtocolError("The description of the round under masks cannot be read.") from error


def _require(sound: bool) -> None:
    if not sound:
        raise ProtocolError("The description of the round under masks contradicts itself.")


def _hashed(values: Any) -> bytes:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).digest()


def least_of(clients: int, share: float) -> int:
    """Return how many of some clients are at least a share, and more than two thirds of them."""
    return max(math.ceil(share * clients - 1e-9), 2 * clients // 3 + 1)


def _is_sound(grid: Grid) -> bool:
    pieces = (size >= 0 and (expected is None or 0 < expected < math.inf) for size, expected in grid.pieces)
    return 0 < grid.largest < math.inf and all(pieces)


def _grid(values: Any) -> Grid:
    pieces = tuple((int(size), None if expected is None else float(expected)) for size, expected in values["pieces"])
    return Grid(pieces, float(values["largest"]), bool(values["certain"]))


def digest_of_sums(sizes: Mapping[str, int]) -> str:
    """Return the digest of a question for whole numbers. A site signs one list of survivors for each."""
    return _hashed(["sums", dict(sizes)]).hex()


def digest_of_model(model: ServerModel) -> str:
    """Return the digest of a published model and of all that changes a training from it, 64 hexadecimal digits.

    The limits of updates are left out, since sites set their own.
    """
    layout, parts = model.layout, [model.tensors, model.broadcast, model.first]
    names = [sorted(part) for part in (*parts, layout.modes)]
    collected = Digest(32)
    # Names come from the server and have any length, so that they are hashed first: no name can pass for a number.
    rest = [names, [layout.modes[name] for name in names[-1]], layout.trained, layout.moving, layout.held, layout.unsent]
    collected.add(hashlib.sha256(json.dumps(rest).encode()).digest())
    for part in parts:
        collected.add([part[name] for name in sorted(part)])
    return collected.text()


def digest_of_task(task: ClientTask) -> str:
    """Return the digest of what a task asks for, whoever gets it; sites refuse one with a model of its own."""
    return hashlib.sha256(repr(replace(task, client=0, version=0, start=None, pull=None)).encode()).hexdigest()
