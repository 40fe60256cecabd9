"""Does an algorithm compute what its paper and other packages compute? The same rounds here and there, in float64.

python tools/conformance.py                                    # the papers' listings and byzfl, in this environment
python tools/conformance.py --peer fluke=/envs/fluke/bin/python --peer flwr=/envs/flwr/bin/python

Each peer's adapter (tools/conformance_peers) runs in that peer's environment, reads case_*.json and writes result_*.json.
"""

from __future__ import annotations

import argparse
import logging
import os
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

ADAPTERS = Path(__file__).parent / "conformance_peers"
sys.path.insert(0, str(ADAPTERS))

import cases  # noqa: E402
import ours  # noqa: E402
from common import Case, Result, Vector, load_result, save  # noqa: E402

TOLERANCE = 1e-6


@dataclass(frozen=True)
class Row:
    """One algorithm of one peer, beside ours.

    Attributes:
        first: the largest difference of weights after round 1, relative to how far they have moved from the start.
        last: the same after the last round, and of the clients' own models.
        explained: the difference that is left with those lines of the peer changed that the documentation names, or, where it
            is the paper's algorithm that has the peer's lines, between that and the peer; None without any.
        error: why the peer could not run it.
    """

    algorithm: str
    peer: str
    first: float = float("nan")
    last: float = float("nan")
    explained: float | None = None
    error: str = ""

    @property
    def verdict(self) -> str:
        if self.error:
            return f"does not run: `{self.error[:70]}`"
        if max(self.first, self.last) <= TOLERANCE:
            return "equal"
        return "explained" if self.explained is not None and self.explained <= TOLERANCE else "differs"


def difference(mine: Vector, other: Vector, start: Vector) -> float:
    """The largest difference, relative to the largest change since the start."""
    if mine.shape != other.shape:
        return float("inf")
    return float(np.abs(mine - other).max() / max(np.abs(mine - start).max(), 1e-12))


def compare(case: Case, mine: Result, other: Result) -> tuple[float, float]:
    """Differences after round 1 and after the last round; the latter covers the clients' own models, which both must have."""
    start = case.initial[ours.shared_entries(case)]
    first, last = (difference(_shared(case, mine.weights[i]), _shared(case, other.weights[i]), start) for i in (0, -1))
    mine_own, other_own = mine.own or {}, other.own or {}
    if mine_own.keys() != other_own.keys():
        return first, float("inf")
    return first, max([last, *(difference(own, other_own[k], np.zeros_like(own)) for k, own in mine_own.items())])


def _shared(case: Case, weights: Vector) -> Vector:
    shared = ours.shared_entries(case)
    return weights[shared] if len(weights) == len(shared) else weights


def run_peer(peer: str, python: str, folder: Path, limit: float = 300) -> None:
    """Run an adapter on all cases of a folder, in the peer's environment."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [python, str(ADAPTERS / f"{peer}_peer.py"), str(folder)]
    subprocess.run(command, check=True, env=environment, cwd=folder, capture_output=True, timeout=limit)


def rows_of(peer: str, folder: Path, runs: dict[str, tuple[Case, Result]]) -> list[Row]:
    """Read what a peer has written."""
    rows = []
    for algorithm, (case, mine) in runs.items():
        found, changed, explained = (folder / f"{kind}_{algorithm}.json" for kind in ("result", "changed", "explained"))
        after = compare(case, mine, load_result(changed))[1] if changed.exists() else None
        if explained.exists():
            after = compare(case, load_result(explained), load_result(found))[1]
        if found.exists():
            rows.append(Row(algorithm, peer, *compare(case, mine, load_result(found)), after))
        elif (error := found.with_suffix(".txt")).exists():
            last = error.read_text(encoding="utf-8").strip().splitlines()[-1]
            rows.append(Row(algorithm, peer, explained=after, error=last))
    return rows


def run_ours(algorithms: Sequence[str]) -> dict[str, tuple[Case, Result]]:
    """Run each algorithm with this package; the cases then have its cohorts."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {name: ours.run(cases.build(name), cases.ROUNDS, cases.COHORT) for name in algorithms}


def conformance(algorithms: Sequence[str], peers: dict[str, str]) -> list[Row]:
    """Run the algorithms here and in each peer's Python, and return a row for each that a peer has."""
    runs, rows = run_ours(algorithms), []
    for peer, python in peers.items():
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            for algorithm, (case, _) in runs.items():
                save(case, folder / f"case_{algorithm}.json")
            run_peer(peer, python, folder)
            version = (folder / "version.txt").read_text(encoding="utf-8")
            title = "the paper" if peer == "papers" else f"{peer} {version}"
            rows += rows_of(title, folder, runs)
    return sorted(rows, key=lambda row: list(runs).index(row.algorithm))


def table(rows: Sequence[Row]) -> str:
    """A Markdown table."""
    lines = ["| algorithm | peer | after 1 round | after 3 rounds | explained | verdict |", "|---|---|---|---|---|---|"]
    for row in rows:
        numbers = ["" if value is None or np.isnan(value) else f"{value:.0e}" for value in (row.first, row.last, row.explained)]
        lines.append("| " + " | ".join([row.algorithm, row.peer, *numbers, row.verdict]) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=PYTHON", help="a peer and its Python")
    parser.add_argument("--algorithm", action="append", choices=list(cases.SETTINGS), help="only these; all by default")
    args = parser.parse_args()
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    peers = {"papers": sys.executable, "byzfl": sys.executable} | dict(peer.split("=", 1) for peer in args.peer)
    print(table(conformance(args.algorithm or list(cases.SETTINGS), peers)))


if __name__ == "__main__":
    main()
