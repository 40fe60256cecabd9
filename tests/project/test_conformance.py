"""The driver of docs/conformance.md, on what this environment has: the papers' listings and byzfl."""

import sys
from dataclasses import replace

import conformance
import papers_peer  # conformance knows where it lies
import pytest


@pytest.fixture(scope="module")
def runs():
    return conformance.run_ours(["Krum", "median"])


def test_our_weights_are_those_of_the_papers_and_of_byzfl(runs, tmp_path):
    for algorithm, (case, mine) in runs.items():
        assert max(conformance.compare(case, mine, papers_peer.RUNS[algorithm](case))) < 1e-12, algorithm
        conformance.save(case, tmp_path / f"case_{algorithm}.json")
    conformance.run_peer("byzfl", sys.executable, tmp_path)
    rows = conformance.rows_of("byzfl", tmp_path, runs)
    assert {row.algorithm: row.verdict for row in rows} == {"Krum": "explained", "median": "equal"}  # one neighbour more


def test_a_small_departure_is_seen(runs):
    case, mine = runs["median"]
    first, last = conformance.compare(case, mine, replace(mine, weights=[weights + 1e-5 for weights in mine.weights]))
    assert conformance.Row("median", "other", first, last).verdict == "differs"
