"""What clients keep over rounds: in memory up to a limit, in files beyond it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from federations import Blobs, Consecutive, Plain, same_bits, trainer, weights

from fl_lightning import (
    BestCheckpoint,
    CheckpointError,
    FederatedDataModule,
    FederatedOrchestrator,
    LastCheckpoint,
    LocalOnly,
    LocalTraining,
    Scaffold,
    TopK,
)
from fl_lightning.clients.memory import ClientMemory
from fl_lightning.rules import ControlVariates

KINDS = {
    "control variates": {"strategy": Scaffold},
    "models of their own": {"route": lambda: LocalOnly("val_acc")},
    "error feedback": {"transforms": lambda: [TopK(0.3)]},
}


def fit(folder: Path, rounds: int, kind: str, limit: float, ckpt_path: str | None = None) -> Plain:
    torch.manual_seed(3)
    module = Plain()
    made = {name: make() for name, make in KINDS[kind].items()}
    cohort = {} if "route" in made else {"clients_per_round": 2}
    orchestrator = FederatedOrchestrator(local=LocalTraining(), memory_limit=limit, **cohort, **made)
    checkpoints = [BestCheckpoint("val_acc"), LastCheckpoint()]
    run = trainer(rounds, orchestrator, *checkpoints, default_root_dir=folder, enable_checkpointing=True)
    run.fit(module, FederatedDataModule(Blobs(), Consecutive()), ckpt_path=ckpt_path)
    return module


def memory_of(checkpoint: Path) -> dict:
    states = torch.load(checkpoint, weights_only=True)["callbacks"].values()
    return next(state["memory"] for state in states if "memory" in state)


@pytest.mark.parametrize("kind", KINDS)
def test_files_give_the_bits_of_memory_and_are_no_part_of_checkpoints(tmp_path, kind):
    whole = fit(tmp_path / "memory", 6, kind, 4.0)
    assert not (tmp_path / "memory" / "client_state").exists()
    folder = tmp_path / "files"
    fit(folder, 3, kind, 0.0)
    resumed = fit(folder, 6, kind, 0.0, "last")
    assert same_bits(weights(whole), weights(resumed))
    saved = folder / "checkpoints" / "last.ckpt"
    assert memory_of(saved).keys() == memory_of(tmp_path / "memory" / "checkpoints" / "last.ckpt").keys()
    assert all(kept.keys() == {"stored"} for kept in memory_of(saved).values())


def test_a_limit_may_change_over_a_resume(tmp_path):
    whole = fit(tmp_path / "whole", 6, "control variates", 4.0)
    for first, second in ((0.0, 4.0), (4.0, 0.0)):
        folder = tmp_path / f"{first}"
        fit(folder, 3, "control variates", first)
        assert same_bits(weights(whole), weights(fit(folder, 6, "control variates", second, "last")))


def test_files_stay_as_long_as_a_checkpoint_needs_them(tmp_path):
    fit(tmp_path, 12, "control variates", 0.0)
    saved = [memory_of(tmp_path / "checkpoints" / name) for name in ("best.ckpt", "last.ckpt")]
    needed = {kept["stored"]["file"] for memory in saved for kept in memory.values()}
    there = {path.name for path in (tmp_path / "client_state").iterdir()}
    assert needed <= there
    assert len(there) <= len(needed) + 2  # of the round before the last, whose checkpoint was overwritten after the sweep
    fit(tmp_path, 14, "control variates", 0.0, str(tmp_path / "checkpoints" / "best.ckpt"))


@pytest.mark.parametrize(("harm", "message"), [("unlink", "is missing"), ("flip", "is damaged")])
def test_files_that_are_not_whole_end_in_one_message(tmp_path, harm, message):
    fit(tmp_path, 2, "control variates", 0.0)
    for kept in memory_of(tmp_path / "checkpoints" / "last.ckpt").values():
        path = tmp_path / "client_state" / kept["stored"]["file"]
        if harm == "unlink":
            path.unlink()
        else:
            content = bytearray(path.read_bytes())
            content[len(content) // 2] ^= 1
            path.write_bytes(content)
    with pytest.raises(CheckpointError, match=rf"the state of client \d, {message}.*'client_state'"):
        fit(tmp_path, 4, "control variates", 0.0, "last")


def test_a_folder_that_moved_takes_its_files_along(tmp_path):
    whole = fit(tmp_path / "whole", 4, "control variates", 0.0)
    fit(tmp_path / "before", 2, "control variates", 0.0)
    (tmp_path / "before").rename(tmp_path / "after")
    assert same_bits(weights(whole), weights(fit(tmp_path / "after", 4, "control variates", 0.0, "last")))


def test_a_disk_that_is_full_is_named(tmp_path):
    (tmp_path / "client_state").write_text("a file where the folder should be")
    with pytest.raises(CheckpointError, match=r"Cannot write the state of client \d.*'federation.memory_limit'"):
        fit(tmp_path, 2, "control variates", 0.0)


def test_one_round_of_many_clients_stays_within_the_limit(tmp_path):
    """Ten models of 4,000 bytes with room for three: before the tenth is put there are at most four."""
    memory = ClientMemory()
    memory.bound(tmp_path, 12_000)
    held = []
    for client in range(10):
        memory.put(client, control=torch.full((1000,), float(client)))
        held.append(sum(memory.sizes().values()))
    assert max(held) <= 16_000
    memory.settle(memory.sizes())
    assert sum(memory.sizes().values()) <= 12_000
    assert [float(memory.kept(client)["control"][7]) for client in range(10)] == list(range(10))


def test_what_was_put_after_a_rejected_update_is_taken_back_from_its_file(tmp_path):
    memory = ClientMemory()
    memory.bound(tmp_path, 0)
    memory.put(1, control=torch.ones(5))
    memory.settle(memory.sizes())
    memory.undoable = True
    ControlVariates().keep(memory.drawer(1, ""), {"control": torch.ones(5)}, in_place=False)
    assert memory.kept(1)["control"].tolist() == [2.0] * 5
    memory.undo(1)
    assert memory.kept(1)["control"].tolist() == [1.0] * 5
