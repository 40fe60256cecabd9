"""The federation of real processes that the tests of Flower share: one server and three sites over TLS, with keys."""

import contextlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from federation_demo import DATA, ELSEWHERE, NAMES, Federation, digits, same_bits, wait_for, weights

from fl_lightning.cli.federation_cli import main
from fl_lightning.compat.flower import FLOWER, installed_version

MARKS = [
    pytest.mark.flower,
    pytest.mark.timeout(900),  # with the start of all processes, on a busy machine
    pytest.mark.skipif(installed_version() != FLOWER, reason="needs flwr of the tested minor version"),
    pytest.mark.skipif(sys.platform != "linux", reason="starts processes that end with their parent"),
]
LONG = ("--federation.local.max_epochs", "400", "--federation.local.engine", "fabric")
"""A round of two seconds or more, in which something can be killed."""


@contextlib.contextmanager
def federated(folder: Path, names: Sequence[str] = NAMES, rows: int = 600, data: str = DATA, starts: bool = True) -> Any:
    """Run a server and registered sites; ``starts`` is whether the sites are started."""
    federation = Federation(folder, names, life=240)
    federation.prepare(*digits(rows), test=100, data=data)
    try:
        federation.serve()
        federation.register()
        for name in names if starts else ():
            federation.start_site(name)
        yield federation
    finally:
        federation.stop()


@pytest.fixture(scope="module")
def running(tmp_path_factory) -> Iterator[Federation]:
    policy = "  tells: [examples, steps, loss, evaluation/training]\n  min_rows: 1\n"
    with federated(tmp_path_factory.mktemp("federation"), data=DATA + policy) as federation:
        yield federation


@pytest.fixture
def federation(running) -> Federation:
    """Return the federation with all its processes running, whatever the test before has killed."""
    if running.server is None or running.server.poll() is not None:
        running.serve()
    for name, process in running.sites.items():
        if process.poll() is not None:
            running.start_site(name)
    return running


def kill(process: subprocess.Popen | None) -> None:
    assert process is not None
    process.kill()
    process.wait(10)


def start(federation: Federation, name: str, *arguments: str) -> subprocess.Popen:
    return federation.start_fit("--trainer.default_root_dir", name, *arguments)


def ended(federation: Federation, process: subprocess.Popen) -> str:
    status = process.wait(federation.life)
    log = (federation.folder / "server" / "fit.log").read_text()
    assert status == 0, log
    return log


def same_as_simulated(
    federation: Federation, process: subprocess.Popen, name: str, *arguments: str, config: str = "config.yaml"
) -> bool:
    """Simulate, in this process, while the real fit runs, and compare the weights at its end."""
    with contextlib.chdir(federation.folder / "server"):
        main(["fit", "--config", config, "--trainer.default_root_dir", f"simulated {name}", *arguments])
        ended(federation, process)
        return same_bits(weights(Path(f"simulated {name}")), weights(Path(name)))


def as_simulated(federation: Federation, name: str, *arguments: str, resumed: Sequence[str] = ()) -> bool:
    """Fit over the network, in this process, then simulate, and compare the weights."""
    common = ("fit", "--config", "config.yaml", *arguments, "--trainer.default_root_dir")
    with contextlib.chdir(federation.folder / "server"):
        main([*common, name, *ELSEWHERE, *resumed])
        main([*common, f"simulated {name}"])
        return same_bits(weights(Path(f"simulated {name}")), weights(Path(name)))


def resumed_as_simulated(federation: Federation, name: str, *arguments: str) -> bool:
    """Resume a fit that has died, and compare its weights with those of a simulation that was not interrupted."""
    return as_simulated(federation, name, *arguments, resumed=("--ckpt_path", "last"))


def told(path: Path, text: str) -> Callable[[], bool]:
    """Return a condition: that a text was added to a log since now."""
    before = len(path.read_text()) if path.exists() else 0
    return lambda: path.exists() and text in path.read_text()[before:]


def descendants(pid: int) -> dict[str, int]:
    """Return the children of a process: the SuperNode and the worker of a site."""
    found = {}
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        line = Path(f"/proc/{child}/cmdline").read_text()
        found["worker" if "flower.site.worker" in line else "SuperNode"] = int(child)
    return found


def in_a_round(federation: Federation, name: str, *arguments: str, round_idx: int = 1) -> subprocess.Popen:
    """Start a fit, and return while the last site, which has most rows, trains in a round."""
    site = federation.folder / federation.names[-1]
    begun = told(site / f"site_{site.name}" / "audit.jsonl", f'"orders": [{{"train": {{"round": {round_idx},')
    trained = told(site / "site.log", f"Round {round_idx}: trained.")
    process = start(federation, name, *LONG, *arguments)
    wait_for(lambda: begun() or process.poll() is not None, federation.life, f"the training of round {round_idx}")
    time.sleep(0.3)
    assert process.poll() is None, "The fit has ended."
    assert not trained(), "The round is over before anything happened in it. Make 'LONG' longer."
    return process
