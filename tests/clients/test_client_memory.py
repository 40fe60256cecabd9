"""What clients keep over rounds: in memory up to a limit, in files beyond it."""

import os
import shutil
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
import torch
from federations import Blobs, Consecutive, Plain, same_bits, trainer, weights

import fl_lightning as fl
from fl_lightning.clients import memory as memory_module
from fl_lightning.clients.memory import RULES, ClientMemory, references_of
from fl_lightning.rules import ControlVariates
from fl_lightning.utilities.atomic_file import fill_whole

ALONE: Any = SimpleNamespace(rank=0, gather=lambda mine: [mine])


def fit(folder: Path, rounds: int, limit: float, ckpt_path: str | None = None, disk: float | None = None) -> Plain:
    torch.manual_seed(3)
    module = Plain()
    orchestrator = fl.FederatedOrchestrator(
        fl.Scaffold(), fl.LocalTraining(), storage=fl.Storage(limit, disk), clients_per_round=2
    )
    checkpoints = [fl.BestCheckpoint("val_acc"), fl.LastCheckpoint()]
    run = trainer(rounds, orchestrator, *checkpoints, default_root_dir=folder, enable_checkpointing=True)
    run.fit(module, fl.FederatedDataModule(Blobs(), Consecutive()), ckpt_path=ckpt_path)
    return module


def memory_of(checkpoint: Path) -> dict:
    states = torch.load(checkpoint, weights_only=True)["callbacks"].values()
    return next(state["memory"] for state in states if "memory" in state)


def files_in(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_files_give_the_bits_of_memory_and_are_no_part_of_checkpoints(tmp_path):
    whole = fit(tmp_path / "memory", 6, 4.0)
    assert not (tmp_path / "memory" / "client_state").exists()
    folder = tmp_path / "files"
    fit(folder, 3, 0.0)
    resumed = fit(folder, 6, 0.0, "last")
    assert same_bits(weights(whole), weights(resumed))
    saved = folder / "checkpoints" / "last.ckpt"
    assert memory_of(saved).keys() == {"files"}
    clients = {int(Path(name).name.split("-")[0]) for name in files_in(folder / "client_state")}
    assert clients == memory_of(tmp_path / "memory" / "checkpoints" / "last.ckpt").keys()


def test_a_file_that_is_damaged_is_named(tmp_path):
    fit(tmp_path, 2, 0.0)
    for name in files_in(tmp_path / "client_state"):
        path = tmp_path / "client_state" / name
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    with pytest.raises(fl.CheckpointError, match=r"the state of client \d, is damaged.*'client_state'"):
        fit(tmp_path, 4, 0.0, "last")


def test_a_file_that_is_missing_is_noticed_before_a_client_trains(tmp_path):
    """Also one of a client that has an older one, which is not taken instead."""
    fit(tmp_path, 3, 0.0)
    lost = max(files_in(tmp_path / "client_state"), key=lambda name: int(name.split("-")[1]))
    path = tmp_path / "client_state" / lost
    path.rename(path.with_name(path.name.replace("-3-", "-1-")))
    with pytest.raises(fl.CheckpointError, match=r"lacks files with clients' state .* Restore the file"):
        fit(tmp_path, 4, 0.0, "last")


def test_a_disk_that_is_full_is_named(tmp_path):
    (tmp_path / "client_state").write_text("a file where the folder should be")
    with pytest.raises(fl.CheckpointError, match=r"Cannot write the state of client \d.*'federation.storage.memory'"):
        fit(tmp_path, 2, 0.0)


def bounded(folder: Path, limit: float = 0, disk: float = 2**40) -> ClientMemory:
    memory = ClientMemory()
    memory.bound(folder, limit, disk)
    return memory


def put(memory: ClientMemory, client: int, value: float, numbers: int = 3) -> None:
    memory.put(client, RULES, {"control": torch.full((numbers,), float(value))})


def put_round(memory: ClientMemory, clients: range, value: float, numbers: int = 3) -> None:
    for client in clients:
        put(memory, client, value, numbers)
    memory.settle(ALONE)


def of(memory: ClientMemory, client: int) -> float:
    return float(memory.kept(client)[RULES]["control"][2])


@pytest.mark.parametrize(
    ("before", "now", "elsewhere", "written"),
    [(0, 3, 0, 0), (0, 4, 0, 4), (0, 2, 1, 0), (0, 2, 2, 2), (1, 2, 0, 0), (2, 2, 0, 4)],
)
@pytest.mark.parametrize("limit", ["bytes", "number"])
def test_a_client_counts_once(tmp_path, monkeypatch, limit, before, now, elsewhere, written):
    """Room for three, 12,000 bytes or a number: clients of a round before, of this one, and those of another rank."""
    monkeypatch.setattr(memory_module, "_MOST_IN_MEMORY", 3 if limit == "number" else 1000)
    memory = bounded(tmp_path, 12_000 if limit == "bytes" else 2**30)
    put_round(memory, range(before), 0.0, 1000)
    for client in range(before, before + now):
        put(memory, client, client, 1000)
    theirs = iter(({100 + k: 4000 for k in range(elsewhere)}, ({}, set())))
    memory.settle(SimpleNamespace(rank=0, gather=lambda mine: [mine, next(theirs)]))
    assert len(files_in(tmp_path)) == written
    assert [of(memory, client) for client in range(before + now)] == [0.0] * before + list(range(before, before + now))


def test_what_was_put_after_a_rejected_update_is_taken_back_from_its_file(tmp_path):
    memory = bounded(tmp_path)
    put_round(memory, range(1, 2), 1.0)
    memory.undoable = True
    ControlVariates().keep(memory.drawer(1, RULES), {"control": torch.ones(3)}, in_place=False)
    put(memory, 2, 1.0)  # the limit is 0, so that what client 1 keeps goes to a file in the middle of the round
    assert len(files_in(tmp_path)) == 2
    assert of(memory, 1) == 2.0
    memory.undo(1)
    assert of(memory, 1) == 1.0
    assert len(files_in(tmp_path)) == 1


@pytest.mark.parametrize("moment", ["before the name", "after the name"])
def test_a_kill_while_a_file_gets_its_name_leaves_what_the_checkpoint_knows(tmp_path, moment):
    memory = bounded(tmp_path)
    put_round(memory, range(3), 1.0)
    state = memory.state_dict()
    child = os.fork()
    if not child:  # SIGKILL, between writing and renaming the file of client 1, or after it
        rename = Path.replace

        def killed(self: Path, target: Path) -> None:
            if "1-" in target.name and moment == "after the name":
                rename(self, target)
            if "1-" in target.name:
                os.kill(os.getpid(), signal.SIGKILL)
            rename(self, target)

        with patch.object(Path, "replace", killed):
            put_round(memory, range(3), 2.0)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    resumed = bounded(tmp_path)
    resumed.load_state_dict(state)
    left = [name for name in files_in(tmp_path) if "-1-" not in name or "partial" in name]
    assert left
    put_round(resumed, range(1), 3.0)
    assert [of(resumed, client) for client in range(3)] == [3.0, 1.0, 1.0]
    resumed.files.sweep(ALONE, {"last": references_of(state)})
    assert len(files_in(tmp_path)) == 4  # of the checkpoint and of client 0 now
    assert not files_in(tmp_path) & set(left)
    resumed.files.sweep(ALONE, {"the next last": references_of(resumed.state_dict())})
    assert len(files_in(tmp_path)) == 3


@pytest.mark.parametrize("others", [0, 1])
def test_a_run_killed_after_state_moved_back_to_memory_leaves_no_file(tmp_path, others):
    """Client 0 moves back, with or without another client that stays in a file; the killed process has not swept."""
    memory = bounded(tmp_path, 100)
    put_round(memory, range(1 + others), 1.0, 100)
    best = references_of(memory.state_dict())
    put_round(memory, range(1), 2.0)
    state = memory.state_dict()
    assert len(files_in(tmp_path)) == 1 + others
    resumed = bounded(tmp_path, 100)
    resumed.load_state_dict(state)
    resumed.files.sweep(ALONE, {"best": best, "last": references_of(state)})
    assert len(files_in(tmp_path)) == 1 + others
    resumed.files.sweep(ALONE, {"last": references_of(state)})
    assert len(files_in(tmp_path)) == others
    assert of(resumed, 0) == 2.0
    assert resumed.files.used


def test_two_runs_from_one_checkpoint_keep_their_own_files(tmp_path):
    """Both write the same clients in the same rounds, and a checkpoint of either refers to its own files."""
    memory = bounded(tmp_path)
    put_round(memory, range(3), 1.0)
    state, ends = memory.state_dict(), []
    put_round(memory, range(2), 2.0)
    ends.append(memory.state_dict())
    other = bounded(tmp_path)
    other.load_state_dict(state)
    put_round(other, range(1, 3), 3.0)
    ends.append(other.state_dict())
    other.files.sweep(ALONE, {k: references_of(end) for k, end in enumerate(ends)})
    for end, found in zip(ends, ([2.0, 2.0, 1.0], [1.0, 3.0, 3.0]), strict=True):
        read = bounded(tmp_path)
        read.load_state_dict(end)
        assert [of(read, client) for client in range(3)] == found
    other.files.sweep(ALONE, {1: references_of(ends[1])})
    assert len(files_in(tmp_path)) == 3


@pytest.mark.slow
@pytest.mark.parametrize("move", [shutil.move, shutil.copytree])
def test_a_folder_that_moved_takes_its_files_along(tmp_path, move):
    whole = fit(tmp_path / "whole", 4, 4.0)
    fit(tmp_path / "before", 2, 0.0)
    move(tmp_path / "before", tmp_path / "after")
    assert same_bits(weights(whole), weights(fit(tmp_path / "after", 4, 0.0, "last")))


def test_a_round_writes_what_its_cohort_keeps_and_no_list_of_all(tmp_path, monkeypatch):
    """Ten of a hundred thousand clients with state take part."""
    cohort, written = range(0, 100_000, 10_000), []

    def counted(target: Path, fill: Any) -> None:
        fill_whole(target, fill)
        written.append(target.stat().st_size)

    memory = bounded(tmp_path)
    put_round(memory, cohort, 1.0)
    memory.files._versions[:100_000] = 1  # as if the others had taken part
    monkeypatch.setattr("fl_lightning.clients.client_files.fill_whole", counted)
    put_round(memory, cohort, 2.0)
    assert len(written) == 10
    assert sum(written) < 20_000
    assert len(str(memory.state_dict())) < 500
    assert {path.name for path in tmp_path.iterdir()} == {str(k // 1000) for k in cohort}  # a folder for each thousand
    assert [of(memory, client) for client in cohort] == [2.0] * 10


def test_a_run_whose_files_take_more_than_the_limit_ends_after_that_round(tmp_path):
    limit = 2 * 4096 / 2**30
    fit(tmp_path, 1, 0.0, disk=limit)
    with pytest.raises(fl.CheckpointError, match=r"takes 1.53e-05 GiB .* 'federation.storage.disk' 7.63e-06. Raise it, delete"):
        fit(tmp_path / "more", 9, 0.0, disk=limit)


def test_the_limit_counts_former_states_until_they_are_swept(tmp_path):
    memory = bounded(tmp_path, disk=3 * 4096)
    put_round(memory, range(2), 1.0)
    for value in range(5):
        put_round(memory, range(1), float(value))
        memory.files.sweep(ALONE, {})
    put_round(memory, range(1), 2.0)
    with pytest.raises(fl.CheckpointError, match="delete older checkpoints"):
        put_round(memory, range(1), 3.0)
