"""What a round costs beside a loop written by hand and beside other packages: ratios from one run, interleaved.

    python tools/benchmark.py S W W-eval              # against the loop by hand, 25 minutes on two cores
    python tools/benchmark.py S W --peers PYTHON      # also Flower, pfl, fluke and FedLab, of another environment
    python tools/benchmark.py L                       # a large model: seconds and memory
    python tools/benchmark.py clients                 # 1,000 to 10,000,000 clients, 100 a round
    python tools/benchmark.py states --repeats 1      # SCAFFOLD among a million clients, 10 GB of disk for a while
    python tools/benchmark.py memory                  # peak memory over 200 rounds
    python tools/benchmark.py robust --models 1000    # a median of models that do not fit into memory
    python tools/benchmark.py allocator               # what keeping freed memory saves
    python tools/benchmark.py flower --sites 3        # over the network, in an environment with the extra 'flower'
    python tools/benchmark.py gpu                     # S with 1,000 clients, W and L on a GPU, and what a step asks of it

Every repeat runs the loop by hand, each row, and the loop by hand again, which is the control: a ratio that is not further
from 1 than the control's spread says nothing. Medians over repeats. One thread per process; glibc keeps freed memory in all
of them. The peers' environment: see tools/peers/requirements.txt.
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

FOLDER = Path(__file__).parent
ALONE = {"OMP_NUM_THREADS": "1"}
KEPT = {"MALLOC_MMAP_THRESHOLD_": "33554432", "MALLOC_TRIM_THRESHOLD_": "4294967296"}
"""What keep_freed_memory sets, for processes that cannot call it."""
PEERS = ("flower", "pfl", "fluke", "fedlab")
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
    """Ours on several ranks, in processes of its own."""
    return lambda: float(
        process(sys.executable, __file__, "one", name, "--settings", json.dumps(settings))["seconds_per_round"]
    )


def peer(python: str, which: str, name: str) -> Row:
    """A peer, in its own environment."""
    script = str(FOLDER / "peers" / f"{which}_peer.py")
    return lambda: float(process(python, script, name, **KEPT)["seconds_per_round"])


def rows(name: str, peers: str | None) -> dict[str, Row]:
    """What is compared on a workload; the loop by hand comes first and last."""
    from benchmark_loop import Workload

    work = Workload(name)
    found: dict[str, Row] = {"hand": work.by_hand}
    if name == "S":
        found |= {
            "trainer": lambda: work.ours(engine="trainer"),
            "fabric": lambda: work.ours(engine="fabric"),
            "stacked": lambda: work.ours(engine="stacked"),
            "stacked, compiled": lambda: work.ours(engine="stacked", compile=True, skipped=1),
            "fabric, 2 ranks": elsewhere(name, engine="fabric", devices=2, skipped=1),
        }
    elif name == "W":
        found |= {
            "trainer": lambda: work.ours(),
            "channels_last, 2 ranks": elsewhere(name, channels_last=True, devices=2),
        }
    else:
        found |= {
            "trainer": lambda: work.ours(),
            "channels_last, 2 ranks": elsewhere(name, channels_last=True, devices=2),
            "channels_last, 2 ranks, batches of 500": elsewhere(name, channels_last=True, devices=2, eval_batch=500),
        }
    if peers and name != "W-eval":
        found |= {f"{which} (peer)": peer(peers, which, name) for which in PEERS}
    return found | {"hand again": work.by_hand}


def compare(name: str, repeats: int, peers: str | None) -> None:
    """Print a workload's table."""
    compared = rows(name, peers)
    for what, row in compared.items():
        if what != "hand again" and not what.endswith("(peer)"):
            row()  # warm up, and compile
    seconds: dict[str, list[float]] = {what: [] for what in compared}
    for repeat in range(repeats):
        for what, row in compared.items():
            seconds[what].append(row())
        print(f"{name}: repeat {repeat + 1} of {repeats}", file=sys.stderr, flush=True)
    print(f"\n| {name}, {repeats} repeats | seconds per round | ratio to hand | spread |\n|---|---|---|---|")
    for what, values in seconds.items():
        ratios = sorted(value / hand for value, hand in zip(values, seconds["hand"], strict=True))
        spread = f"{ratios[0]:.2f} to {ratios[-1]:.2f}"
        print(f"| {what} | {statistics.median(values):.3f} | {statistics.median(ratios):.2f} | {spread} |", flush=True)


def one(name: str, settings: dict[str, Any]) -> None:
    """A single run of ours, which Lightning may start again for other ranks."""
    from benchmark_loop import Workload

    seconds = Workload(name).ours(**settings)
    if os.environ.get("LOCAL_RANK", "0") == "0":
        print(json.dumps({"seconds_per_round": seconds}), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="+", help="workloads, or one of L, clients, states, memory, robust, ...")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--peers", metavar="PYTHON", help="the interpreter of an environment with the peers")
    parser.add_argument("--models", type=int, default=200, help="of 'robust', with 10 million parameters each")
    parser.add_argument("--device", default="cuda", help="of 'gpu'; 'cpu' tries its rows out on little")
    parser.add_argument("--sites", type=int, default=3, help="of 'flower'")
    parser.add_argument("--settings", type=json.loads, default={}, help="of 'one': a workload's settings in JSON")
    args = parser.parse_args()
    keep_freed_memory()
    torch.set_num_threads(1)
    if args.what[0] == "one":
        one(args.what[1], args.settings)
        return
    import benchmark_flower
    import benchmark_gpu
    import benchmark_scale
    import benchmark_state

    measurements = benchmark_scale.MEASUREMENTS | benchmark_gpu.MEASUREMENTS | benchmark_flower.MEASUREMENTS
    measurements |= benchmark_state.MEASUREMENTS
    print(f"torch {torch.__version__}, one thread per process, {os.cpu_count()} cores", flush=True)
    for what in args.what:
        if what in ("S", "W", "W-eval"):
            compare(what, args.repeats, args.peers)
        else:
            measurements[what](args)


if __name__ == "__main__":
    main()
