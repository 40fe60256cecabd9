"""What clients keep over rounds: in memory up to a limit, in files beyond it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from federations import Blobs, Consecutive, Plain, same_bits, trainer, weights

from fl_lightning import (
    BestCheckpoint,
    CheckpointError,
    ConfigurationError,
    FederatedDataModule,
    FederatedOrchestrator,
    LastCheckpoint,
    LocalOnly,
    LocalTraining,
    Scaffold,
    TopK,
)
from fl_lightning.clients import memory as memory_module
from fl_lightning.clients.disk_room import DiskRoom
from fl_lightning.clients.memory import ClientMemory
from fl_lightning.rules import ControlVariates

KINDS = {
    "control variates": {"strategy": Scaffold},
    "models of their own": {"route": lambda: LocalOnly("val_acc")},
    "error feedback": {"transforms": lambda: [TopK(0.3)]},
}

EACH = [pytest.param(k, marks=[] if k == "error feedback" else pytest.mark.slow) for k in KINDS]


def fit(folder: Path, rounds: int, kind: str, limit: float, ckpt_path: str | None = None, **more: float) -> Plain:
    torch.manual_seed(3)
    module = Plain()
    made = {name: make() for name, make in KINDS[kind].items()}
    cohort = {} if "route" in made else {"clients_per_round": 2}
    orchestrator = FederatedOrchestrator(local=LocalTraining(), memory_limit=limit, **cohort, **made, **more)
    checkpoints = [BestCheckpoint("val_acc"), LastCheckpoint()]
    run = trainer(rounds, orchestrator, *checkpoints, default_root_dir=folder, enable_checkpointing=True)
    run.fit(module, FederatedDataModule(Blobs(), Consecutive()), ckpt_path=ckpt_path)
    return module


def memory_of(checkpoint: Path) -> dict:
    states = torch.load(checkpoint, weights_only=True)["callbacks"].values()
    return next(state["memory"] for state in states if "memory" in state)


def files_of(checkpoint: Path) -> set[str]:
    """The files to which a checkpoint refers, found in its bytes: names hold the client and the digest."""
    files = memory_of(checkpoint)["files"]
    folder = checkpoint.parent.parent / "client_state"
    listed = [files["recent"], *(torch.load(folder / one["file"], weights_only=True) for one in files["index"])]
    newest = {
        int(client): f"{int(client) // 1000}/{int(client)}-{bytes(digest.tolist()).hex()}.pt"
        for one in reversed(listed)
        for client, digest in zip(one["clients"], one["digests"], strict=True)
    }
    return {*newest.values(), *(one["file"] for one in files["index"])}


def files_in(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def clients_in(checkpoint: Path) -> set[int]:
    return {int(Path(name).name.split("-")[0]) for name in files_of(checkpoint) if not name.startswith("index")}


@pytest.fixture
def _index(monkeypatch: pytest.MonkeyPatch) -> None:
    """All clients but one are listed in the file of an index."""
    monkeypatch.setattr(memory_module, "_MOST_RECENT", 1)


@pytest.mark.parametrize("kind", EACH)
def test_files_give_the_bits_of_memory_and_are_no_part_of_checkpoints(tmp_path, kind):
    whole = fit(tmp_path / "memory", 6, kind, 4.0)
    assert not (tmp_path / "memory" / "client_state").exists()
    folder = tmp_path / "files"
    fit(folder, 3, kind, 0.0)
    resumed = fit(folder, 6, kind, 0.0, "last")
    assert same_bits(weights(whole), weights(resumed))
    saved = folder / "checkpoints" / "last.ckpt"
    assert memory_of(saved).keys() == {"files"}
    assert clients_in(saved) == memory_of(tmp_path / "memory" / "checkpoints" / "last.ckpt").keys()


@pytest.mark.slow
def test_a_limit_may_change_over_a_resume(tmp_path):
    whole = fit(tmp_path / "whole", 4, "control variates", 4.0)
    for first, second in ((0.0, 4.0), (4.0, 0.0)):
        folder = tmp_path / f"{first}"
        fit(folder, 2, "control variates", first)
        assert same_bits(weights(whole), weights(fit(folder, 4, "control variates", second, "last")))


@pytest.mark.slow
@pytest.mark.parametrize("recent", [1, 8192])
def test_files_stay_as_long_as_a_checkpoint_needs_them(tmp_path, monkeypatch, recent):
    monkeypatch.setattr(memory_module, "_MOST_RECENT", recent)
    fit(tmp_path, 12, "control variates", 0.0)
    needed = {name for checkpoint in ("best.ckpt", "last.ckpt") for name in files_of(tmp_path / "checkpoints" / checkpoint)}
    there = files_in(tmp_path / "client_state")
    assert needed <= there
    assert len(there) <= len(needed) + 3  # of the round before the last, whose checkpoint was overwritten after the sweep
    fit(tmp_path, 14, "control variates", 0.0, str(tmp_path / "checkpoints" / "best.ckpt"))


@pytest.mark.parametrize(("harm", "message"), [("unlink", "is missing"), ("flip", "is damaged")])
def test_files_that_are_not_whole_end_in_one_message(tmp_path, harm, message):
    fit(tmp_path, 2, "control variates", 0.0)
    for name in files_of(tmp_path / "checkpoints" / "last.ckpt"):
        path = tmp_path / "client_state" / name
        if harm == "unlink":
            path.unlink()
        else:
            content = bytearray(path.read_bytes())
            content[len(content) // 2] ^= 1
            path.write_bytes(content)
    with pytest.raises(CheckpointError, match=rf"the state of client \d, {message}.*'client_state'"):
        fit(tmp_path, 4, "control variates", 0.0, "last")


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


@pytest.mark.parametrize(
    ("before", "now", "elsewhere", "written"),
    [(0, 3, 0, 0), (0, 4, 0, 4), (0, 2, 1, 0), (0, 2, 2, 2), (1, 2, 0, 0), (2, 2, 0, 4)],
)
@pytest.mark.parametrize("limit", ["bytes", "number"])
def test_a_client_counts_once(tmp_path, monkeypatch, limit, before, now, elsewhere, written):
    """Room for three, 12,000 bytes or a number: clients of a round before, of this one, and those of another rank."""
    monkeypatch.setattr(memory_module, "_MOST_IN_MEMORY", 3 if limit == "number" else 1000)
    memory = ClientMemory()
    memory.bound(tmp_path, 12_000 if limit == "bytes" else 2**30)
    for first, last in ((0, before), (before, before + now)):
        memory.changes()
        for client in range(first, last):
            memory.put(client, control=torch.full((1000,), float(client)))
        memory.settle(memory.sizes() | {100 + k: 4000 for k in range(elsewhere)})
    assert len(files_in(tmp_path)) == written
    assert [float(memory.kept(client)["control"][7]) for client in range(before + now)] == list(range(before + now))


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


# ------------------------------------------------------------------ many clients


@pytest.mark.usefixtures("_index")
@pytest.mark.parametrize(("harm", "message"), [("unlink", "is missing"), ("flip", "is damaged")])
def test_an_index_that_is_not_whole_is_named(tmp_path, harm, message):
    fit(tmp_path, 3, "control variates", 0.0)
    (listed,) = memory_of(tmp_path / "checkpoints" / "last.ckpt")["files"]["index"]
    path = tmp_path / "client_state" / listed["file"]
    content = path.read_bytes()
    path.unlink() if harm == "unlink" else path.write_bytes(content[:-1])
    with pytest.raises(CheckpointError, match=f"which holds the index of clients' state, {message}"):
        fit(tmp_path, 4, "control variates", 0.0, "last")


@pytest.mark.usefixtures("_index")
@pytest.mark.slow
def test_a_run_that_moves_on_from_folder_to_folder_finds_each_clients_state(tmp_path):
    """Checkpoints in a third folder refer to files in all of them."""
    whole = fit(tmp_path / "whole", 7, "control variates", 4.0)
    checkpoint = None
    for rounds in (2, 4, 5, 7):
        module = fit(tmp_path / f"{rounds}", rounds, "control variates", 0.0, checkpoint)
        checkpoint = str(tmp_path / f"{rounds}" / "checkpoints" / "last.ckpt")
        assert memory_of(checkpoint)["files"]["index"]
    assert same_bits(weights(whole), weights(module))


@pytest.mark.slow
def test_a_folder_that_moved_takes_its_files_along(tmp_path):
    whole = fit(tmp_path / "whole", 4, "control variates", 4.0)
    fit(tmp_path / "before", 2, "control variates", 0.0)
    (tmp_path / "before").rename(tmp_path / "after")
    assert same_bits(weights(whole), weights(fit(tmp_path / "after", 4, "control variates", 0.0, "last")))


def put_round(memory: ClientMemory, clients: range, value: float) -> None:
    for client in clients:
        memory.put(client, control=torch.full((3,), value))
    memory.settle(memory.sizes())
    memory.changes()
    memory.end_settling()


@pytest.mark.slow
def test_a_checkpoint_does_not_grow_with_the_clients_that_ever_took_part(tmp_path, monkeypatch):
    """Files are listed up to a number; the rest is one reference. State that is small goes to files as well."""
    monkeypatch.setattr(memory_module, "_MOST_RECENT", 50)
    monkeypatch.setattr(memory_module, "_MOST_IN_MEMORY", 20)
    memory = ClientMemory()
    memory.bound(tmp_path, 2**30)
    for first in range(0, 3000, 30):
        put_round(memory, range(first, first + 30), float(first))
    state = memory.state_dict()
    assert state.keys() == {"files"}
    assert len(state["files"]["recent"]["clients"]) <= 50
    assert len(state["files"]["index"]) == 1
    restored = ClientMemory()
    restored.bound(tmp_path, 2**30)
    restored.load_state_dict(state)
    for client in (0, 29, 30, 1499, 2999):
        assert restored.kept(client)["control"].tolist() == [float(client // 30 * 30)] * 3
    assert restored.kept(3000) == {}
    assert {path.name for path in tmp_path.iterdir() if path.is_dir()} == {"0", "1", "2"}  # a folder for each thousand
    assert [*restored.vectors()] == [("control", 3)]


def test_a_newer_state_hides_the_one_in_the_index_and_its_file_goes_with_the_checkpoint(tmp_path, monkeypatch):
    monkeypatch.setattr(memory_module, "_MOST_RECENT", 2)
    memory = ClientMemory()
    memory.bound(tmp_path, 0)
    put_round(memory, range(5), 1.0)
    older = memory.state_dict()
    kept = {name for name in files_in(tmp_path) if not name.startswith("index")}
    put_round(memory, range(1), 2.0)
    checkpoints = {"best": memory.references(older), "last": memory.references(memory.state_dict())}
    memory.sweep(checkpoints)
    assert kept < files_in(tmp_path)
    assert memory.older_bytes == 4096  # one file of one block: the others are those of the run
    assert memory.kept(0)["control"].tolist() == [2.0] * 3
    memory.sweep({"last": checkpoints["last"]})
    assert len(kept & files_in(tmp_path)) == 4
    assert memory.older_bytes == 0


# ------------------------------------------------------------------ the disk


def test_a_run_that_needs_more_than_the_disk_is_refused_before_a_client_trains(tmp_path, monkeypatch):
    trained = []
    monkeypatch.setattr(Plain, "training_step", lambda self, *_: trained.append(1))
    message = (
        r"keeps .* KiB between rounds, and 3 clients can be drawn, .*above 'federation.disk_limit' 9.31e-10. Raise it, plan"
    )
    with pytest.raises(ConfigurationError, match=message):
        fit(tmp_path, 2, "control variates", 0.0, disk_limit=1 / 2**30)
    assert not trained
    assert not (tmp_path / "client_state").exists()


@pytest.mark.parametrize(("kind", "blocks"), [("error feedback", 2), ("models of their own", 2)])
def test_state_of_a_size_that_is_known_later_is_refused_after_the_first_round(tmp_path, kind, blocks):
    with pytest.raises(ConfigurationError, match=r"and 3 clients can be drawn, which takes .*'federation.disk_limit'"):
        fit(tmp_path, 9, kind, 0.0, disk_limit=blocks * 4096 / 2**30)
    assert len(files_in(tmp_path / "client_state")) <= 3


def test_clients_that_no_round_draws_need_no_room(tmp_path):
    fit(tmp_path, 1, "control variates", 0.0, disk_limit=2 * 4096 / 2**30)


def test_former_states_count_and_end_a_run_with_advice(tmp_path):
    memory = ClientMemory()
    memory.bound(tmp_path, 0, DiskRoom(2 * 4096, 2))
    put_round(memory, range(2), 1.0)
    with pytest.raises(CheckpointError, match=r"takes 1.14e-05 GiB .* 3.81e-06 GiB of it are former .* delete older"):
        put_round(memory, range(1), 2.0)


def test_a_state_that_is_restored_takes_its_room_once(tmp_path):
    memory = ClientMemory()
    memory.bound(tmp_path, 0, DiskRoom(3 * 4096, 2))
    put_round(memory, range(2), 1.0)
    memory.undoable = True
    memory.put(0, control=torch.zeros(3))
    memory.settle(memory.sizes())
    memory.undo(0)
    memory.end_settling()  # two states, and the file of the one that was taken back
