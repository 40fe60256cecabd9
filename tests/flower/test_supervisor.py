"""The processes of a site: they are started again, end with their parent, and say why they ended."""

import itertools
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fl_lightning.flower.site import processes, worker
from fl_lightning.flower.site.processes import UNUSABLE, Child, Supervisor

linux = pytest.mark.skipif(sys.platform != "linux", reason="the kernel ends children with their parent")


def python(text: str, *options: str) -> list[str]:
    return [sys.executable, *options, "-c", text]


def supervised(child: Child, said: list[str], until: Callable[[], bool]) -> None:
    """Look after a child in a thread until a condition holds, and end it."""
    supervisor = Supervisor([child], said.append)
    thread = threading.Thread(target=supervisor.run)
    thread.start()
    end = time.monotonic() + 60
    while not until() and time.monotonic() < end:
        time.sleep(0.05)
    supervisor.stop()
    thread.join(20)
    assert not thread.is_alive()


@linux
@pytest.mark.slow
def test_a_child_that_stands_still_is_started_again(monkeypatch):
    """Also one that waits, for which Flower waits for ever. It is not ended while it gives signs, for 4 seconds each time."""
    monkeypatch.setattr(processes, "_SILENCE", 2.0)
    text = (
        "import os, sys, time; from pathlib import Path\n"
        "from fl_lightning.flower.site import processes; processes._BEAT = 0.1\n"
        "processes.give_signs_of_life(Path('alive')); time.sleep(4); open('runs', 'a').write('x')\n"
        f"os.kill(os.getpid(), {int(signal.SIGSTOP)}) if len(open('runs').read()) == 1 else time.sleep(60)"
    )
    said, runs, child = list[str](), Path("runs"), Child("worker", python(text), alive=Path("alive"))
    supervised(child, said, lambda: runs.exists() and len(runs.read_text()) >= 2)
    assert runs.read_text() == "xx"
    assert child.process is not None
    assert child.process.returncode == -signal.SIGTERM
    assert said[0] == "The worker gives no sign of life and is ended."
    assert said[-1] == "The worker ended with status -9; it starts again in 1 s."


@linux
def test_a_child_that_ends_without_an_error_is_explained():
    """As Flower's SuperNode does if the clocks differ."""
    said: list[str] = []
    child = Child("SuperNode", python("", "-S"), explain=lambda: "clock: An hour.")
    supervised(child, said, lambda: len(said) >= 2)
    assert said[:2] == ["The SuperNode ended with status 0; it starts again in 1 s.", "The cause may be this. clock: An hour."]


def test_what_a_child_leaves_for_the_staff_and_the_cause_of_its_end_are_told_once():
    said, left = list[str](), Path("trouble")
    left.write_text("The server does not answer.")
    causes = iter(["", "clock: An hour.", "clock: An hour.", "port: No."])
    supervisor, child = Supervisor([], said.append), Child("SuperNode", [], tells=left, next_start=float("inf"))
    for _ in range(4):
        supervisor._look_after(child)
        supervisor._explain(child, lambda: next(causes))
    assert said == ["The server does not answer.", "The cause may be this. clock: An hour.", "The cause may be this. port: No."]


def test_a_worker_that_cannot_use_its_data_ends_the_site():
    said: list[str] = []
    running = Child("other", python("import time; time.sleep(60)", "-S"))
    ending = Child("worker", python(f"import sys; sys.exit({UNUSABLE})", "-S"), last=UNUSABLE)
    assert Supervisor([running, ending], said.append).run()
    assert said == []
    assert running.process is not None
    assert running.process.poll() is not None


def test_a_process_that_always_crashes_is_started_for_ever(monkeypatch):
    """2.0 ** 1024 is no float: a site would have ended after a night of crashes."""
    said: list[str] = []
    child = Child("worker", [])
    monkeypatch.setattr(child, "start", lambda: None)
    supervisor = Supervisor([child], said.append)
    for _ in range(1100):
        child.process, child.started = SimpleNamespace(poll=lambda: 1), time.monotonic()  # type: ignore[assignment]
        supervisor._look_after(child)
    waits = [line.removeprefix("The worker ended with status 1; it starts again in ") for line in said]
    assert waits == [f"{wait} s." for wait in (1, 2, 4, 8, *[15] * 1096)]


def test_a_worker_asks_often_after_an_order_and_seldom_later(monkeypatch):
    clock, asked, said = [0.0], list[float](), list[str]()
    monkeypatch.setattr(worker.os, "getppid", lambda: len(asked) >= 60)
    monkeypatch.setattr(worker.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(worker.time, "sleep", lambda seconds: clock.__setitem__(0, clock[0] + seconds))

    class Link:
        @contextmanager
        def task(self) -> Any:
            asked.append(clock[0])
            yield None

    worker._work(Link(), None, None, said.append)
    pauses = [later - earlier for earlier, later in itertools.pairwise(asked)]
    assert pauses[:50] == pytest.approx([0.1] * 50)
    assert all(pause < 0.021 * moment for pause, moment in zip(pauses[51:], asked[51:], strict=False))
    assert not said
