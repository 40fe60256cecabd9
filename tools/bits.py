"""A fingerprint of every result: two versions of the package that compute the same give the same file.

    python tools/bits.py before.json                                  # every algorithm in every way, 4 minutes
    python tools/bits.py after.json --only fedavg scaffold --ways trainer bytes
    python tools/bits.py diff before.json after.json                  # one line for each difference; exit status 1 with any

The algorithms are those of tests/support/algorithms.py. The ways are the engines, two ranks, clients that get everything as
bytes, and a run that is resumed after two rounds.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import logging
import os
import signal
import sys
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "support"))
sys.path.insert(0, str(Path(__file__).parent.parent))  # this version, not an installed one
os.environ["OMP_NUM_THREADS"] = "1"

import algorithms
import ways
from bits_record import differences

LIMIT_S = 60
WAYS = (*ways.ENGINES, "two ranks", "bytes", "resumed")


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


def one_rank(name: str, way: str) -> ways.Record:
    """Return the record of a run in this process; one that fails is recorded by the class of its error."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        try:
            with limited(LIMIT_S), contextlib.redirect_stdout(io.StringIO()):
                if way == "bytes":
                    return ways.over_bytes(name, folder).record
                if way == "resumed":
                    first = ways.fit(name, folder / "first", rounds=ways.BEFORE)
                    last = str(folder / "first" / "last.ckpt")
                    return ways.fit(name, folder / "second", ckpt_path=last, before=first.rounds).record
                return ways.fit(name, folder, way).record
        except Exception as error:
            return ways.refusal(error)


def bits(names: Sequence[str], ways_: Sequence[str]) -> dict[str, dict[str, ways.Record]]:
    """Return the record of each algorithm in each way."""
    found = {name: {way: one_rank(name, way) for way in ways_ if way != "two ranks"} for name in names}
    if "two ranks" in ways_:
        with tempfile.TemporaryDirectory() as folder:
            for name, record in ways.two_ranks(names, Path(folder)).items():
                found[name]["two ranks"] = record
    return found


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
    ways.prepare_process()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, metavar="OUT.json")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="only these algorithms")
    parser.add_argument("--ways", nargs="+", default=WAYS, choices=WAYS)
    args = parser.parse_args()
    found = bits(args.only or list(algorithms.ALGORITHMS), args.ways)
    args.out.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
