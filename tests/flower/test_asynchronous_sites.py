"""Asynchronous rounds with sites: updates arrive in any order, and a simulation repeats the run to the bit."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from sites_over_bytes import CHOOSE, HOOK, configuration, federate, prepare, same_bits, simulate


@pytest.fixture(autouse=True)
def _no_hook():
    yield
    HOOK.clear()
    CHOOSE.clear()


def rows(folder="real"):
    return [json.loads(line) for line in Path(folder, "arrivals.jsonl").read_text().splitlines()][1:]


def asynchronous(buffer, rounds, **federation):
    federation.setdefault("strategy", "FedAsync" if buffer == 1 else "FedBuff")
    config = configuration(asynchronous={"concurrency": 3, "buffer": buffer}, **federation)
    config["trainer"]["max_epochs"] = rounds
    return config


def arrive(*order):
    """Let the sites answer in an order, by their numbers; those that are missing wait."""
    left = list(order)
    CHOOSE["choose"] = lambda waiting: left.pop(0) if left else min(waiting)


def test_a_run_and_its_replay(tmp_path, monkeypatch):
    prepare(tmp_path, monkeypatch)
    arrive(0, 1, 0, 1, 0, 2, 1)
    config = asynchronous(1, 7)
    real = federate(config)
    assert [(r["round"], r["client"], r["version"]) for r in rows()] == [
        (0, 0, 0), (1, 1, 0), (2, 0, 1), (3, 1, 2), (4, 0, 3), (5, 2, 0), (6, 1, 4),
    ]
    assert same_bits(real, simulate(config, "again", "--federation.asynchronous.replay", "real/arrivals.jsonl"))
