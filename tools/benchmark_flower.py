"""What a round over the network costs: seconds, and memory in models."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lightning as L
import yaml
from federation_demo import CONFIG, Federation, digits


class RoundClock(L.Callback):
    """Write the seconds of each round to a file: training at the sites, aggregation, evaluation and checkpoint."""

    def __init__(self, path: str) -> None:
        self.path, self.begun = path, list[float]()

    def on_train_epoch_start(self, *_: Any) -> None:
        self.begun.append(time.monotonic())

    def on_train_end(self, *_: Any) -> None:
        ends = [*self.begun[1:], time.monotonic()]
        seconds = [end - begin for begin, end in zip(self.begun, ends, strict=True)]
        Path(self.path).write_text(json.dumps(seconds), encoding="utf-8")


@contextmanager
def peaks(roots: dict[str, int]) -> Iterator[dict[str, float]]:
    """Note the peak memory in GB of processes and their children, by kind, until the body ends; mapped files do not count.

    Args:
        roots: the ids of the processes, by kind.
    """
    found: dict[str, float] = {}
    done = threading.Event()

    def look() -> None:
        while not done.wait(0.1):
            for kind, pid in roots.items():
                _note(kind.rstrip("0123456789 "), pid, found)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield found
    finally:
        done.set()
        thread.join()


def _note(kind: str, pid: int, found: dict[str, float]) -> None:
    try:
        command = Path(f"/proc/{pid}/cmdline").read_text(encoding="utf-8")
        lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="utf-8").split()
    except OSError:  # it has ended
        return
    part = next((name for text, name in PARTS.items() if text in command), "")
    kilobytes = next((int(line.split()[1]) for line in lines if line.startswith("RssAnon")), 0)
    name = f"{kind} {part}".strip()
    found[name] = max(found.get(name, 0.0), kilobytes * 1024 / 1e9)
    for child in children:
        _note(kind, int(child), found)


PARTS = {
    "flower.site.worker": "worker",
    "run_supernode": "SuperNode",
    "flower-supernode": "SuperNode",
    "flwr-serverapp": "ServerApp",
    "flwr-clientapp": "ClientApp",
    "superexec": "SuperExec",
}


def ours(folder: Path, hidden: list[int], rounds: int, sites: int) -> tuple[list[float], dict[str, float]]:
    """Return seconds per round and peak memory in GB of a fit over sites."""
    federation = Federation(folder, [f"site_{k}" for k in range(sites)], life=1500)
    federation.prepare(*digits(100 + 150 * sites), test=100)  # with so many, no site lacks a class
    config = yaml.safe_load(CONFIG)
    config["model"]["init_args"]["network"]["init_args"]["hidden"] = hidden
    config["data"]["datamodule"]["init_args"]["batch_size"] = 150
    clock = {"class_path": "benchmark_flower.RoundClock", "init_args": {"path": "seconds.json"}}
    config["trainer"] |= {"max_epochs": rounds + 2, "callbacks": [clock]}
    (folder / "server" / "config.yaml").write_text(yaml.safe_dump(config))
    try:
        federation.serve()
        federation.register()
        for name in federation.names:
            federation.start_site(name)
        fit = federation.start_fit("--trainer.default_root_dir", "run")
        running = {"SuperLink": federation.server, "fit": fit}
        running |= {f"site {k}": process for k, process in enumerate(federation.sites.values())}
        with peaks({kind: process.pid for kind, process in running.items() if process is not None}) as memory:
            status = fit.wait(1500)
        if status:
            raise SystemExit((folder / "server" / "fit.log").read_text()[-3000:])
    finally:
        federation.stop()
    return json.loads((folder / "server" / "seconds.json").read_text()), memory


def flower(args: argparse.Namespace) -> None:
    """Print seconds per round, and peak memory in models of its size, by number of sites and size of the model."""
    import flwr

    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    print(f"flwr {flwr.__version__}, loopback, TLS and keys")
    for sites in args.sites:
        small: dict[str, float] = {}
        for megabytes, rounds in ((0.1, 12), *((size, 3) for size in args.megabytes)):
            width = int((398**2 + megabytes * 1e6 / 4) ** 0.5 - 398)  # of each of two hidden layers
            with tempfile.TemporaryDirectory() as place:
                seconds, memory = ours(Path(place), [width, width], rounds, sites)
            counted = sorted(seconds[2:])  # the first rounds load what later ones keep
            spread = f"median {statistics.median(counted):.2f} s per round ({counted[0]:.2f} to {counted[-1]:.2f})"
            print(f"{sites} sites, {megabytes:g} MB: {spread}", flush=True)
            if small:  # what a run of a small model takes is no memory for models
                beyond = {kind: 1e3 * (peak - small.get(kind, 0.0)) / megabytes for kind, peak in sorted(memory.items())}
                print(f"    memory in models: {', '.join(f'{kind} {models:.1f}' for kind, models in beyond.items())}")
            small = small or memory
