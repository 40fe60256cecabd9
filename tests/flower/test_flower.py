"""Real processes of Flower on loopback: one server and three sites over TLS, with keys. Run with ``-m flower``."""

import contextlib
import csv
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import flower_processes
import pytest
import torch
import yaml
from federation_demo import ELSEWHERE, Federation, same_bits, wait_for, weights
from flower_processes import LONG, MARKS, as_simulated, descendants, ended, in_a_round, same_as_simulated, start, told

import fl_lightning
from fl_lightning.cli.federation_cli import main
from fl_lightning.flower.wire.keys import create_certificates
from fl_lightning.flower.wire.server_folder import ServerFolder

pytestmark = MARKS
running, federation = flower_processes.running, flower_processes.federation  # the fixtures
STREAM = """import numpy as np
import torch
from lightning.pytorch import LightningDataModule
from torch.utils.data import DataLoader, IterableDataset


class Rows(IterableDataset):
    def __init__(self, path):
        self.path = path

    def __iter__(self):
        for row in np.loadtxt(self.path, delimiter=",", skiprows=1, dtype=np.float32):
            yield torch.from_numpy(row[:-1]), int(row[-1])


class Stream(LightningDataModule):
    def __init__(self, path: str):
        super().__init__()
        self.path = path

    def train_dataloader(self):
        return DataLoader(Rows(self.path), batch_size=20)
"""

SCRIPT = """import torch
import yaml
from lightning.pytorch import Trainer, seed_everything

from fl_lightning import Faults, FederatedDataModule, FederatedOrchestrator, FlowerPool, LocalTraining, TableDataModule

config = yaml.safe_load(open("config.yaml"))
model = config["model"]
model["init_args"]["loss"] = {"class_path": "CrossEntropy"}
seed_everything(0)
pool = FlowerPool("fed", wait=3, min_sites=2, model=model)
federation = FederatedOrchestrator(pool=pool, local=LocalTraining(threads=1), faults=Faults(policy="skip"))
rows = TableDataModule(**{**config["data"]["datamodule"]["init_args"], "path": None})
trainer = Trainer(max_epochs=2, accelerator="cpu", logger=False, enable_progress_bar=False, callbacks=[federation])
trainer.fit(pool.build_model(), FederatedDataModule(rows))
torch.save(trainer.lightning_module.state_dict(), "script.pt")
"""
"""A fit from Python that starts with two sites."""


ALGORITHMS = {
    "FedAvg": (),
    "AdaFed": ("--federation.strategy", "AdaFed", "--model.loss", "F1WeightedCrossEntropy", "--model.loss.num_classes", "10"),
    "SCAFFOLD with 2 of 3": ("--federation.strategy", "Scaffold", "--federation.clients_per_round", "2"),
    "Fed-Cyclic": ("--federation.route", "FedCyclic"),
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.smoke if name == "FedAvg" else ()) for name in ALGORITHMS]
)
def test_the_bits_of_the_simulation(name, federation):
    """Fits one after another in one process, as in a notebook; most other tests start a process for each."""
    assert as_simulated(federation, name, "--trainer.max_epochs", "2", *ALGORITHMS[name])


@pytest.mark.smoke
def test_a_worker_dies_and_the_order_is_repeated(federation):
    arguments = ("--federation.strategy", "Scaffold", "--federation.faults.retries", "2")
    fit = in_a_round(federation, "worker dies", *arguments)
    os.kill(descendants(federation.sites["hospital_b"].pid)["worker"], signal.SIGKILL)
    assert same_as_simulated(federation, fit, "worker dies", *LONG, *arguments)


def test_the_evaluation_of_the_simulation(federation):
    """Of the global model and of a file of weights."""
    assert as_simulated(federation, "evaluated", "--trainer.max_epochs", "1")
    server = federation.folder / "server"
    trained = weights(server / "evaluated")
    torch.save({name: -tensor for name, tensor in trained.items()}, server / "foreign.pt")
    accuracy = ("--metrics+", "torchmetrics.classification.MulticlassAccuracy", "--metrics.num_classes", "10")
    more = ("--part", "training", *accuracy, "--metrics.average", "micro", "--resamples", "30", "--checkpoints")
    found = {}
    with contextlib.chdir(server):
        for folder, where in (("evaluated", ELSEWHERE), ("simulated evaluated", ())):
            given = ("evaluate", "--config", "config.yaml", "--trainer.default_root_dir", folder, *where, *more)
            main([*given, f"{folder}/checkpoints/last.ckpt", "foreign.pt"])
            found[folder] = list(csv.DictReader(Path(folder, "evaluation/evaluation.csv").read_text().splitlines()))
    assert found["evaluated"] == found["simulated evaluated"]
    assert len(found["evaluated"]) == 2 * 4


def test_only_the_sites_paths_are_reachable_from_outside(federation):
    import http.client
    import ssl

    context = ssl.create_default_context(cafile=str(federation.folder / "server" / "fed" / "ca.crt"))

    def status(method: str, path: str, length: int = 0) -> int:
        connection = http.client.HTTPSConnection("localhost", federation.port, context=context, timeout=10)
        connection.putrequest(method, path, skip_host=False)
        connection.putheader("content-length", str(length))
        connection.endheaders()
        found = connection.getresponse().status
        connection.close()
        return found

    outside = ["/v1/control/list-nodes", "/v1/runtime/acquire-task", "/v1/fleet/../control/list-nodes", "/docs", "/health", "/"]
    outside += ["/v1/fleet/%2e%2e/control/list-nodes", "/v1/fleet/..%2fcontrol/list-nodes", "//v1/fleet/pull-messages"]
    assert {path: status("POST", path) for path in outside} == dict.fromkeys(outside, 404)
    assert status("GET", "/v1/fleet/pull-messages") == 404
    assert status("POST", "/v1/fleet/pull-messages") == 401
    assert status("POST", "/v1/fleet/push-object", 2**20) == 401  # at once: the server waits for no body without a signature


def check(federation: Federation, name: str, *more: str, key: str = "") -> tuple[int, str]:
    address = ("--server", f"https://localhost:{federation.port}", "--ca", "ca.crt")
    given = ("site", "--check", "--name", name, *address, "--key", key or f"{name}.key", "--data", "data.yaml", *more)
    done = subprocess.run(federation.command(*given), cwd=federation.folder / name, capture_output=True, text=True, timeout=120)
    return done.returncode, done.stdout + done.stderr


def test_a_site_checks_itself_and_says_what_the_server_learns(federation):
    status, said = check(federation, "hospital_a")
    assert status == 0, said
    assert sum(line.startswith("ok ") for line in said.splitlines()) == 6
    assert "before the first round leave: name hospital_a, " in said
    assert "num_examples 111" in said
    assert "label_counts" not in said
    assert f"{fl_lightning.__version__} at the server" in said
    federation.call("hospital_a", "site", "--create_key", "unknown.key")
    status, said = check(federation, "hospital_a", key="unknown.key")
    assert status == 1
    assert "FAILED  registration: The server does not know this key." in said
    status, said = check(federation, "hospital_a", "--server", "https://no-such-host.invalid:1")
    assert status == 1
    assert "FAILED  connection: no-such-host.invalid:1 is not known (" in said
    assert "Traceback" not in said


def test_a_key_is_registered_once(federation):
    command = federation.command("register", "../hospital_a/hospital_a.pub", "--folder", "fed", "--name", "other")
    done = subprocess.run(command, cwd=federation.folder / "server", capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert "hospital_a.pub' was registered before, and each key can be registered once. Ask for a new one" in done.stderr
    assert done.stderr.count("\n") == 1


def test_nothing_of_an_update_stays_on_a_disk(federation):
    """With one client in the cohort, the model in the checkpoint is this client's update."""
    ended(federation, start(federation, "swept", "--federation.clients_per_round", "1", "--trainer.max_epochs", "1"))
    update = max(weights(federation.folder / "server" / "swept").values(), key=torch.numel).numpy().tobytes()
    pieces = [update[k : k + 200] for k in range(0, len(update), 5000)]
    assert len(set(pieces)) == len(pieces) > 10

    def found(folder: Path) -> list[str]:
        contents = {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        return sorted(name for name, content in contents.items() if any(piece in content for piece in pieces))

    assert found(federation.folder / "server" / "swept") == ["best.ckpt", "last.ckpt"]  # where it belongs
    wait_for(lambda: not found(federation.folder / "server" / "fed"), 30, "the server to forget")
    database = f"file:{federation.folder / 'server' / 'fed' / 'state.db'}?mode=ro"
    with contextlib.closing(sqlite3.connect(database, uri=True)) as connection:
        wait_for(lambda: connection.execute("PRAGMA freelist_count").fetchone() == (0,), 30, "the server to return its pages")
    for name in federation.names:
        assert not found(federation.folder / name)


def other_site(federation: Federation, how: str) -> list[str]:
    """Return the command of a site on another machine, which cannot connect."""
    elsewhere = federation.folder / how
    shutil.copytree(federation.folder / "hospital_a", elsewhere, ignore=shutil.ignore_patterns("site_*", "*.log"))
    if how == "another CA":
        other = ServerFolder(elsewhere / "other")
        other.path.mkdir()
        create_certificates(other.files, other.ca_key, "localhost")
        shutil.copy(other.files["ca"], elsewhere / "ca.crt")
    if how == "an unknown key":
        for path in elsewhere.glob("hospital_a.*"):
            path.unlink()
        federation.call(how, "site", "--create_key", "hospital_a.key")
    clock = ["faketime", "-f", "+1h"] if how == "another time" else []
    return [*clock, *federation.site_command("hospital_a")]


CANNOT_CONNECT = {
    "the same key": "The server still counts this site as connected. After a crash this lasts up to half a minute. If it lasts "
    "longer, the same key is in use on another machine, too: each site needs a key of its own.",
    "an unknown key": "registration: The server does not know this key. Send it the public key: fl-lightning register NAME.pub",
    "another CA": "Pass the server's ca.crt with '--ca'",
    "another time": "Synchronise them (NTP): signatures hold 300 s.",
}


@pytest.mark.parametrize("how", CANNOT_CONNECT)
def test_a_site_that_cannot_connect_says_why(how, federation):
    if how == "another time" and shutil.which("faketime") is None:
        pytest.skip("needs the command 'faketime'")
    command, log = other_site(federation, how), federation.folder / how / "site.log"
    with open(log, "wb") as output:
        process = subprocess.Popen(command, cwd=log.parent, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        wait_for(lambda: "The cause may be this. " in log.read_text(), 60, "the cause")
        assert CANNOT_CONNECT[how] in log.read_text()
    finally:
        os.killpg(process.pid, signal.SIGTERM)  # faketime starts the command as a child
        process.wait(20)


def test_interrupting_the_fit_stops_the_sites(federation):
    """Within ten seconds where the processors are free; no test asserts that."""
    stopped = [told(federation.folder / name / "site.log", "The server has ended the run.") for name in federation.names]
    endless = ("--federation.local.max_epochs", "100000")
    fit = in_a_round(federation, "interrupted", *endless, round_idx=0)
    time.sleep(8)  # each site has looked for its order
    fit.send_signal(signal.SIGINT)
    wait_for(lambda: fit.poll() is not None and all(one() for one in stopped), 90, "the fit and the sites to stop")
    assert fit.returncode == 130


def test_a_site_ends_on_request_and_a_script_fits_the_others(federation):
    """Its children end with it. The others then give the bits of a federation of these two."""
    process = federation.sites["hospital_c"]
    wait_for(lambda: len(descendants(process.pid)) == 2, federation.life, "the site to start")
    children = descendants(process.pid)
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 0
    assert not any(Path(f"/proc/{child}").exists() for child in children.values())
    server = federation.folder / "server"
    (server / "script.py").write_text(SCRIPT)
    done = subprocess.run([sys.executable, "script.py"], cwd=server, capture_output=True, text=True, timeout=federation.life)
    assert done.returncode == 0, done.stdout + done.stderr
    shutil.copytree(server / "all", server / "two", ignore=shutil.ignore_patterns("hospital_c.csv"))
    with contextlib.chdir(server):
        alone = ("--data.datamodule.path", "two", "--trainer.default_root_dir", "two sites")
        main(["fit", "--config", "config.yaml", "--trainer.max_epochs", "2", *alone])
        assert same_bits(weights(Path("two sites")), torch.load("script.pt", weights_only=True))


def test_streams_of_the_sites_own_classes(federation, monkeypatch):
    """Nobody knows their lengths, and the classes are in the sites' folders."""
    server = federation.folder / "server"
    (server / "rows.py").write_text(STREAM)
    for name, process in federation.sites.items():
        wait_for(lambda pid=process.pid: len(descendants(pid)) == 2, federation.life, "the site to start")
        site = federation.folder / name
        (site / "rows.py").write_text(STREAM)
        datamodule = "datamodule: {class_path: rows.Stream, init_args: {path: own.csv}}\n"
        (site / "data.yaml").write_text(datamodule + "policy: {federations: any}\n")
        process.send_signal(signal.SIGTERM)
    for name, process in federation.sites.items():
        assert process.wait(20) == 0
        federation.start_site(name)
    fit = start(federation, "streams")
    config = yaml.safe_load((server / "config.yaml").read_text())
    rows = {name: {"class_path": "rows.Stream", "init_args": {"path": f"all/{name}.csv"}} for name in federation.names}
    (server / "streams.yaml").write_text(yaml.safe_dump(config | {"data": {"clients": rows}}))
    monkeypatch.syspath_prepend(server)
    assert same_as_simulated(federation, fit, "streams", config="streams.yaml")


def test_a_revoked_site_cannot_connect(federation):
    """Its number is not given to another; last, because it ends the federation."""
    assert "Revoked hospital_a" in federation.call("server", "sites", "revoke", "hospital_a")
    assert "revoked" in federation.call("server", "sites", "list")
    with pytest.raises(RuntimeError, match=r"hospital_a \(revoked\)\. Start"):
        federation.call("server", "fit", "--config", "config.yaml", *ELSEWHERE, "--trainer.default_root_dir", "revoked")
