"""What a round costs beside a loop written by hand: ratios from one run, interleaved.

    python tools/benchmark.py S W W-eval              # on one core and on all, 30 minutes
    python tools/benchmark.py L --repeats 2           # a large model: seconds and memory
    python tools/benchmark.py clients                 # 1,000 to 10,000,000 clients, 100 a round
    python tools/benchmark.py states --repeats 1      # SCAFFOLD among a million clients, 10 GB of disk for a while
    python tools/benchmark.py flower --sites 3        # over the network, in an environment with the extra 'flower'
    python tools/benchmark.py counts                  # operators, launches, reads and calls of a step, a client and a round

Every repeat has each row once, and the first row again at its end, which is the control: a ratio that is not further from 1
than the control's spread says nothing. Figures are medians over repeats. S and W give two tables of the same run: one process
with one thread, and the whole machine, with ranks as --trainer.devices auto chooses them. glibc keeps freed memory in all
processes. Rows of L, clients and states have a process each, because memory counts.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))  # this version, not an installed one

import benchmark_counts
import benchmark_flower
import benchmark_loop
import benchmark_scale
from benchmark_loop import Workload

from fl_lightning import keep_freed_memory
from fl_lightning.utilities.machine import cores

Figures = dict[str, float]
Row = Callable[[], Figures]


def process(call: str) -> Figures:
    """Return what a call gives in a process of its own, which Lightning may start again for other ranks."""
    command, environment = [sys.executable, __file__, "one", call], os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=1800, env=environment, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not lines:
        raise SystemExit(f"{call} failed:\n{done.stderr[-2000:]}")
    found: Figures = json.loads(lines[-1])
    return found


def one(call: str) -> None:
    """Print what a call gives, as JSON."""
    found = eval(call, {**vars(benchmark_loop), **vars(benchmark_scale)})
    if os.environ.get("LOCAL_RANK", "0") == "0":
        print(json.dumps(found if isinstance(found, dict) else {"seconds per round": found}), flush=True)


def measured(rows: Mapping[str, Row], repeats: int) -> dict[str, list[Figures]]:
    """Return what rows give in each repeat, in turn."""
    found: dict[str, list[Figures]] = {what: [] for what in rows}
    for _ in range(repeats):
        for what, row in rows.items():
            found[what].append(row())
            print(f"{what}: {found[what][-1]}", file=sys.stderr, flush=True)
    return found


def table(title: str, found: Mapping[str, list[Figures]]) -> None:
    """Print the medians of all figures, and how the first of them compares with that of the first row."""
    first, names = next(iter(found.values())), list(next(iter(found.values()))[0])
    print(f"\n| {title}, {len(first)} repeats | {' | '.join(names)} | ratio | spread |\n|{'---|' * (len(names) + 3)}")
    for what, runs in found.items():
        ratios = sorted(run[names[0]] / base[names[0]] for run, base in zip(runs, first, strict=True))
        medians = [statistics.median(run[name] for run in runs) for name in names]
        cells = [f"{value:,.0f}" if value >= 1000 else f"{value:.3g}" for value in medians]
        cells += [f"{statistics.median(ratios):.2f}", f"{ratios[0]:.2f} to {ratios[-1]:.2f}"]
        print(f"| {what} | {' | '.join(cells)} |", flush=True)


def in_processes(title: str, calls: Mapping[str, str], args: argparse.Namespace) -> None:
    """Print the table of calls that have a process each; the first comes again at the end."""
    again = {f"{next(iter(calls))}, again": next(iter(calls.values()))}
    rows = {what: lambda call=call: process(call) for what, call in {**calls, **again}.items()}
    table(title, measured(rows, args.repeats))


def on_one_core(work: Workload) -> dict[str, Row]:
    """Return the rows of one process with one thread."""
    settings: dict[str, dict[str, Any]] = {"trainer": {}}
    if work.name == "S":
        settings |= {"fabric": {"engine": "fabric"}, "stacked": {"engine": "stacked"}}
        settings |= {"stacked, compiled": {"engine": "stacked", "compile": True, "skipped": 1}}
    return {what: lambda own=own: {"seconds per round": work.ours(**own)} for what, own in settings.items()}


def on_all_cores(work: Workload) -> dict[str, Row]:
    """Return the rows of the whole machine."""
    count = cores()
    if work.name == "S":
        ranks = min(count, int(work.cohort))
        calls = {
            "fabric, --devices auto": "engine='fabric', devices='auto', skipped=1",
            f"stacked, compiled, {ranks} ranks": f"engine='stacked', compile=True, devices={ranks}, skipped=1",
        }
    else:
        calls = {"channels_last, --devices auto": "channels_last=True, devices='auto'"}
    if work.name == "W-eval":
        calls |= {"channels_last, --devices auto, batches of 500": "channels_last=True, devices='auto', eval_batch=500"}
    rows: dict[str, Row] = {f"hand, {count} threads": lambda: with_threads(count, work)}
    return rows | {what: lambda call=call: process(f"Workload('{work.name}').ours({call})") for what, call in calls.items()}


def with_threads(count: int, work: Workload) -> Figures:
    """Run the loop by hand with so many threads instead of one."""
    torch.set_num_threads(count)
    try:
        return {"seconds per round": work.by_hand()}
    finally:
        torch.set_num_threads(1)


def compare(name: str, repeats: int) -> None:
    """Print the two tables of a workload; the loop by hand comes first and last in each repeat."""
    work = Workload(name)
    hand: dict[str, Row] = {"hand": lambda: {"seconds per round": work.by_hand()}}
    again = {"hand again": hand["hand"]}
    tables = {"one core": on_one_core(work), f"{cores()} cores": on_all_cores(work)}
    rows = hand | {what: row for rows in tables.values() for what, row in rows.items()} | again
    measured(rows, 1)  # warm up, and compile
    found = measured(rows, repeats)
    for title, own in tables.items():
        table(f"{name} on {title}", {what: found[what] for what in hand | own | again})


MEASUREMENTS: dict[str, Callable[[argparse.Namespace], None]] = {
    **{name: lambda args, name=name: compare(name, args.repeats) for name in ("S", "W", "W-eval")},
    "L": lambda args: in_processes("L", benchmark_scale.LARGE, args),
    "clients": lambda args: in_processes("clients, 100 a round", benchmark_scale.MANY, args),
    "states": lambda args: in_processes("clients with state", benchmark_scale.STATES, args),
    "flower": benchmark_flower.flower,
    "counts": lambda args: benchmark_counts.counts(),
}


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="+", metavar=f"{{{','.join(MEASUREMENTS)}}}")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--sites", type=int, nargs="+", default=[3], help="of 'flower'")
    parser.add_argument("--megabytes", type=float, nargs="*", default=[100.0], help="models of 'flower', beside a small one")
    args = parser.parse_args()
    keep_freed_memory()
    torch.set_num_threads(1)
    if args.what[0] == "one":
        one(args.what[1])
        return
    print(f"torch {torch.__version__}, one thread per process, {cores()} cores", flush=True)
    for what in args.what:
        MEASUREMENTS[what](args)


if __name__ == "__main__":
    main()
