"""A fingerprint of every result: two versions of the package that compute the same give the same file.

    python tools/bits.py before.json                                  # every algorithm in every way, 4 minutes
    python tools/bits.py after.json --only fedavg scaffold --ways trainer bytes
    python tools/bits.py pairs.json --pairs                           # which settings are refused together, 2 minutes
    python tools/bits.py diff before.json after.json                  # one line for each difference; exit status 1 with any

The algorithms are those of tests/support/algorithms.py. The ways are the engines, two ranks, clients that get everything as
bytes, and a run that is resumed after two rounds.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import io
import json
import logging
import os
import signal
import sys
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "support"))
sys.path.insert(0, str(Path(__file__).parent.parent))  # this version, not an installed one
os.environ["OMP_NUM_THREADS"] = "1"

import algorithms
import bytes_pool
import lightning as L
import torch
from bits_pairs import pairs
from bits_record import Lines, Recorder, digest, merged, of_checkpoint, texts
from federations import every_round, trainer, weights
from launching import launch
from lightning.fabric.utilities import registry

ROUNDS, BEFORE = 3, 2
"""The rounds of a run, and those before the checkpoint from which it is resumed."""
LIMIT_S = 60
WAYS = ("trainer", "fabric", "stacked", "two ranks", "bytes", "resumed")
BY_FILES = ("fedmedian", "scaffold", "personal")
"""Algorithms that on two ranks keep models and clients' state in files."""

Record = dict[str, Any]


@contextlib.contextmanager
def limited(seconds: int) -> Iterator[None]:
    """Raise an error in a run that hangs."""

    def stop(*_: Any) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def fit(name: str, recorder: Recorder, folder: Path, engine: str | None = None, **how: Any) -> Record:
    """Fit an algorithm and return what it left behind.

    Args:
        name: the algorithm.
        recorder: records its rounds.
        folder: where it writes.
        engine: of local training; by default the algorithm's.
        how: ``rounds``, ``ckpt_path``, ``workers`` (of remote clients), and flags of the Trainer.
    """
    rounds, ckpt_path, workers = how.pop("rounds", ROUNDS), how.pop("ckpt_path", None), how.pop("workers", None)
    L.seed_everything(11, verbose=False)
    module, data, federation = algorithms.prepare(name)
    if engine:
        federation.local = replace(federation.local, engine=engine)
    if workers:
        federation.workers = workers
    if how and name in BY_FILES:
        federation.memory_limit = 0.0
    how |= {"logger": Lines(recorder), "enable_checkpointing": True, "default_root_dir": folder}
    run = trainer(rounds, federation, recorder, every_round(folder), **how)
    with recorder.watching(federation.strategy):
        run.fit(module, data, ckpt_path=ckpt_path)
    kept = digest(algorithms.outcome(module, federation))
    left = {"weights": digest(weights(module)), "kept": kept, "logged at the end": texts(run.callback_metrics)}
    tables = {path.name: digest(path.read_bytes()) for path in sorted(folder.glob("*.csv"))}
    return {**left, "tables": tables, "checkpoint": of_checkpoint(folder / "last.ckpt")}


class Messages:
    """Count and digest what a server and its clients exchange, by kind, as if written anew in each run."""

    def __init__(self) -> None:
        self._found: dict[str, list[Any]] = {}
        self._first: int | None = None

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Note each message that is encoded or decoded at the server."""
        encode, decode = bytes_pool.to_bytes, bytes_pool.from_bytes

        def note(way: str, message: Any) -> None:
            content = encode(self._repeatable(message))
            self._found.setdefault(f"{way}: {type(message).__name__}", []).append(content)

        def sent(message: Any) -> bytes:
            note("to clients", message)
            content: bytes = encode(message)
            return content

        def received(content: bytes) -> Any:
            message = decode(content)
            note("from clients", message)
            return message

        with patch.object(bytes_pool, "to_bytes", sent), patch.object(bytes_pool, "from_bytes", received):
            yield

    def _repeatable(self, message: Any) -> Any:
        """Return a message without times and the session's id, and with versions, which a process counts, from 1."""
        if hasattr(message, "seconds"):
            return replace(message, seconds=0.0)
        changes: Record = {"session": ""} if hasattr(message, "session") else {}
        if hasattr(message, "version"):
            self._first = message.version if self._first is None else self._first
            counted = {name: getattr(message, name, 0) for name in ("version", "base")}
            changes |= {name: number - self._first + 1 for name, number in counted.items() if number}
        return replace(message, **changes)

    def record(self) -> Record:
        """Return number, bytes and digest of the messages of each kind."""
        found = {}
        for kind, contents in sorted(self._found.items()):
            found[kind] = {"messages": len(contents), "bytes": sum(map(len, contents)), "digest": digest(contents)}
        return found


def over_bytes(name: str, recorder: Recorder, folder: Path) -> Record:
    """Fit an algorithm whose clients live in processes of their own."""
    messages = Messages()

    def make() -> tuple[Any, Any]:
        module, _, federation = algorithms.prepare(name)
        return module, federation

    key = bytes_pool.SecretKey.from_seed(7)  # sites draw a secret one, for noise that cannot be repeated
    with patch.object(bytes_pool.SecretKey, "draw", lambda: key):
        workers = bytes_pool.workers_of(make, algorithms.prepare(name)[1], algorithms.SIZES)
    try:
        with patch.object(algorithms, "FederatedOrchestrator", bytes_pool.RemoteOrchestrator), messages.watching():
            left = fit(name, recorder, folder, workers=workers)
    finally:
        workers.close()
    return {**left, "messages": messages.record()}


def resumed(name: str, recorder: Recorder, folder: Path) -> Record:
    """Fit an algorithm in two halves, with nothing left of the first but its folder."""
    fit(name, recorder, folder / "first", rounds=BEFORE)
    return fit(name, recorder, folder / "second", ckpt_path=str(folder / "first" / "last.ckpt"))


def attempt(name: str, way: str, folder: Path, **flags: Any) -> tuple[Record, Recorder]:
    """Run an algorithm in one way; a run that fails is recorded by the class of its error."""
    recorder = Recorder()
    try:
        with limited(LIMIT_S), contextlib.redirect_stdout(io.StringIO()):
            if way == "bytes":
                return over_bytes(name, recorder, folder), recorder
            if way == "resumed":
                return resumed(name, recorder, folder), recorder
            return fit(name, recorder, folder, None if flags else way, **flags), recorder
    except Exception as error:
        return {"refused": type(error).__name__, "message": str(error)}, recorder


def one_rank(name: str, way: str) -> Record:
    """Return the record of a run in this process."""
    with tempfile.TemporaryDirectory() as folder:
        left, recorder = attempt(name, way, Path(folder))
    return left if "refused" in left else {**left, **merged([recorder.rounds])}


def rank(out: str, names: Sequence[str]) -> None:
    """Be one of two ranks, for all algorithms, and write what this rank saw."""
    number, found = int(os.environ["RANK"]), {}
    for name in names:
        folder = Path(out).parent / name
        found[name] = attempt(name, "two ranks", folder, devices=2, strategy="ddp")
    torch.save({name: (left, recorder.rounds) for name, (left, recorder) in found.items()}, f"{out}.{number}")


def two_ranks(names: Sequence[str]) -> dict[str, Record]:
    """Return the record of each algorithm on two ranks, which one launch trains."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "ranks"
        launch([__file__, "rank", str(out), *names], 30 + 15 * len(names), Path(folder), ranks=2)
        first, second = (torch.load(f"{out}.{number}", weights_only=False) for number in (0, 1))
    found = {}
    for name in names:
        (left, rounds), (other, more) = first[name], second[name]
        refusal = next((one for one in (left, other) if "refused" in one), None)
        found[name] = refusal or {**left, **merged([rounds, more])}
    return found


def bits(names: Sequence[str], ways: Sequence[str]) -> dict[str, dict[str, Record]]:
    """Return the record of each algorithm in each way."""
    found: dict[str, dict[str, Record]] = {name: {} for name in names}
    for name in names:
        for way in ways:
            if way != "two ranks":
                found[name][way] = one_rank(name, way)
    if "two ranks" in ways:
        for name, record in two_ranks(names).items():
            found[name]["two ranks"] = record
    return found


def differences(one: Any, other: Any, place: str = "") -> Iterator[str]:
    """Yield a line for each place in which two files differ, except the wording of refusals."""
    if isinstance(one, dict) and isinstance(other, dict):
        for key in [*one, *(key for key in other if key not in one)]:
            if key not in one or key not in other:
                yield f"{place}{key}: only in the {'first' if key in one else 'second'} file"
            elif key != "message":
                yield from differences(one[key], other[key], f"{place}{key} / ")
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for position, pair in enumerate(zip(one, other, strict=True)):
            yield from differences(*pair, f"{place}{position} / ")
    elif one != other:
        yield f"{place.removesuffix(' / ')}: {one} became {other}"


def diff(first: str, second: str) -> int:
    """Print the differences of two files, and return the exit status."""
    one, other = (json.loads(Path(path).read_text(encoding="utf-8")) for path in (first, second))
    lines = list(differences(one, other))
    print("\n".join(lines) or "no differences")
    return int(bool(lines))


def main() -> int:
    """Run the command that was typed."""
    if sys.argv[1:2] == ["diff"]:
        return diff(*sys.argv[2:])
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    once = functools.cache(registry.entry_points)
    patch.object(registry, "entry_points", once).start()  # Lightning reads the metadata of all packages for every Trainer
    if sys.argv[1:2] == ["rank"]:
        rank(sys.argv[2], sys.argv[3:])
        return 0
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, metavar="OUT.json")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="algorithms, or options of --pairs")
    parser.add_argument("--ways", nargs="+", default=WAYS, choices=WAYS)
    parser.add_argument("--pairs", action="store_true", help="record which settings are refused, alone and in pairs")
    args = parser.parse_args()
    found: dict[str, Any] = pairs(args.only) if args.pairs else bits(args.only or list(algorithms.ALGORITHMS), args.ways)
    args.out.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
