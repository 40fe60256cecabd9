"""What only separate processes can show: SIGKILL and resume, and two ranks against one. Bit for bit, on the CPU."""

from __future__ import annotations

import math
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import torch
from algorithms import ALGORITHMS, outcome, prepare
from federations import same_bits, trainer

SCRIPT = Path(__file__).with_name("run_federation.py")


def launch(arguments: list[str], limit: int, folder: Path, expect: int = 0) -> str:
    """Run Python and give what it wrote to stderr; a process group that hangs is killed, not waited for."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, *arguments]
    process = subprocess.Popen(command, env=env, cwd=folder, stderr=subprocess.PIPE, text=True, start_new_session=True)
    try:
        _, stderr = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    assert process.returncode == expect, stderr
    return stderr


def run(folder: Path, name: str, *args: str, expect: int = 0) -> dict:
    """Run the script; what it wrote, or where it was to fail, what it said."""
    out = folder / f"{name}.pt"
    stderr = launch([str(SCRIPT), "--folder", str(folder / "checkpoints"), "--out", str(out), *args], 120, folder, expect)
    return torch.load(out, weights_only=True) if expect == 0 else {"stderr": stderr}


@pytest.fixture(scope="module")
def on_two_ranks(tmp_path_factory):
    """The final weights of every algorithm on two ranks, from a single launch."""
    out = tmp_path_factory.mktemp("ranks") / "finals.pt"
    script = str(Path(__file__).with_name("run_algorithms.py"))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ranks = ["-m", "torch.distributed.run", "--nproc_per_node=2", f"--master_port={port}"]
    stderr = launch([*ranks, script, str(out)], 300, out.parent)
    assert "FedCyclic trains one client after another: more ranks do not make it faster" in stderr
    return torch.load(out, weights_only=True)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_gives_the_same_weights_on_two_ranks(name, on_two_ranks):
    module, data, federation = prepare(name)
    trainer(2, federation).fit(module, data)
    assert same_bits(outcome(module, federation), on_two_ranks[name])


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    """The uninterrupted run on one rank."""
    return run(tmp_path_factory.mktemp("reference"), "reference")


@pytest.mark.parametrize("moment", ["in a round", "in a checkpoint"])
def test_killed_and_resumed_is_the_uninterrupted_run(moment, reference, tmp_path):
    memory = Path("/dev/shm")  # another file system than the temp folder's
    folder = Path(tempfile.mkdtemp(dir=memory)) if moment == "in a checkpoint" and memory.is_dir() else tmp_path
    try:
        run(folder, "killed", "--kill", moment, expect=-signal.SIGKILL)
        last = torch.load(folder / "checkpoints" / "last.ckpt", weights_only=True)
        assert last["global_step"] == 2  # rounds 0 and 1 are done, round 2 is lost
        resumed = run(folder, "resumed", "--resume")
        assert resumed["steps"] == reference["steps"] == 4
        assert same_bits(resumed["weights"], reference["weights"])
        assert resumed["metrics"] == reference["metrics"]
    finally:
        if folder != tmp_path:
            shutil.rmtree(folder)


@pytest.mark.parametrize("engine", ["trainer", "fabric"])
def test_two_ranks_give_the_weights_of_one(engine, reference, tmp_path):
    """AdaFed, class weights from a split validation set, a cohort of 4 over 2 ranks (a BatchNorm model with dropout)."""
    two = run(tmp_path, "two", "--ranks", "2", "--engine", engine)
    assert two["waited"] > 0 > reference["waited"]  # one rank has nobody to wait for
    assert same_bits(two["weights"], reference["weights"])
    assert two["metrics"].keys() == reference["metrics"].keys()
    for name, value in reference["metrics"].items():
        assert math.isclose(two["metrics"][name], value, rel_tol=1e-6), name


def test_an_error_on_one_rank_ends_all(tmp_path):
    """No hang, and the cause is said."""
    ended = run(tmp_path, "broken", "--module", "broken", "--ranks", "2", expect=1)
    assert "ZeroDivisionError: in one client" in ended["stderr"]


def test_two_ranks_with_uneven_shares_and_the_users_own_metrics(tmp_path):
    """Five clients over two ranks, a module that logs and synchronises torchmetrics of its own in training."""
    one = run(tmp_path, "one", "--module", "plain", "--rounds", "3")
    shutil.rmtree(tmp_path / "checkpoints")
    two = run(tmp_path, "two", "--module", "plain", "--rounds", "3", "--ranks", "2")
    assert same_bits(one["weights"], two["weights"])
    for name, value in one["metrics"].items():
        if name == "val_loss":  # Lightning's sync_dist rounds 30.5 examples per rank to 30
            continue
        assert math.isclose(two["metrics"][name], value, rel_tol=1e-6), name
