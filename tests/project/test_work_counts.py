"""What a step, a client and a round ask of torch and Python: counts, never times, which an added operation or read changes."""

from functools import cache

import lightning
import pytest
import torch
from benchmark_counts import KINDS, PARTS, work_of
from packaging.version import Version

BESIDES_HAND = {
    "fabric": {
        "step": {"operators": -12, "launches": -10, "reads": 0, "calls": 0},
        "client": {"operators": 27, "launches": 6, "reads": 3, "calls": 705},
        "round": {"operators": 225, "launches": 64, "reads": 4, "calls": 1680},
    },
    "trainer": {
        "step": {"operators": -9, "launches": -8, "reads": 0, "calls": 450},
        "client": {"operators": 37, "launches": 10, "reads": 9, "calls": 2630},
        "round": {"operators": 225, "launches": 64, "reads": 4, "calls": 1680},
    },
}
"""The most that an engine may ask for beyond the loop by hand, which depends on the release of torch as well."""
TOGETHER = {
    "step": {"operators": 226, "launches": 101, "reads": 0, "calls": 2185},
    "client": {"operators": 52, "launches": 13, "reads": 2, "calls": 365},
    "round": {"operators": 294, "launches": 93, "reads": 8, "calls": 3800},
}
"""The same of ``stacked``: each step is one of all clients, and a round compares what the module holds before and after it."""


COUNTED_WITH = {torch: "2.15", lightning: "2.6.6"}
counted_here = pytest.mark.skipif(
    any(Version(package.__version__) < Version(release) for package, release in COUNTED_WITH.items()),
    reason="older releases of torch and lightning ask for more",
)


@cache
def by_hand() -> dict[str, dict[str, int]]:
    return work_of("hand")


def too_much(engine: str, found: dict[str, dict[str, int]], budget: dict[str, dict[str, int]]) -> list[str]:
    return [
        f"{engine}: {found[part][kind]} {kind} in a {part}, but the budget is {budget[part][kind]}"
        for part in PARTS
        for kind in KINDS
        if found[part][kind] > budget[part][kind]
    ]


@counted_here
@pytest.mark.parametrize("engine", BESIDES_HAND)
def test_the_budget_beyond_the_loop_by_hand(engine):
    """'python tools/benchmark.py counts' prints all counts. Raise a number only for a reason, and lower it where you can."""
    found, hand = work_of(engine), by_hand()
    more = {part: {kind: found[part][kind] - hand[part][kind] for kind in KINDS} for part in PARTS}
    assert not too_much(engine, more, BESIDES_HAND[engine])


@counted_here
def test_the_budget_of_clients_side_by_side():
    assert not too_much("stacked", work_of("stacked"), TOGETHER)
