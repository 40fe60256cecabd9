"""Clients in HDF5, and in the examples' arrays and Parquet files: the bits of the same clients given at once."""

import os
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import torch
from client_files import EACH, FIELDS, set_up, write_arrays, write_hdf5, write_parquet, write_parquet_folder
from command_line import ROOT
from federations import same_bits
from lazy_stores import SIZES, at_once, fit

from fl_lightning import FederatedDataModule, HDF5Clients


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
