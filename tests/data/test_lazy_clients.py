"""Clients whose examples are read when they are drawn, also from files: the bits of the same clients given at once."""

import os
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from client_files import EACH, FIELDS, set_up, write_arrays, write_hdf5, write_parquet, write_parquet_folder
from command_line import ROOT
from federations import blobs, every_round, ready, same_bits
from lazy_stores import SIZES, Opened, Store, at_once, fit, lazily
from torch.utils.data import DataLoader, TensorDataset

from fl_lightning import ExamplePrivacy, FederatedDataModule, HDF5Clients

# ------ Clients whose examples are read when they are drawn


PRIVATE = {"privacy": ExamplePrivacy(max_grad_norm=1.0, noise_multiplier=0.5, noise_seed=7)}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("engine", "listed", "local"),
    [
        ("trainer", True, {}),
        ("fabric", False, {"full_batch": True}),
        ("fabric", False, PRIVATE),
        ("stacked", False, {}),
        ("stacked", True, {}),
    ],
)
def test_the_same_bits_as_the_same_clients_given_at_once(engine: str, listed: bool, local: Any) -> None:
    lazy, given = (fit(data, engine=engine, **local) for data in (lazily(Store(listed)), at_once(listed)))
    assert same_bits(lazy, given)


@pytest.mark.parametrize("engine", ["fabric", "trainer", "stacked"])
def test_clients_are_opened_for_their_turns_alone_and_then_released(tmp_path: Path, engine: str) -> None:
    """A run that is resumed opens no further ones."""
    store = Store()
    data = ready(lazily(store, val=DataLoader(TensorDataset(*blobs(8, 9)), 4)))
    assert store.opened == []
    assert data.num_clients == 4
    assert data.num_examples(1) == 12
    fit(data, 3, every_round(tmp_path), engine=engine)
    assert len(store.opened) == 3 * 2
    assert store.most <= 2
    assert len(store.alive) <= (engine == "trainer")  # whose last loader lives until Python collects cycles
    again = Store()
    fit(lazily(again, val=DataLoader(TensorDataset(*blobs(8, 9)), 4)), 4, engine=engine, ckpt_path=str(tmp_path / "last.ckpt"))
    assert len(again.opened) == 2


def test_a_million_clients_are_described_by_their_number() -> None:
    opened = []

    def open_client(client: int) -> TensorDataset:
        opened.append(client)
        return TensorDataset(*blobs(3, client))

    fit(FederatedDataModule(Opened(open_client, torch.tensor(3).expand(1_000_000), 32)))
    assert len(opened) == len(set(opened)) == 4


def test_the_union_of_all_clients_is_the_baseline_without_a_federation() -> None:
    data = ready(lazily(Store()))
    batches = list(data.train_dataloader())
    assert len(batches) == len(data.train_dataloader()) == sum(-(-n // 4) for n in SIZES)
    expected = torch.cat([blobs(n, client)[0] for client, n in enumerate(SIZES)])
    assert torch.equal(torch.cat([x for x, _ in batches]), expected)


# ------ Clients in HDF5, and in the examples' arrays and Parquet files


def test_each_client_has_its_own_examples_and_the_server_those_of_the_test_file(tmp_path: Path) -> None:
    """A federation has the bits of the same clients given at once."""
    path = str(write_hdf5(tmp_path / "clients.h5"))
    own = set_up(path, ["y", "x"], test_path=path, test_clients=3, eval_batch_size=20)
    assert own.num_examples().tolist() == SIZES
    for client, (x, y) in enumerate(EACH):
        found = own.open(client)
        assert [len(found), found.tensors[1].dtype] == [len(y), torch.float32]
        assert np.array_equal(found.tensors[1], x)
        assert np.array_equal(found.tensors[0], y)
    batches = [y for y, _ in own.val_dataloader()]
    assert [len(batch) for batch in batches] == [20, 4]
    assert np.array_equal(torch.cat(batches), np.concatenate([y for _, y in EACH[:3]]))
    again = HDF5Clients(path, FIELDS, batch_size=4)
    assert same_bits(fit(FederatedDataModule(again)), fit(at_once()))
    assert again.origin.endswith("(4 clients, 33 examples, read when drawn)")


@pytest.mark.parametrize(
    ("kind", "write"),
    [("ArrayClients", write_arrays), ("ParquetClients", write_parquet), ("ParquetClients", write_parquet_folder)],
)
def test_the_examples_of_other_files_have_the_bits_of_the_same_clients(kind, write, tmp_path, monkeypatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "examples"))
    own = getattr(import_module("file_clients"), kind)
    path = str(write(tmp_path / "clients"))
    assert same_bits(fit(FederatedDataModule(own(path, FIELDS, batch_size=4))), fit(at_once()))


def test_shapes_scales_types_and_text(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    images = np.arange(24, dtype=np.uint8).reshape(2, 12)
    with h5py.File(tmp_path / "own.h5", "w") as file:
        group = file.create_group("examples/a")
        group["image"], group["precise"], group["label"] = images, np.array([0.5, 2.5]), np.array([3, 4], np.uint8)
        group["text"] = [b"to be", "or n\u00f6t".encode()]
    own = set_up(tmp_path / "own.h5", ["image", "label", "precise"], shapes={"image": [3, 2, 2]}, scales={"image": 0.5})
    image, label, precise = own.open(0).tensors
    assert image.tolist() == (images.reshape(2, 3, 2, 2) / 2).tolist()
    assert [image.dtype, label.dtype, precise.dtype] == [torch.float32, torch.int64, torch.float32]
    found = set_up(tmp_path / "own.h5", ["text", "label"]).open(0)
    assert [found[k] for k in range(len(found))] == [("to be", 3), ("or n\u00f6t", 4)]


def test_hdf5_clients_are_listed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_hdf5(tmp_path / "clients.h5")
    index = Path(f"{path}.index.json")
    set_up(path)
    assert index.exists()
    with monkeypatch.context() as patched:
        patched.setattr("fl_lightning.data.hdf5_clients._size", lambda *_: pytest.fail("listed again"))
        assert set_up(path).num_examples().tolist() == SIZES
    size = path.stat().st_size
    write_hdf5(path, EACH[::-1])
    os.utime(path, (2, 2))
    assert path.stat().st_size == size  # only its time tells that it is another file
    assert set_up(path).num_examples().tolist() == SIZES[::-1]
    write_hdf5(path, EACH[1:])
    os.utime(path, (1, 1))
    assert set_up(path).num_examples().tolist() == SIZES[1:]
    index.write_bytes(b"not an index")
    assert set_up(path).num_examples().tolist() == SIZES[1:]


def test_without_an_index_that_can_be_written_clients_are_listed_again_and_a_link_helps(tmp_path: Path) -> None:
    path = write_hdf5(tmp_path / "clients.h5")
    Path(f"{path}.index.json").mkdir()
    assert set_up(path).num_examples().tolist() == SIZES
    (tmp_path / "link.h5").symlink_to(path)
    assert set_up(tmp_path / "link.h5").num_examples().tolist() == SIZES
    assert (tmp_path / "link.h5.index.json").exists()
