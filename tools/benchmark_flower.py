"""What a round over the network costs beside a bare Flower app that sends the same bytes: seconds and peak memory."""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lightning as L
import yaml
from federation_demo import CONFIG, Federation, digits, free_ports, listens, wait_for

from fl_lightning.flower.processes import end_with_parent

SIZES = {"25 thousand parameters": ([32], 12, 7.0), "100 MB": ([5000, 4200], 3, 35.0)}
"""Hidden layers of the network, counted rounds, and the largest seconds per round that are wanted."""
BARE_PROJECT = """[project]
name = "bare"
version = "0.1.0"
description = "Send arrays and get arrays."
license = "Apache-2.0"
dependencies = []
[tool.flwr.app]
publisher = "bare"
[tool.flwr.app.components]
serverapp = "bare:server"
clientapp = "bare:client"
[tool.flwr.app.config]
size = 1
rounds = 1
sites = 1
out = ""
"""
BARE_APP = """import json, time
import numpy as np
from flwr.app import Array, ArrayRecord, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

server = ServerApp()
client = ClientApp()

def content(size):
    array = np.random.default_rng().standard_normal(size, dtype=np.float32)
    return RecordDict({"arrays": ArrayRecord({"model": Array(array)})})

@server.main()
def main(grid, context):
    config, seconds = context.run_config, []
    for round_idx in range(config["rounds"]):
        begun, model = time.monotonic(), content(config["size"])
        orders = [Message(model, dst_node_id=k, message_type="train", group_id=str(round_idx)) for k in grid.get_node_ids()]
        replies = list(grid.send_and_receive(orders))
        assert len(replies) == config["sites"] and not any(reply.has_error() for reply in replies)
        np.mean([reply.content["arrays"]["model"].numpy() for reply in replies], axis=0)
        seconds.append(time.monotonic() - begun)
    open(config["out"], "w").write(json.dumps(seconds))

@client.train()
def train(message, context):
    return Message(content(message.content["arrays"]["model"].numpy().size), reply_to=message)
"""


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
def peaks(roots: Callable[[], dict[str, int]]) -> Iterator[dict[str, float]]:
    """Note the peak memory in GB of processes and their children, by kind, until the body ends.

    Args:
        roots: returns the ids of the processes that run now, by kind.
    """
    found: dict[str, float] = {}
    done = threading.Event()

    def look() -> None:
        while not done.wait(0.1):
            for kind, pid in roots().items():
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
    kilobytes = next((int(line.split()[1]) for line in lines if line.startswith("VmHWM")), 0)
    name = f"{kind} {part}".strip()
    found[name] = max(found.get(name, 0.0), kilobytes * 1024 / 1e9)
    for child in children:
        _note(kind, int(child), found)


PARTS = {
    "flower.worker": "worker",
    "run_supernode": "SuperNode",
    "flower-supernode": "SuperNode",
    "flwr-serverapp": "ServerApp",
    "flwr-clientapp": "ClientApp",
    "superexec": "SuperExec",
}


def ours(folder: Path, hidden: list[int], rounds: int, sites: int) -> tuple[list[float], dict[str, float], int]:
    """Return seconds per round, peak memory in GB, and the bytes of a round, of a fit over sites."""
    federation = Federation(folder, [f"site_{k}" for k in range(sites)], life=1500)
    federation.prepare(*digits(100 + 30 * sites), test=100)
    config = yaml.safe_load(CONFIG)
    config["model"]["init_args"]["network"]["init_args"]["hidden"] = hidden
    config["data"]["datamodule"]["init_args"]["batch_size"] = 100
    clock = {"class_path": "benchmark_flower.RoundClock", "init_args": {"path": "seconds.json"}}
    config["trainer"] |= {"max_epochs": rounds + 2, "callbacks": [clock], "logger": {"class_path": "CSVLogger"}}
    config["trainer"]["logger"]["init_args"] = {"save_dir": ".", "name": "log", "version": 0}
    (folder / "server" / "config.yaml").write_text(yaml.safe_dump(config))
    processes: dict[str, int] = {}
    try:
        federation.serve()
        federation.register()
        for name in federation.names:
            federation.start_site(name)
        fit = federation.start_fit("--trainer.default_root_dir", "run")
        running = {"SuperLink": federation.server, "fit": fit}
        running |= {f"site {k}": process for k, process in enumerate(federation.sites.values())}
        processes = {kind: process.pid for kind, process in running.items() if process is not None}
        with peaks(lambda: processes) as memory:
            status = fit.wait(1500)
        if status:
            raise SystemExit((folder / "server" / "fit.log").read_text()[-3000:])
    finally:
        federation.stop()
    return json.loads((folder / "server" / "seconds.json").read_text()), memory, _bytes(folder / "server" / "log")


def _bytes(log: Path) -> int:
    """Return the bytes of the last round, in both directions."""
    import csv

    rows = list(csv.DictReader(next(log.rglob("metrics.csv")).open()))
    last = {name: row[name] for row in rows for name in row if name.startswith("federation/bytes_") and row[name]}
    return int(sum(float(value) for value in last.values()))


def bare(folder: Path, parameters: int, rounds: int, sites: int) -> tuple[list[float], dict[str, float]]:
    """Return seconds per round and peak memory in GB of an app that only sends arrays, with Flower's own commands."""
    from fl_lightning.compat.flower import ControlLink
    from fl_lightning.flower.certificates import create_certificates
    from fl_lightning.flower.keys import create_key
    from fl_lightning.flower.server_folder import ServerFolder

    server, (port, *local) = ServerFolder(folder), free_ports(1 + sites)
    folder.mkdir()
    files = server.files
    create_certificates(server.public, server.ca_key, "localhost")
    address, scripts = f"127.0.0.1:{port}", Path(sys.executable).parent
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
    environment["PATH"] = f"{scripts}{os.pathsep}{environment['PATH']}"
    started: list[subprocess.Popen[bytes]] = []

    def start(name: str, command: list[str]) -> subprocess.Popen[bytes]:
        home = folder / f"home {name}"
        home.mkdir(exist_ok=True)
        with open(folder / f"{name}.log", "ab") as log:
            process = subprocess.Popen(
                command,
                cwd=home,
                env=environment | {"FLWR_HOME": str(home)},
                stdout=log,
                stderr=subprocess.STDOUT,
                preexec_fn=end_with_parent,
            )
        started.append(process)
        return process

    try:
        tls = ["--ssl-ca-certfile", files["ca"], "--ssl-certfile", files["certificate"], "--ssl-keyfile", files["key"]]
        link = ["flower-superlink", "--host", "127.0.0.1", "--port", str(port), *tls, "--enable-supernode-auth"]
        processes = {
            "SuperLink": start("link", [*link, "--disable-runtime-dependency-installation", "--database", files["database"]])
        }
        wait_for(lambda: listens(port), 60, "the bare SuperLink")
        control = ControlLink(address, server.certificate)
        for k in range(sites):
            public = create_key(folder / f"{k}.key")
            control.register(public.read_bytes(), f"site {k}")
            command = ["flower-supernode", "--superlink", address, "--root-certificates", files["ca"]]
            command += [
                "--auth-supernode-private-key",
                str(folder / f"{k}.key"),
                "--host",
                "127.0.0.1",
                "--port",
                str(local[k]),
            ]
            processes[f"site {k}"] = start(f"site {k}", command)
        wait_for(lambda: sum(node.online for node in control.nodes()) == sites, 60, "the bare SuperNodes")
        control.close()
        app, home = folder / "app", folder / "home user"
        app.mkdir()
        home.mkdir()
        (app / "pyproject.toml").write_text(BARE_PROJECT)
        (app / "bare.py").write_text(BARE_APP)
        (home / "config.toml").write_text(
            f'[superlink]\ndefault = "x"\n[superlink.x]\naddress = "{address}"\nroot-certificates = "{files["ca"]}"\n'
        )
        values = f'size={parameters} rounds={rounds + 2} sites={sites} out="{folder / "seconds.json"}"'
        run = start("user", ["flwr", "run", str(app), "x", "--stream", "--run-config", values])
        with peaks(lambda: {kind: process.pid for kind, process in processes.items()}) as memory:
            wait_for(lambda: (folder / "seconds.json").exists() or run.poll() is not None, 1500, "the bare app")
            run.wait(60)
        if not (folder / "seconds.json").exists():
            raise SystemExit((folder / "user.log").read_text()[-3000:])
    finally:
        for process in reversed(started):
            process.terminate()
        for process in started:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
    return json.loads((folder / "seconds.json").read_text()), memory


def parameters_of(hidden: list[int]) -> int:
    """Return the parameters of the network of 784 features and 10 classes."""
    widths = [784, *hidden, 10]
    return sum(a * b + b for a, b in itertools.pairwise(widths))


def flower(args: argparse.Namespace) -> None:
    """Print the table of seconds per round and of peak memory."""
    import flwr

    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    print(f"flwr {flwr.__version__}, {args.sites} sites, loopback, TLS and keys", flush=True)
    for name, (hidden, rounds, most) in SIZES.items():
        if os.environ.get("ONLY") and os.environ["ONLY"] not in name:
            continue
        measured = {}
        for what in ("fl_lightning", "bare Flower app"):
            with tempfile.TemporaryDirectory() as place:
                folder = Path(place) / "federation"
                if what == "bare Flower app":
                    seconds, memory = bare(folder, parameters_of(hidden), rounds, args.sites)
                else:
                    folder.mkdir()
                    seconds, memory, moved = ours(folder, hidden, rounds, args.sites)
                shutil.rmtree(folder)
            counted = sorted(seconds[2:])  # the first rounds load what later ones keep
            measured[what] = statistics.median(counted)
            print(
                f"{name}, {what}: median {measured[what]:.2f} s per round ({counted[0]:.2f} to {counted[-1]:.2f})", flush=True
            )
            print(
                f"    peak memory in GB: {', '.join(f'{kind} {peak:.2f}' for kind, peak in sorted(memory.items()))}", flush=True
            )
        ratio = measured["fl_lightning"] / measured["bare Flower app"]
        print(f"    {moved:,} bytes a round; ratio {ratio:.2f} (wanted: at most 1.1, and {most:g} s)", flush=True)


MEASUREMENTS = {"flower": flower}
