"""Write down in which order updates arrived, and read it again to repeat the run in a simulation."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fl_lightning.errors import ConfigurationError
from fl_lightning.functional.event_queue import EventQueue, Flight
from fl_lightning.utilities.atomic_file import write_whole

NAME = "arrivals.jsonl"
_REPLAY = "'federation.asynchronous.replay'"


@dataclass(frozen=True, order=True)
class Arrival:
    """Describe the end of a task. A client begins at most one task from a model, so both name the task.

    Attributes:
        round_idx: the round to whose model the update belongs.
        order: its place among all ends of tasks, from 0.
        client: the client.
        version: the number of the model from which it started, which is the round that used the model.
        lost: whether it ended without an update.
        of: the number of ends in its round; a file with fewer has lost a line.
    """

    round_idx: int
    order: int
    client: int
    version: int
    lost: bool = False
    of: int = 1


class ArrivalFile:
    """Write ``arrivals.jsonl`` into a run's folder: a line with the clients and the seed, and one for each end of a task.

    Args:
        folder: the run's folder.
        names: the names of the clients, by number.
        seed: the seed of the federation.
    """

    def __init__(self, folder: Path, names: Sequence[str], seed: int) -> None:
        self._path, self._names, self._seed = folder / NAME, tuple(names), seed
        self._order = 0

    def begin(self, first: int) -> None:
        """Remove the rounds from ``first`` on: a resumed run repeats them."""
        kept = [one for one in _read(self._path)[1] if one.round_idx < first] if first and self._path.exists() else []
        self._order = 1 + max((one.order for one in kept), default=-1)
        head = {"clients": list(self._names), "seed": self._seed}
        self._path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(self._path, b"".join(_line(one) for one in (head, *map(self._row, kept))))

    def add(self, round_idx: int, flights: Iterable[Flight]) -> None:
        """Append the ends of a round's tasks, in order."""
        ended = [*flights]
        rows = [
            Arrival(round_idx, self._order + n, one.client, one.version, one.lost, len(ended)) for n, one in enumerate(ended)
        ]
        self._order += len(rows)
        with self._path.open("ab") as file:
            file.writelines(_line(self._row(one)) for one in rows)

    def _row(self, one: Arrival) -> dict[str, Any]:
        ends = {"round": one.round_idx, "order": one.order, "site": self._names[one.client], "client": one.client}
        return {**ends, "version": one.version, "lost": one.lost, "of": one.of}


def _line(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content).encode() + b"\n"


def _read(path: Path) -> tuple[Mapping[str, Any], list[Arrival]]:
    """Return the first line of a file, and the ends of tasks in order; a killed server may leave half a line.

    Raises:
        ConfigurationError: if a line cannot be read.
    """
    content = path.read_bytes()
    lines = content[: content.rfind(b"\n") + 1].splitlines()
    try:
        head = json.loads(lines[0])
        if not isinstance(head["clients"], list) or not isinstance(head["seed"], int):
            raise TypeError
    except (ValueError, LookupError, TypeError) as error:
        raise ConfigurationError(
            f"'{path}' does not begin with a line of clients and a seed. Use the {NAME} of a run."
        ) from error
    found = []
    for number, line in enumerate(lines[1:], 2):
        try:
            row = json.loads(line)
            one = Arrival(row["round"], row["order"], row["client"], row["version"], row["lost"], row["of"])
            numbers = (one.round_idx, one.order, one.client, one.version, one.of)
            fits = all(type(value) is int and value >= 0 for value in numbers)
            if not fits or type(one.lost) is not bool or not one.client < len(head["clients"]):
                raise TypeError
        except (ValueError, LookupError, TypeError) as error:
            raise ConfigurationError(f"Line {number} of '{path}' is not an arrival. Copy the file again.") from error
        found.append(one)
    return head, sorted(found)


def _complete(path: Path, arrivals: Sequence[Arrival]) -> tuple[Arrival, ...]:
    """Return the arrivals without a last round that a kill cut off.

    Raises:
        ConfigurationError: if a line is missing, without which the run would have other bits.
    """
    missing = next((place for place, one in enumerate(arrivals) if one.order != place), None)
    if missing is not None:
        raise ConfigurationError(
            f"{_REPLAY} is '{path}', which lacks the end of task {missing}, or has one twice. Copy it again."
        )
    last = [one for one in arrivals if one.round_idx == arrivals[-1].round_idx]
    return tuple(arrivals[: -len(last)] if last and len(last) != last[0].of else arrivals)


@dataclass(frozen=True)
class Recording:
    """Hold the arrivals of a run, to be repeated.

    Attributes:
        arrivals: the ends of its tasks, in order.
    """

    arrivals: tuple[Arrival, ...]

    @classmethod
    def read(cls, path: Path, num_clients: int, seed: int, buffer: int) -> Recording:
        """Return the arrivals of a run with the same clients and seed.

        Raises:
            ConfigurationError: if the file cannot be read, or belongs to another run.
        """
        if not path.is_file():
            raise ConfigurationError(f"{_REPLAY} is '{path}', which is not a file. Name the {NAME} in a run's folder.")
        head, arrivals = _read(path)
        for what, there, here in (("clients", len(head["clients"]), num_clients), ("seed", head["seed"], seed)):
            if there != here:
                raise ConfigurationError(
                    f"{_REPLAY} is '{path}', whose '{what}' is {there}, but this run has {here}. Set the same, or another file."
                )
        recording = cls(_complete(path, arrivals))
        recording._require_possible(path, buffer)
        return recording

    def _require_possible(self, path: Path, buffer: int) -> None:
        """Refuse a file whose tasks cannot have run as it says: one at a time at each client, and none twice.

        Raises:
            ConfigurationError: naming the round.
        """
        last: dict[int, int] = {}
        sizes = Counter(one.round_idx for one in self.arrivals if not one.lost)
        for one in self.arrivals:
            updates = sizes[one.round_idx]
            problem = f"has {updates} updates, but 'federation.asynchronous.buffer' is {buffer}" if updates > buffer else ""
            if not last.get(one.client, -1) < one.version <= one.round_idx:
                problem = f"has a task of client {one.client} from model {one.version}, which it cannot have begun"
            if problem:
                raise ConfigurationError(
                    f"{_REPLAY} is '{path}', where round {one.round_idx} {problem}. Use the file of one run."
                )
            last[one.client] = one.round_idx

    @property
    def rounds(self) -> int:
        """Return the number of complete rounds from the first one on."""
        known = {one.round_idx for one in self.arrivals if not one.lost}
        return next(number for number in range(len(known) + 1) if number not in known)

    def of(self, round_idx: int) -> list[Arrival]:
        """Return the ends of a round's tasks, in order."""
        return [one for one in self.arrivals if one.round_idx == round_idx]

    def after(self, round_idx: int) -> EventQueue:
        """Return the tasks that have begun by a round and end later."""
        later = (one for one in self.arrivals if one.version <= round_idx < one.round_idx)
        return EventQueue(0, tuple(Flight(one.order, one.client, one.version, one.lost) for one in later))
