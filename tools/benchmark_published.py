"""Benchmarks that others publish, beside the loop by hand and the peers that run the same setting, interleaved in one run.

The settings and their sources are in peers/published.py. Clients' sizes differ and each package draws its own cohorts, so
ratios are of the time per example; each row says how many examples a round had.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from benchmark_loop import Images, Workload
from benchmark_stragglers import stragglers

from fl_lightning.functional import draw_cohort

sys.path.insert(0, str(Path(__file__).parent / "peers"))

import published as settings

Run = Callable[[], dict[str, Any]]


class Given(Images):
    """Examples of a setting, without a server's set."""

    def __init__(self, train: settings.Pair, batch_size: int) -> None:
        super().__init__(0, batch_size, 0)
        self.train = train


class Published(Workload):
    """A published setting as a workload: the same rounds by hand and as a federation, from the same cohorts."""

    def __init__(self, name: str, rounds: int | None = None) -> None:
        own = settings.SETTINGS[name]
        self.examples = own.load()
        self.name, self.device, self.cohort, self.lr = name, torch.device("cpu"), own.cohort, own.lr
        self.rounds, self.sizes = rounds or own.rounds, self.examples.sizes
        torch.manual_seed(0)
        self.net = own.network()
        self.data = Given(self.examples.train, own.batch_size)

    def measured(self, run: Callable[[], float]) -> dict[str, Any]:
        """Return what a peer reports, of a run by hand or of ours."""
        seconds = run()
        cohorts = [draw_cohort(len(self.sizes), self.cohort, 0, idx) for idx in range(self.rounds)]
        examples = sum(self.sizes[k] for cohort in cohorts for k in cohort) / self.rounds
        found = {"seconds_per_round": seconds, "examples_per_round": examples}
        if test := self.examples.test:
            found["accuracy"] = self._accuracy(self.last, test) / len(test[1])
        return found


def rows(work: Published, peers: str | None) -> dict[str, Run]:
    """Return a run for each row; the loop by hand comes first and last."""
    from benchmark import FOLDER, KEPT, PEERS, process

    def peer(which: str) -> Run:
        script = str(FOLDER / "peers" / f"{which}_peer.py")
        arguments = (work.name, "--rounds", str(max(2, work.rounds)))
        return lambda: process(peers or "", script, *arguments, **KEPT)

    found: dict[str, Run] = {"hand": lambda: work.measured(work.by_hand)}
    for engine in ("fabric", "stacked"):
        found[engine] = lambda engine=engine: work.measured(lambda: work.ours(engine=engine))
    found |= {f"{which} (peer)": peer(which) for which in PEERS if peers}
    return found | {"hand again": found["hand"]}


def compare(name: str, rounds: int | None, repeats: int, peers: str | None) -> None:
    """Print the table of a setting."""
    for engine in ("fabric", "stacked"):
        Published(name, 1).ours(engine=engine)  # warms up
    work = Published(name, rounds)
    runs = rows(work, peers)
    found: dict[str, list[dict[str, Any]]] = {what: [] for what in runs}
    for repeat in range(repeats):
        for what, run in runs.items():
            found[what].append(run())
            print(
                f"{name}, repeat {repeat + 1}: {what} {found[what][-1]['seconds_per_round']:.3f} s", file=sys.stderr, flush=True
            )
    title = f"{name}, {work.rounds} rounds, {repeats} repeats"
    print(f"\n| {title} | seconds per round | examples per round | ratio to hand, per example | spread | accuracy |")
    print("|---|---|---|---|---|---|")
    each = {what: [one["seconds_per_round"] / one["examples_per_round"] for one in ones] for what, ones in found.items()}
    for what, ones in found.items():
        ratios = sorted(value / hand for value, hand in zip(each[what], each["hand"], strict=True))
        seconds, examples = (statistics.median(one[key] for one in ones) for key in ("seconds_per_round", "examples_per_round"))
        accuracy = f"{statistics.median(one['accuracy'] for one in ones):.3f}" if "accuracy" in ones[0] else ""
        spread = f"{ratios[0]:.2f} to {ratios[-1]:.2f}"
        print(
            f"| {what} | {seconds:.3f} | {examples:.0f} | {statistics.median(ratios):.2f} | {spread} | {accuracy} |", flush=True
        )


def measure(args: argparse.Namespace) -> None:
    """Print a table for each setting; the seconds are the processor's, which other processes disturb less."""
    from benchmark import process

    os.environ["PROCESSOR_TIME"] = "1"
    names = args.only or list(settings.SETTINGS)
    if args.data:
        os.environ["PUBLISHED_MNIST"] = args.data
    elif "lr-mnist" in names:
        print("\nlr-mnist: random pixels. Name the folder of MNIST's idx files with --data for its accuracy.")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["PUBLISHED_RATINGS"] = f"{folder}/ratings.npy"
        script = "import sys; sys.path.insert(0, sys.argv[1]); import published as p; p.save_ratings(sys.argv[2]); print('{}')"
        arguments = (str(Path(__file__).parent / "peers"), os.environ["PUBLISHED_RATINGS"])
        for name in names:
            if name == "lr-ratings":
                process(args.peers or sys.executable, "-c", script, *arguments)
            compare(name, args.rounds, args.repeats, args.peers)


MEASUREMENTS = {"published": measure, "stragglers": stragglers}
