"""Small faults in the package, which cosmic-ray drew once: find out which of them no test notices.

    pytest -n 2 --cov=fl_lightning --cov-context=test --junitxml=junit.xml        # needs pytest-cov; which test runs which line
    python tools/mutants.py run tests/baseline/mutants.json --only fl_lightning/data
    python tools/mutants.py show tests/baseline/mutants.json

'run' gives each mutant the tests that run its lines, first those that run little else, and stops at the first that fails.
A test that takes the sum of their times above 100 s is left out. The results replace those in the file.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue
from typing import Any

ROOT = Path(__file__).parent.parent
BUDGET = 100.0
"""Seconds of the tests of a mutant."""


# ---------------------------------------------------------------- run


def times_of(junit: Path) -> dict[str, float]:
    """Return the seconds of each test by 'folder.file::name'."""
    cases = ET.parse(junit).iter("testcase")
    return {f"{case.get('classname')}::{case.get('name')}": float(case.get("time", 0)) for case in cases}


def tests_now(folder: Path) -> set[str]:
    """Return the names of all tests that pytest finds."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "tests"]
    listed = subprocess.run(command, cwd=folder, env=_environment(folder), capture_output=True, text=True, check=True).stdout
    return {line for line in listed.splitlines() if "::" in line}


def tests_of(mutant: dict[str, Any], coverage: list[Path], times: dict[str, float], known: set[str]) -> list[str]:
    """Return the tests that run a mutant's lines, those that run the fewest lines of the file first, few of each function."""
    lines = set(range(mutant["line"], mutant["line"] + mutant["before"].count("\n") + 1))
    ran = _that_run(mutant["file"], lines, coverage, known)
    if not ran:  # an import runs it, such as the head of a function: the tests that run what follows
        ran = _that_run(mutant["file"], set(range(max(lines), max(lines) + 15)), coverage, known)
    places = Counter[str]()
    order = list[tuple[int, int, str]]()
    for test in sorted(ran, key=lambda one: (ran[one], one)):
        function = test.partition("[")[0]
        order.append((places[function] // 3, ran[test], test))
        places[function] += 1
    chosen, seconds = [mutant["by"]] if mutant.get("by") in known else [], 0.0
    for _, _, test in sorted(order):
        file, _, name = test.partition("::")
        needed = times.get(f"{file.removesuffix('.py').replace('/', '.')}::{name}", 0.0)
        if seconds + needed <= BUDGET and test not in chosen:
            chosen.append(test)
            seconds += needed
    return chosen


def _that_run(file: str, lines: set[int], coverage: list[Path], known: set[str]) -> Counter[str]:
    """Return the known tests that run one of the lines, and how many lines of the file each runs."""
    from coverage.numbits import numbits_to_nums

    ran = Counter[str]()
    for path in coverage:
        with contextlib.closing(sqlite3.connect(path)) as data:
            rows = data.execute(
                "select context.context, line_bits.numbits from line_bits join context on context.id = context_id "
                "join file on file.id = file_id where file.path like ?",
                (f"%{file}",),
            ).fetchall()
        for context, bits in rows:
            numbers, test = set(numbits_to_nums(bits)), context.rpartition("|")[0]
            if test in known and numbers & lines:
                ran[test] += len(numbers)
    return ran


def _place(mutant: dict[str, Any], source: str) -> int | None:
    """Return where a mutant's lines begin now: the nearest place that has the same."""
    lines, wanted = source.splitlines(), mutant["before"].split("\n")
    found = [k for k in range(len(lines)) if lines[k : k + len(wanted)] == wanted]
    return min(found, key=lambda k: abs(k + 1 - mutant["line"]), default=None)


def _environment(folder: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}


def result_of(mutant: dict[str, Any], tests: list[str], folder: Path) -> dict[str, Any]:
    """Return whether one of the tests fails with the mutant in a copy of the project."""
    if not tests:
        return {"result": "not run by any test", "tests": 0}
    path = folder / mutant["file"]
    source = path.read_text(encoding="utf-8") if path.exists() else ""
    lines, low = source.splitlines(), _place(mutant, source)
    if low is None:
        return {"result": "the code is gone", "tests": 0}
    high = low + mutant["before"].count("\n") + 1
    path.write_text("\n".join([*lines[:low], *mutant["after"].splitlines(), *lines[high:]]) + "\n", encoding="utf-8")
    (folder / "tests.txt").write_text("\n".join(tests), encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-x", "-p", "no:cacheprovider", "--timeout", "60", "-rfE", "@tests.txt"]
    try:
        ended = subprocess.run(
            command, cwd=folder, env=_environment(folder), capture_output=True, text=True, timeout=4 * BUDGET
        )
    except subprocess.TimeoutExpired:
        return {"result": "killed", "by": "no end", "tests": len(tests)}
    finally:
        path.write_text(source, encoding="utf-8")
    if ended.returncode == 0:
        return {"result": "survived", "tests": len(tests)}
    said = [line.split(maxsplit=1)[1] for line in ended.stdout.splitlines() if line.startswith(("FAILED ", "ERROR "))]
    if not said and "no tests ran" not in ended.stdout:
        raise RuntimeError(f"pytest itself failed: {ended.stdout[-500:]} {ended.stderr[-500:]}")
    by = next((test for test in tests for line in said if line == test or line.startswith(f"{test} - ")), "")
    return {"result": "killed", "by": by or (said or [ended.stdout[-200:]])[0], "tests": len(tests)}


def run(mutants: list[dict[str, Any]], coverage: list[Path], junit: Path, only: str, file: Path) -> None:
    """Run the mutants of a folder or file in two copies of the project, and write each result at once."""
    times, free = times_of(junit), Queue[Path]()
    with tempfile.TemporaryDirectory() as base:
        for number in range(2):
            folder = Path(base, str(number))
            shutil.copytree(ROOT, folder, ignore=shutil.ignore_patterns(".git", ".venv*", "_build", "__pycache__", "runs"))
            free.put(folder)
        known = tests_now(folder)

        def one(mutant: dict[str, Any]) -> None:
            folder = free.get()
            found = result_of(mutant, tests_of(mutant, coverage, times, known), folder)
            free.put(folder)
            for name in ("result", "by", "tests"):
                mutant.pop(name, None)
            mutant.update(found)
            print(mutant["file"], mutant["line"], found["result"], found.get("by", ""), flush=True)
            file.write_text(json.dumps(mutants, indent=1) + "\n", encoding="utf-8")

        with ThreadPoolExecutor(2) as pool:
            list(pool.map(one, [mutant for mutant in mutants if mutant["file"].startswith(only)]))


def show(mutants: list[dict[str, Any]]) -> None:
    """Print the mutants that no test noticed, and the share of those that one did."""
    for one in mutants:
        if one.get("result") != "killed":
            print(f"{one['file']}:{one['line']}: {one.get('result')}\n- {one['before']}\n+ {one['after']}")
    print(Counter(one.get("result") for one in mutants))


def main() -> None:
    """Run or show."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=["run", "show"])
    parser.add_argument("file", type=Path)
    parser.add_argument("--coverage", type=Path, nargs="+", default=[Path(".coverage")])
    parser.add_argument("--junit", type=Path, default=Path("junit.xml"))
    parser.add_argument("--only", default="")
    given = parser.parse_args()
    mutants = json.loads(given.file.read_text(encoding="utf-8"))
    if given.task == "run":
        run(mutants, given.coverage, given.junit, given.only, given.file)
    show(mutants)


if __name__ == "__main__":
    main()
