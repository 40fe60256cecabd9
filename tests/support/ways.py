"""The ways to train a case of algorithms.py, and what a run leaves behind: of tests/test_matrix.py and tools/bits.py.

Processes of their own run it as a script: one of two ranks, and one that trains cases until it is killed.
"""

import contextlib
import copy
import functools
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import algorithms
import bytes_pool
import lightning as L
import torch
from bits_record import Lines, Recorder, RoundRecord, digest, merged, of_checkpoint, texts
from federations import every_round, trainer, weights
from launching import finish, launch, start
from lightning.fabric.utilities import registry
from lightning.pytorch import Callback
from plain_training import InOrder, TurnsSeed
from torch import Tensor

from fl_lightning import FederatedOrchestrator, Storage
from fl_lightning.clients.client_files import ClientFiles

ROUNDS, BEFORE = 3, 2
"""The rounds of a run, and those before the checkpoint from which it is resumed."""
ENGINES = ("trainer", "fabric", "stacked")
BY_FILES = ("fedmedian", "scaffold", "personal")
"""Cases that on two ranks keep models and clients' state in files."""

Record = dict[str, Any]


@dataclass
class Run:
    """What a run leaves behind.

    Args:
        left: digests and texts of what there is at its end.
        rounds: what was recorded in each round.
        tensors: the final weights, what clients keep, and their scores.
        figures: what was logged at the end, without times.
        halfway: the checkpoint of the round after which it is resumed.
    """

    left: Record
    rounds: dict[int, RoundRecord]
    tensors: dict[str, Tensor]
    figures: dict[str, float]
    halfway: Path

    @property
    def record(self) -> Record:
        """Everything as digests and texts."""
        return {**self.left, **merged([self.rounds])}


class Halfway(Callback):
    """Keep the checkpoint after some rounds, from which a killed run would be resumed."""

    def __init__(self, folder: Path) -> None:
        self.last, self.kept = folder / "last.ckpt", folder / "halfway.ckpt"

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        if trainer.current_epoch == BEFORE and self.last.exists() and trainer.is_global_zero:
            shutil.copyfile(self.last, self.kept)


def fit(name: str, folder: Path, engine: str | None = None, **how: Any) -> Run:
    """Fit a case.

    Args:
        name: the case.
        folder: where it writes.
        engine: of local training; by default the case's.
        how: ``rounds``, ``ckpt_path``, ``before`` (the record of the rounds before it), ``workers`` (of remote clients), and
            flags of the Trainer.
    """
    rounds, ckpt_path, workers = how.pop("rounds", ROUNDS), how.pop("ckpt_path", None), how.pop("workers", None)
    recorder = Recorder()
    recorder.rounds |= copy.deepcopy(how.pop("before", {}))
    L.seed_everything(11, verbose=False)
    kind = bytes_pool.RemoteOrchestrator if workers else FederatedOrchestrator
    module, data, federation = algorithms.prepare(name, kind=kind)
    if engine:
        federation.local = replace(federation.local, engine=engine)
    if workers:
        federation.workers = workers
    if how and name in BY_FILES:
        federation.storage = Storage(memory=0.0)
    how |= {"logger": Lines(recorder), "enable_checkpointing": True, "default_root_dir": folder}
    halfway = Halfway(folder)
    run = trainer(rounds, federation, recorder, every_round(folder), halfway, **how)
    with recorder.watching(federation.strategy):
        run.fit(module, data, ckpt_path=ckpt_path)
    tensors, logged = algorithms.outcome(module, federation), texts(run.callback_metrics)
    left = {"weights": digest(weights(module)), "kept": digest(tensors), "logged at the end": logged}
    left["tables"] = {path.name: digest(path.read_bytes()) for path in sorted(folder.glob("*.csv"))}
    left["checkpoint"] = of_checkpoint(folder / "last.ckpt")
    return Run(left, recorder.rounds, tensors, {key: float(text) for key, text in logged.items()}, halfway.kept)


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


def over_bytes(name: str, folder: Path) -> Run:
    """Fit a case whose clients live in processes of their own, and get everything as bytes."""
    messages = Messages()

    def make() -> tuple[Any, Any]:
        module, _, federation = algorithms.prepare(name)
        return module, federation

    key = bytes_pool.SecretKey.from_seed(7)  # sites draw a secret one, for noise that cannot be repeated
    with patch.object(bytes_pool.SecretKey, "draw", lambda: key):
        workers = bytes_pool.Workers(make, algorithms.prepare(name)[1], algorithms.SIZES)
    try:
        with messages.watching():
            run = fit(name, folder, workers=workers)
    finally:
        workers.close()
    run.left["messages"] = messages.record()
    return run


def refusal(error: Exception) -> Record:
    """Return what is recorded of a run that fails."""
    return {"refused": type(error).__name__, "message": str(error)}


def two_ranks(names: Sequence[str], folder: Path) -> dict[str, Record]:
    """Return the record of each case on two ranks, which one launch trains."""
    out = folder / "ranks"
    launch([__file__, "rank", str(out), *names], 120 + 15 * len(names), folder, ranks=2)
    first, second = (torch.load(f"{out}.{number}", weights_only=False) for number in (0, 1))
    found = {}
    for name in names:
        (left, rounds), (other, more) = first[name], second[name]
        refused = next((one for one in (left, other) if "refused" in one), None)
        found[name] = refused or {**left, **merged([rounds, more])}
    return found


@contextlib.contextmanager
def slow_disk(name: str) -> Iterator[None]:
    """Let the first rank take its time with a case's files: the other one would be in its next round by now, and write some."""
    sweep = ClientFiles.sweep

    def late(files: ClientFiles, comm: Any, checkpoints: Any) -> None:
        time.sleep(0.5 if checkpoints is not None else 0)
        sweep(files, comm, checkpoints)

    with patch.object(ClientFiles, "sweep", late if name in BY_FILES else sweep):
        yield


def rank(out: str, *names: str) -> None:
    """Be one of two ranks, on this machine or as a node of its own, for all cases, and write what this rank saw."""
    nodes = 2 // int(os.environ["LOCAL_WORLD_SIZE"])
    found: dict[str, tuple[Record, dict[int, RoundRecord]]] = {}
    for name in names:
        try:
            with slow_disk(name):
                run = fit(name, Path(out).parent / name, devices=2 // nodes, num_nodes=nodes, strategy="ddp")
        except Exception as error:
            found[name] = refusal(error), {}
        else:
            found[name] = run.left, run.rounds
    torch.save(found, f"{out}.{os.environ['RANK']}")


def killed(names: Sequence[str], folder: Path, lives: Sequence[float]) -> dict[str, Record]:
    """Return what is left of each case, which one process trains after the other, and each goes on with the same command.

    Args:
        names: the cases.
        folder: where they write.
        lives: the seconds of processor time after which each process is killed; the last one is not.
    """
    statuses = []
    for life in (*lives, 0.0):
        process = start([__file__, "again", str(folder), str(life), *names], folder)
        said = finish([process], 120 + 15 * len(names))
        statuses.append(process.process.exitcode)
        assert statuses[-1] in (0, -signal.SIGPROF), said
    assert statuses[0] != 0
    assert statuses[-1] == 0
    return {name: json.loads((folder / f"{name}.json").read_text(encoding="utf-8")) for name in names}


def again(out: str, life: str, *names: str) -> None:
    """Train the cases that are not done, each from its last checkpoint."""
    signal.setitimer(signal.ITIMER_PROF, float(life))  # its signal ends a process at once and wherever it is, as SIGKILL does
    for name in names:
        done = Path(out) / f"{name}.json"
        if not done.exists():
            left = fit(name, Path(out) / name, ckpt_path="last").left
            part = done.with_suffix(".part")
            part.write_text(json.dumps(left), encoding="utf-8")
            part.replace(done)


def far_from_plain(name: str) -> float:
    """Return how far a federation of one client is from training as Lightning does it, as the largest difference of weights."""
    ends = []
    for federated in (True, False):
        torch.manual_seed(11)
        module, data, federation = algorithms.prepare(name, sizes=(sum(algorithms.SIZES),))
        module, source, epochs = module.double(), data.datamodule, federation.local.max_epochs
        source.train, source.val = ((x.double(), y) for x, y in (source.train, source.val))
        source.shuffle = False
        federation.local = replace(federation.local, precision="64-true", optimizer_state="kept")
        federation.clients_per_round = 1.0
        if federated:
            trainer(ROUNDS, federation, precision="64-true").fit(module, data)
        else:
            run = trainer(ROUNDS * epochs, TurnsSeed(epochs), precision="64-true")
            run.fit(module, InOrder(source.train, source.batch_size))
        ends.append(weights(module))
    one, other = ends
    assert one.keys() == other.keys()
    return max(float((one[key].double() - other[key].double()).abs().max()) for key in one)


def prepare_process() -> None:
    """Prepare a process that does nothing else: one thread, and Lightning reads all packages' metadata once, not each time."""
    torch.set_num_threads(1)
    patch.object(registry, "entry_points", functools.cache(registry.entry_points)).start()


if __name__ == "__main__":
    prepare_process()
    {"rank": rank, "again": again}[sys.argv[1]](*sys.argv[2:])
