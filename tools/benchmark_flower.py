"""What a round over the network costs beside a bare Flower app that sends the same bytes: seconds, and memory in models."""

from __future__ import annotations

import argparse
import itertools
import json
import os
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
from benchmark_line import line
from federation_demo import CONFIG, Federation, digits, free_ports, listens, wait_for

from fl_lightning.flower.site.processes import end_with_parent

SMALL = [32]
"""The hidden layer of a network of 25 thousand parameters; memory is counted beyond that of a run with it."""
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
    """Note the peak memory in GB of processes and their children, by kind, until the body ends; mapped files do not count.

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
    return json.loads((folder / "server" / "seconds.json").read_text()), memory


def bare(folder: Path, parameters: int, rounds: int, sites: int) -> tuple[list[float], dict[str, float]]:
    """Return seconds per round and peak memory in GB of an app that only sends arrays, with Flower's own commands."""
    from fl_lightning.compat.flower_server import ControlLink
    from fl_lightning.flower.wire.keys import create_certificates, create_key
    from fl_lightning.flower.wire.server_folder import ServerFolder

    server, (port, *local) = ServerFolder(folder), free_ports(1 + sites)
    folder.mkdir()
    files = server.files
    create_certificates(server.files, server.ca_key, "localhost")
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


def hidden_of(megabytes: float) -> list[int]:
    """Return two equal hidden layers with which the network has about so many megabytes in float32."""
    width = int((398**2 + megabytes * 1e6 / 4) ** 0.5 - 398)
    return [width, width]


def flower(args: argparse.Namespace) -> None:
    """Print seconds per round, and peak memory in models of its size, by number of sites and size of the model."""
    import flwr

    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    print(f"flwr {flwr.__version__}, loopback, TLS and keys")
    if args.link:
        line(args, [(size, hidden_of(size)) for size in args.megabytes])
        return
    for sites in args.sites:
        small: dict[str, dict[str, float]] = {}
        for hidden, rounds in ((SMALL, 12), *((hidden_of(size), 3) for size in args.megabytes)):
            model = parameters_of(hidden) * 4 / 1e9
            for what in ("fl_lightning", "bare Flower app")[: 1 if args.alone else 2]:
                seconds, memory = _measured(what, hidden, rounds, sites)
                counted = sorted(seconds[2:])  # the first rounds load what later ones keep
                spread = f"median {statistics.median(counted):.2f} s per round ({counted[0]:.2f} to {counted[-1]:.2f})"
                print(f"{sites} sites, {model * 1e3:.1f} MB, {what}: {spread}", flush=True)
                beyond = {kind: (peak - small.get(what, {}).get(kind, 0.0)) / model for kind, peak in sorted(memory.items())}
                if what in small:
                    print(f"    memory in models: {', '.join(f'{kind} {peak:.1f}' for kind, peak in beyond.items())}")
                small.setdefault(what, memory)


def _measured(what: str, hidden: list[int], rounds: int, sites: int) -> tuple[list[float], dict[str, float]]:
    """Return seconds per round and peak memory in GB of a run in a folder of its own."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "federation"
        if what == "bare Flower app":
            return bare(folder, parameters_of(hidden), rounds, sites)
        folder.mkdir()
        return ours(folder, hidden, rounds, sites)


MEASUREMENTS = {"flower": flower}
