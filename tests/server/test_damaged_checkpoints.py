"""A checkpoint is whole, or refused by name; written beside the last one, under a name of its own."""

from __future__ import annotations

import os
import random
import subprocess
import zipfile
from pathlib import Path

import pytest
import torch
from federations import Plain, every_round, federate

from fl_lightning import AtomicCheckpointIO
from fl_lightning.errors import CheckpointError


class Payload:
    """What runs a command when it is unpickled."""

    def __reduce__(self):
        return (subprocess.call, (["touch", "touched"],))


def saved_twice(folder):
    federate(Plain(), 1, every_round(folder), flags={"enable_checkpointing": True})
    whole = (folder / "last.ckpt").read_bytes()
    for name in ("older", "newer"):
        (folder / f"{name}.ckpt").write_bytes(whole)
    torn = folder / "newest.ckpt"
    torn.write_bytes(whole[: len(whole) // 2])
    return whole


def test_a_damaged_entry_is_named_and_the_newest_whole_checkpoint_offered(tmp_path):
    whole = saved_twice(tmp_path)
    for age, name in enumerate(("newest", "last", "newer", "older")):
        os.utime(tmp_path / f"{name}.ckpt", (1e9 - age, 1e9 - age))
    path = tmp_path / "last.ckpt"
    with zipfile.ZipFile(path) as archive:
        largest = max(archive.infolist(), key=lambda entry: entry.file_size)
        numbers = archive.read(largest)
    position = whole.index(numbers) + len(numbers) // 2
    path.write_bytes(whole[:position] + bytes([whole[position] ^ 64]) + whole[position + 1 :])
    with pytest.raises(CheckpointError) as refused:
        federate(Plain(), 2, ckpt_path=str(path))
    message = str(refused.value)
    assert f"its entry '{largest.filename}' is damaged" in message
    assert "such as newer.ckpt, the newest complete one in the folder" in message


def test_a_flipped_bit_anywhere_is_refused_or_does_no_harm(tmp_path):
    """Some bytes are padding; none may change what is read."""
    torch.manual_seed(1)
    saved = {"weights": {"a": torch.randn(40), "b": torch.arange(7)}, "epoch": 3, "names": ["x", "y"]}
    path = tmp_path / "small.ckpt"
    io = AtomicCheckpointIO()
    io.save_checkpoint(saved, path)
    whole, draw, refused = path.read_bytes(), random.Random(5), 0
    for position in draw.sample(range(len(whole)), 400):
        path.write_bytes(whole[:position] + bytes([whole[position] ^ (1 << draw.randrange(8))]) + whole[position + 1 :])
        try:
            read = io.load_checkpoint(path)
        except CheckpointError:
            refused += 1
            continue
        assert read.keys() == saved.keys()
        assert all(torch.equal(read["weights"][name], saved["weights"][name]) for name in "ab")
        assert (read["epoch"], read["names"]) == (3, ["x", "y"])
    assert refused > 100


def test_other_files_are_no_checkpoints(tmp_path):
    io = AtomicCheckpointIO()
    for name, content in {"text": b"hello", "empty": b"", "zeros": bytes(5000)}.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(CheckpointError, match="is not a readable checkpoint") as refused:
            io.load_checkpoint(tmp_path / name)
        assert "trust" not in str(refused.value)
    with pytest.raises(CheckpointError, match="is not a readable checkpoint"):
        io.load_checkpoint(tmp_path)


def test_a_file_in_torchs_old_format_is_read_and_runs_nothing(tmp_path):
    io = AtomicCheckpointIO()
    torch.save({"a": torch.ones(3)}, tmp_path / "old.ckpt", _use_new_zipfile_serialization=False)
    assert io.load_checkpoint(tmp_path / "old.ckpt")["a"].tolist() == [1, 1, 1]
    torch.save({"a": Payload()}, tmp_path / "old.ckpt", _use_new_zipfile_serialization=False)
    with pytest.raises(CheckpointError, match="contains more than tensors and plain values") as refused:
        io.load_checkpoint(tmp_path / "old.ckpt")
    assert "weights_only" not in str(refused.value)
    assert not Path("touched").exists()


def test_the_file_being_written_has_the_process_in_its_name(tmp_path, monkeypatch):
    seen = []
    sync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda number: (seen.append([p.name for p in tmp_path.iterdir()]), sync(number)))
    AtomicCheckpointIO().save_checkpoint({"a": 1}, tmp_path / "last.ckpt")
    assert seen[0] == [f".last.ckpt.{os.getpid()}.partial"]
    assert [path.name for path in tmp_path.iterdir()] == ["last.ckpt"]
