"""What a round costs beside a loop written by hand and beside other packages: ratios from one run, interleaved.

    python tools/benchmark.py S W W-eval              # against the loop by hand, on one core and on all, 30 minutes
    python tools/benchmark.py S W --peers PYTHON      # also Flower, pfl, fluke and FedLab, of another environment
    python tools/benchmark.py L                       # a large model: seconds and memory
    python tools/benchmark.py clients                 # 1,000 to 10,000,000 clients, 100 a round
    python tools/benchmark.py states --repeats 1      # SCAFFOLD among a million clients, 10 GB of disk for a while
    python tools/benchmark.py memory                  # peak memory over 200 rounds
    python tools/benchmark.py flower --sites 3        # over the network, in an environment with the extra 'flower'
    python tools/benchmark.py flower --link 10mbit --cut 60@30 --megabytes 20   # over a slow line that breaks
    python tools/benchmark.py stragglers              # FedProx's curves, beside its algorithm in NumPy
    python tools/benchmark.py counts                  # operators, launches, reads and calls of a step, a client and a round

Every repeat runs the loop by hand, each row, and the loop by hand again, which is the control: a ratio that is not further
from 1 than the control's spread says nothing. Medians over repeats. Two tables come from the same run: one process with one
thread, and the whole machine, with ranks as --trainer.devices auto chooses them. glibc keeps freed memory in all processes.
The peers' environment: see tools/peers.txt.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from fl_lightning import keep_freed_memory
from fl_lightning.utilities.machine import cores

ALONE = {"OMP_NUM_THREADS": "1"}
KEPT = {"MALLOC_MMAP_THRESHOLD_": "33554432", "MALLOC_TRIM_THRESHOLD_": "4294967296"}
"""What keep_freed_memory sets, for processes that cannot call it."""
PEERS = ("pfl", "fluke", "fedlab")
"""Peers in one process; Flower has workers."""
Row = Callable[[], float]


def process(python: str, *arguments: str, **environment: str) -> dict[str, Any]:
    """The last line of JSON that a process prints."""
    command = [python, *arguments]
    environment = os.environ | ALONE | environment
    done = subprocess.run(command, capture_output=True, text=True, timeout=1800, env=environment, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not lines:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    answer: dict[str, Any] = json.loads(lines[-1])
    return answer


def elsewhere(name: str, **settings: Any) -> Row:
    """Ours on several ranks, in processes of its own; ``devices`` may be auto."""
    return lambda: float(
        process(sys.executable, __file__, "one", name, "--settings", json.dumps(settings))["seconds_per_round"]
    )


def peer(python: str, which: str, name: str, *arguments: str) -> Row:
    """A peer, in its own environment."""
    script = str(Path(__file__).with_name("peers.py"))
    return lambda: float(process(python, script, which, name, *arguments, **KEPT)["seconds_per_round"])


def on_one_core(name: str, work: Any, peers: str | None) -> dict[str, Row]:
    """The rows of one process with one thread."""
    found: dict[str, Row] = {"trainer": lambda: work.ours()}
    if name == "S":
        found |= {
            "fabric": lambda: work.ours(engine="fabric"),
            "stacked": lambda: work.ours(engine="stacked"),
            "stacked, compiled": lambda: work.ours(engine="stacked", compile=True, skipped=1),
        }
    if peers and name != "W-eval":
        found |= {"flower, one worker (peer)": peer(peers, "flower", name, "--workers", "1")}
        found |= {f"{which} (peer)": peer(peers, which, name) for which in PEERS}
    return found


def on_all_cores(name: str, work: Any, peers: str | None) -> dict[str, Row]:
    """The rows of the whole machine."""
    count = cores()
    found: dict[str, Row] = {f"hand, {count} threads": lambda: with_threads(count, work.by_hand)}
    if name == "S":
        ranks = min(count, work.cohort)
        found |= {
            "fabric, --devices auto": elsewhere(name, engine="fabric", devices="auto", skipped=1),
            f"stacked, compiled, {ranks} ranks": elsewhere(name, engine="stacked", compile=True, devices=ranks, skipped=1),
        }
    else:
        found |= {"channels_last, --devices auto": elsewhere(name, channels_last=True, devices="auto")}
    if name == "W-eval":
        settings: dict[str, Any] = {"channels_last": True, "devices": "auto", "eval_batch": 500}
        found |= {"channels_last, --devices auto, batches of 500": elsewhere(name, **settings)}
    if peers and name != "W-eval":
        found |= {f"flower, {count} workers (peer)": peer(peers, "flower", name, "--workers", str(count))}
    return found


def with_threads(count: int, row: Row) -> float:
    """A row with so many threads instead of one."""
    torch.set_num_threads(count)
    try:
        return row()
    finally:
        torch.set_num_threads(1)


def compare(name: str, repeats: int, peers: str | None) -> None:
    """Print the two tables of a workload; the loop by hand comes first and last in each repeat."""
    from benchmark_loop import Workload

    work = Workload(name)
    ends: tuple[dict[str, Row], dict[str, Row]] = {"hand": work.by_hand}, {"hand again": work.by_hand}
    tables = {"one core": on_one_core(name, work, peers), f"{cores()} cores": on_all_cores(name, work, peers)}
    rows = ends[0] | {what: row for table in tables.values() for what, row in table.items()} | ends[1]
    for what, row in rows.items():
        if what != "hand again" and not what.endswith("(peer)"):
            row()  # warm up, and compile
    seconds: dict[str, list[float]] = {what: [] for what in rows}
    for repeat in range(repeats):
        for what, row in rows.items():
            seconds[what].append(row())
        print(f"{name}: repeat {repeat + 1} of {repeats}", file=sys.stderr, flush=True)
    for title, table in tables.items():
        print(f"\n| {name} on {title}, {repeats} repeats | seconds per round | ratio to hand | spread |\n|---|---|---|---|")
        for what in ends[0] | table | ends[1]:
            ratios = sorted(value / hand for value, hand in zip(seconds[what], seconds["hand"], strict=True))
            spread = f"{ratios[0]:.2f} to {ratios[-1]:.2f}"
            print(
                f"| {what} | {statistics.median(seconds[what]):.3f} | {statistics.median(ratios):.2f} | {spread} |", flush=True
            )


def one(name: str, settings: dict[str, Any]) -> None:
    """A single run of ours, which Lightning may start again for other ranks."""
    from benchmark_loop import Workload

    seconds = Workload(name).ours(**settings)
    if os.environ.get("LOCAL_RANK", "0") == "0":
        print(json.dumps({"seconds_per_round": seconds}), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "what",
        nargs="+",
        help="workloads, or one of L, clients, states, memory, flower, counts, stragglers",
    )
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--peers", metavar="PYTHON", help="the interpreter of an environment with the peers")
    parser.add_argument("--sites", type=int, nargs="+", default=[3], help="of 'flower'")
    parser.add_argument(
        "--megabytes", type=float, nargs="*", default=[100.0], help="the models of 'flower', beside a small one"
    )
    parser.add_argument(
        "--link", help="of 'flower': the speed of each site's line each way, such as 10mbit, instead of the table"
    )
    parser.add_argument(
        "--cut",
        nargs="*",
        default=[],
        metavar="SECONDS@START",
        help="with --link: cuts of every line; START is in seconds since the model began to travel, or down, train or up",
    )
    parser.add_argument("--epochs", type=int, default=1, help="with --link: local epochs")
    parser.add_argument("--alone", action="store_true", help="without the bare app beside 'flower'")
    parser.add_argument("--rounds", type=int, help="of 'stragglers', instead of the published number; with --link")
    parser.add_argument("--settings", type=json.loads, default={}, help="of 'one': a workload's settings in JSON")
    args = parser.parse_args()
    keep_freed_memory()
    torch.set_num_threads(1)
    if args.what[0] == "one":
        one(args.what[1], args.settings)
        return
    import benchmark_counts
    import benchmark_flower
    import benchmark_scale
    import benchmark_state
    import benchmark_stragglers

    tools = (benchmark_scale, benchmark_state, benchmark_flower, benchmark_counts, benchmark_stragglers)
    measurements = {name: measure for tool in tools for name, measure in tool.MEASUREMENTS.items()}
    print(f"torch {torch.__version__}, one thread per process, {cores()} cores", flush=True)
    for what in args.what:
        if what in ("S", "W", "W-eval"):
            compare(what, args.repeats, args.peers)
        else:
            measurements[what](args)


if __name__ == "__main__":
    main()
