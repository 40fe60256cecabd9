"""Real processes of Flower whose sites send nothing but masked words. Run with ``-m flower``."""

import contextlib
import os
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from federation_demo import DATA, Federation, wait_for
from flower_processes import LONG, MARKS, descendants, federated, same_as_simulated, start, told

pytestmark = MARKS
MASKED = ("--federation.secure_aggregation.threshold", "0.67")
POLICY = DATA + "  tells: [examples, steps, loss]\n  update: {masks: {peers: peers, lost: 1}}\n"


@contextlib.contextmanager
def masked(folder: Path, sites: int) -> Iterator[Federation]:
    """Run a server and some sites that require masks and have each other's public keys."""
    names = [f"hospital_{letter}" for letter in "abcdefghij"[:sites]]
    rows = max(600, 260 * sites)  # so that no site lacks a class
    with federated(folder, names, rows, POLICY, starts=False) as federation:
        for name in names:
            shutil.copytree(federation.folder / "server", federation.folder / name / "peers", ignore=all_but_keys)
            federation.start_site(name)
        yield federation


def all_but_keys(_: Any, names: list[str]) -> list[str]:
    return [name for name in names if not name.endswith(".pub")]


@pytest.fixture(scope="module")
def three(tmp_path_factory) -> Iterator[Federation]:
    with masked(tmp_path_factory.mktemp("three"), 3) as federation:
        yield federation


@pytest.fixture
def ten(tmp_path) -> Iterator[Federation]:
    with masked(tmp_path, 10) as federation:
        yield federation


def same_as_without_masks(federation: Federation, name: str, fit: Any, *arguments: str, sites: int | None = None) -> bool:
    """Simulate a run of the first sites without masks, beside the real one, and compare the weights at the end."""
    server = federation.folder / "server"
    for site in federation.names[:sites]:
        (server / f"of {name}").mkdir(exist_ok=True)
        shutil.copy(server / "all" / f"{site}.csv", server / f"of {name}")
    return same_as_simulated(federation, fit, name, "--data.datamodule.path", f"of {name}", *arguments)


TWO = ("--trainer.max_epochs", "2")


def test_masked_sites_give_the_bits_of_the_simulation_without_masks(three):
    fit = start(three, "masked", *TWO, *MASKED)
    assert same_as_without_masks(three, "masked", fit, *TWO)


def test_sites_that_are_killed_leave_the_bits_of_the_others(ten):
    """Of ten, one after its masked update, which the sum has, and in the next run one in its training, which the sum lacks."""
    skip = (*MASKED, "--federation.faults.policy", "skip", "--federation.pool.timeout", "30")
    once = ("--trainer.max_epochs", "1", "--seed_everything", "1", *LONG)  # sites open a model with one list
    fit = training(ten, "delivered", *once, *skip)
    last = descendants(ten.sites["hospital_j"].pid)["worker"]
    os.kill(last, signal.SIGSTOP)  # the round waits for it, so that the other's update arrives
    time.sleep(5)
    kill(ten, "hospital_a")
    os.kill(last, signal.SIGCONT)
    assert same_as_without_masks(ten, "delivered", fit, *once)
    ten.start_site("hospital_a")
    fit = training(ten, "killed", *TWO, *LONG, *skip)
    kill(ten, "hospital_j")
    assert same_as_without_masks(ten, "killed", fit, *TWO, *LONG, sites=9)


def training(federation: Federation, name: str, *arguments: str) -> Any:
    """Start a fit, and return when the smallest site has trained and the largest one trains."""
    trained = told(federation.folder / "hospital_a" / "site.log", "Round 0: trained.")
    fit = start(federation, name, *arguments)
    wait_for(lambda: trained() or fit.poll() is not None, federation.life, "the first training")
    return fit


def kill(federation: Federation, name: str) -> None:
    """Kill a site with its SuperNode and its worker, so that none of them can say anything."""
    children = descendants(federation.sites[name].pid)
    for pid in (federation.sites[name].pid, *children.values()):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    federation.sites[name].wait(10)
