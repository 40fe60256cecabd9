"""Processes of their own, for what only they can show: copies of one that has imported everything already."""

import os
import runpy
import signal
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path

import torch
from lightning.pytorch.utilities import rank_zero_only

from fl_lightning.compat.python import run_exit_functions
from fl_lightning.studies.execution import context, kill

SCRIPT = Path(__file__).with_name("run_federation.py")


@dataclass
class Launched:
    """A process, and the end of the pipe that it and its children print to."""

    process: BaseProcess
    pipe: Connection

    def kill(self, number: int = signal.SIGKILL) -> None:
        assert self.process.pid is not None
        kill(self.process.pid, number)


def launch(arguments: Sequence[str], limit: int, folder: Path, expect: int | Sequence[int] = 0, ranks: int = 1) -> str:
    """Run what would be ``python <arguments>``, and return what it and its children printed.

    Args:
        arguments: a script and its arguments, or ``-m``, a module and its arguments.
        limit: seconds; processes that hang are killed, not waited for.
        folder: where they run.
        expect: the exit status, or that of each rank.
        ranks: how many processes; they find each other as those of ``torchrun`` do.
    """
    begun = [start(arguments, folder, place) for place in _places(ranks)]
    said = finish(begun, limit)
    assert [one.process.exitcode for one in begun] == ([expect] * ranks if isinstance(expect, int) else [*expect]), said
    return said


def start(arguments: Sequence[str], folder: Path, environment: Mapping[str, str] | None = None) -> Launched:
    """Begin a process that runs what would be ``python <arguments>``."""
    reader, writer = Pipe(duplex=False)
    path = os.pathsep.join(sys.path)  # for processes that it starts
    whole = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", **(environment or {})}
    process = context().Process(target=_enter, args=(list(arguments), whole, folder, writer))
    process.start()
    writer.close()
    return Launched(process, reader)


def finish(begun: Sequence[Launched], limit: float) -> str:
    """Return what processes print until they and their children have ended."""
    end = time.monotonic() + limit
    said = {one.pipe: b"" for one in begun}
    open_pipes = list(said)
    while open_pipes and time.monotonic() < end:
        for pipe in wait(open_pipes, end - time.monotonic()):
            assert isinstance(pipe, Connection)
            part = os.read(pipe.fileno(), 2**16)
            said[pipe] += part
            if not part:
                open_pipes.remove(pipe)
    for one in begun:
        if open_pipes:
            one.kill()
        one.process.join()
        one.pipe.close()
    text = b"".join(said.values()).decode(errors="replace")
    assert not open_pipes, f"Not over after {limit} seconds: {text}"
    return text


def _enter(arguments: list[str], environment: dict[str, str], folder: Path, sink: Connection) -> None:
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    for stream in (sys.stdout, sys.stderr):
        os.dup2(sink.fileno(), stream.fileno())
    sink.close()
    torch.set_num_threads(1)  # OMP_NUM_THREADS was read long ago, and so was the rank
    rank_zero_only.rank = int(environment.get("RANK") or environment.get("SLURM_PROCID") or 0)  # type: ignore[attr-defined]
    try:
        if arguments[0] == "-m":
            sys.argv = list(arguments[1:])
            runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        else:
            sys.argv = list(arguments)
            runpy.run_path(arguments[0], run_name="__main__")
    finally:
        run_exit_functions()  # multiprocessing leaves them out


def _places(ranks: int) -> list[dict[str, str]]:
    """Return the environment of each rank, as ``torchrun`` sets it."""
    if ranks == 1:
        return [{}]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "TORCHELASTIC_RUN_ID": "tests", "GROUP_RANK": "0"}
    sizes = {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks)}
    return [{**common, **sizes, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(ranks)]
