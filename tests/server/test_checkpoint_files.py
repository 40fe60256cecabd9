"""A checkpoint is whole, or refused by name, and does nothing when it is read but give back what was saved."""

import argparse
import collections
import dataclasses
import io
import os
import random
import subprocess
import threading
import zipfile
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import lightning as L
import numpy as np
import pytest
import torch
from federations import Blobs, Consecutive, Plain, every_round, federate, network, same_bits, trainer, weights
from lightning.pytorch.plugins import AsyncCheckpointIO, TorchCheckpointIO

from fl_lightning import (
    AtomicCheckpointIO,
    Checkpoints,
    ClassificationTask,
    FederatedDataModule,
    FederatedOrchestrator,
    KMeansTask,
    RegressionTask,
)
from fl_lightning.errors import CheckpointError, ConfigurationError


class Payload:
    """What runs a command when it is unpickled."""

    def __reduce__(self):
        return (subprocess.call, (["touch", "touched"],))


@pytest.fixture
def poisoned(tmp_path):
    """A federation's checkpoint with a payload."""
    federate(Plain(), 1, every_round(tmp_path), flags={"enable_checkpointing": True})
    path = tmp_path / "last.ckpt"
    torch.save(torch.load(path, weights_only=True) | {"more": Payload()}, path)
    return path


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *args):
        pass


@pytest.fixture
def served(tmp_path):
    """The folder's address on this machine."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(tmp_path)))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("verb", "enabled", "where"),
    [*((verb, True, "file") for verb in ("fit", "validate", "test", "predict")), ("fit", True, "URL"), ("fit", False, "file")],
)
def test_no_stage_runs_what_a_checkpoint_holds(verb, enabled, where, poisoned, served):
    path = str(poisoned) if where == "file" else f"{served}/{poisoned.name}"
    run = trainer(2, FederatedOrchestrator(enabled=enabled))
    with pytest.raises(CheckpointError, match="contains more than tensors and plain values") as refused:
        getattr(run, verb)(Plain(), FederatedDataModule(Blobs(), Consecutive()), ckpt_path=path)
    assert "\n" not in str(refused.value)
    assert "weights_only" not in str(refused.value)
    assert "'subprocess.call' can run arbitrary code" in str(refused.value)
    with pytest.raises(CheckpointError, match=r"'weights_only' is False.*trusted_classes"):
        getattr(run, verb)(Plain(), FederatedDataModule(Blobs(), Consecutive()), ckpt_path=path, weights_only=False)
    assert not Path("touched").exists()
    torch.load(poisoned, weights_only=False)  # where nobody forbids it, the payload does run
    assert Path("touched").exists()


def test_a_wrapped_checkpoint_io_is_made_safe_within(poisoned, served):
    run = trainer(2, FederatedOrchestrator(), plugins=[AsyncCheckpointIO()])
    with pytest.raises(CheckpointError, match="contains more than tensors and plain values"):
        run.validate(Plain(), FederatedDataModule(Blobs(), Consecutive()), ckpt_path=f"{served}/{poisoned.name}")
    assert isinstance(run.strategy.checkpoint_io, AsyncCheckpointIO)
    assert not Path("touched").exists()


@pytest.mark.parametrize("where", ["file", "URL"])
@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        (ClassificationTask, {"network": network(), "num_classes": 3}),
        (RegressionTask, {"network": network()}),
        (KMeansTask, {"num_clusters": 2, "num_features": 4}),
        (FederatedDataModule, {"datamodule": Blobs(), "partitioner": Consecutive()}),
    ],
)
def test_load_from_checkpoint_runs_nothing(kind, settings, where, poisoned, served):
    path = str(poisoned) if where == "file" else f"{served}/{poisoned.name}"
    with pytest.raises(CheckpointError, match="contains more than tensors and plain values"):
        kind.load_from_checkpoint(path, **settings)
    with pytest.raises(CheckpointError, match="'weights_only' is False"):
        kind.load_from_checkpoint(path, weights_only=False, **settings)
    assert not Path("touched").exists()


@pytest.mark.slow
def test_a_url_is_read_like_a_file_and_not_from_an_earlier_download(tmp_path, served):
    """torch.hub keeps what it has downloaded by the last part of its address."""
    for number in range(2):
        folder = tmp_path / str(number)
        task = ClassificationTask(network(), 3)
        federate(task, 1, every_round(folder), flags={"enable_checkpointing": True})
        other = ClassificationTask.load_from_checkpoint(f"{served}/{number}/last.ckpt", network=network(), num_classes=3)
        assert same_bits(weights(task), weights(other))
    resumed = federate(ClassificationTask(network(), 3), 2, ckpt_path=f"{served}/1/last.ckpt")
    assert resumed.global_step == 2


@dataclasses.dataclass
class Shape:
    width: int


class Marked(dict):
    """torch does not fill dictionaries of other classes, whatever is trusted."""


class Unsaveable(L.Callback):
    def state_dict(self):
        return {"function": lambda: 8}


class Own(Plain):
    """Its hyperparameters hold objects, as chemprop's do."""

    def __init__(self, shape, lr=0.1) -> None:
        L.LightningModule.__init__(self)
        self.save_hyperparameters()
        super().__init__(lr)
        self.hparams["shape"] = shape


HERE = Shape.__module__
NEEDED = {
    "dataclass": (Shape(8), [f"{HERE}.Shape"]),
    "namespace": (argparse.Namespace(width=8), ["argparse.Namespace"]),
    "path": (Path("x"), [f"{type(Path()).__module__}.{type(Path()).__qualname__}"]),
    "numpy": (np.float64(8), None),
    "renamed": (collections.UserDict(), ["collections.UserDict"]),
    "module": (torch.nn.Linear(2, 2), ["torch.nn.modules.linear.Linear"]),
}


def saving(folder, shape, **settings):
    federate(Own(shape), 1, every_round(folder), flags={"enable_checkpointing": True}, **settings)


@pytest.mark.parametrize("kind", ["dataclass", *(pytest.param(kind, marks=pytest.mark.slow) for kind in [*NEEDED][1:])])
def test_what_a_checkpoint_needs_is_said_before_round_0_ready_to_paste(kind, tmp_path):
    """The list that the message gives is complete: with it the run saves, and what it saved is read by every road."""
    shape, expected = NEEDED[kind]
    before = set(torch.serialization.get_safe_globals())
    with pytest.raises(ConfigurationError, match=r"before the first round.*trusted_classes' to \[") as refused:
        saving(tmp_path, shape=shape)
    assert not any(tmp_path.glob("*.ckpt"))
    names = str(refused.value).partition("trusted_classes' to [")[2].partition("]")[0].split(", ")
    assert expected is None or set(expected) <= set(names)
    saving(tmp_path, shape=shape, checkpoints=Checkpoints(names))
    path = str(tmp_path / "last.ckpt")
    data = FederatedDataModule(Blobs(), Consecutive())
    with pytest.raises(CheckpointError, match=r"If you trust its author, set 'federation.checkpoints.trusted_classes' to"):
        trainer(1, FederatedOrchestrator()).validate(Own(shape), data, ckpt_path=path)
    trainer(1, FederatedOrchestrator(checkpoints=Checkpoints(names))).validate(Own(shape), data, ckpt_path=path, verbose=False)
    assert federate(Own(shape), 2, ckpt_path=path, checkpoints=Checkpoints(names)).global_step == 2
    assert set(torch.serialization.get_safe_globals()) == before


def test_what_can_be_saved_without_trust(tmp_path):
    """Chemprop's parts hand theirs to the module in Lightning's own dictionaries, which torch does not fill."""
    of_a_part = Plain(lr=0.3).hparams
    saving(tmp_path, shape=[{"part": of_a_part}])
    saved = torch.load(tmp_path / "last.ckpt", weights_only=True)["hyper_parameters"]["shape"]
    assert saved == [{"part": dict(of_a_part)}]
    assert type(saved[0]["part"]) is dict
    assert federate(Own(Shape(8)), 1).global_step == 1  # a run without checkpoints is not asked


def test_what_cannot_be_loaded_even_if_trusted_is_to_be_left_out(tmp_path):
    with pytest.raises(ConfigurationError, match=r"Marked.*save_hyperparameters\(ignore=\["):
        saving(tmp_path, shape=Marked(width=8))
    with pytest.raises(ConfigurationError, match=r"before the first round .* cannot be saved .*lambda.*Remove the objects"):
        federate(Plain(), 1, every_round(tmp_path), Unsaveable(), flags={"enable_checkpointing": True})


def test_whose_io_reads_decides(tmp_path):
    for plugin in (type("OwnIO", (TorchCheckpointIO,), {})(), AtomicCheckpointIO([f"{HERE}.Shape"])):
        flags = {"enable_checkpointing": True, "plugins": [plugin]}
        assert federate(Own(Shape(8)), 1, every_round(tmp_path), flags=flags).global_step == 1
    with pytest.raises(CheckpointError, match="Shape"):
        federate(Own(Shape(8)), 2, ckpt_path=str(tmp_path / "last.ckpt"))


def test_looking_ahead_changes_nothing_and_leaves_the_weights_out(tmp_path, monkeypatch):
    """The run with checkpoints ends as the one without; what is tried is small though the model is not."""
    finals, sizes = [], []
    save = torch.save

    def measured(what, file, *more, **settings):
        content = io.BytesIO()
        save(what, content, *more, **settings)
        sizes.append(file.write(content.getvalue()))

    monkeypatch.setattr(torch, "save", measured)
    for callbacks in ([], [every_round(tmp_path)]):
        torch.manual_seed(3)
        module = Plain(momentum=0.9)
        module.bulk = torch.nn.Parameter(torch.zeros(1_000_000), requires_grad=False)
        federate(module, 2, *callbacks, flags={"enable_checkpointing": bool(callbacks)})
        finals.append(weights(module))
    assert same_bits(*finals)
    assert sizes[0] < 100_000 < 4_000_000 < sizes[1]


def test_a_damaged_entry_is_named_and_the_newest_whole_checkpoint_offered(tmp_path):
    federate(Plain(), 1, every_round(tmp_path), flags={"enable_checkpointing": True})
    path = tmp_path / "last.ckpt"
    whole = path.read_bytes()
    for age, name in enumerate(("newest", "last", "newer", "older")):
        file = tmp_path / f"{name}.ckpt"
        file.write_bytes(whole[: len(whole) // 2] if name == "newest" else whole)
        os.utime(file, (1e9 - age, 1e9 - age))
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
