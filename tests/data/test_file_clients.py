"""Clients in Parquet, HDF5 and arrays of numpy: the bits of the same clients given at once, few reads, and clear errors."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from client_files import EACH, FIELDS, set_up, write_arrays, write_hdf5, write_parquet, write_parquet_folder, write_shards
from federations import same_bits
from lazy_stores import SIZES, at_once, fit

from fl_lightning import ArrayClients, FederatedDataModule, HDF5Clients, LazyClients, ParquetClients

FORMS: dict[str, tuple[Callable[..., LazyClients], Callable[[Path], Path]]] = {
    "arrays": (ArrayClients, lambda folder: write_arrays(folder / "arrays")),
    "shards": (ArrayClients, lambda folder: write_shards(folder / "shards")),
    "parquet": (ParquetClients, lambda folder: write_parquet(folder / "clients.parquet")),
    "parquet files": (ParquetClients, lambda folder: write_parquet_folder(folder / "parts")),
    "hdf5": (HDF5Clients, lambda folder: write_hdf5(folder / "clients.h5")),
}


@pytest.mark.parametrize("form", FORMS)
def test_each_client_has_its_own_examples_and_the_server_those_of_the_test_file(tmp_path: Path, form: str) -> None:
    """A federation has the bits of the same clients given at once."""
    kind, write = FORMS[form]
    path = str(write(tmp_path))
    own = set_up(kind, path, ["y", "x"], test_path=path, test_clients=3, eval_batch_size=20)
    assert own.num_examples().tolist() == SIZES
    for client, (x, y) in enumerate(EACH):
        found = own.open(client)
        assert [len(found), found.tensors[1].dtype] == [len(y), torch.float32]
        assert np.array_equal(found.tensors[1], x)
        assert np.array_equal(found.tensors[0], y)
    batches = [y for y, _ in own.val_dataloader()]
    assert [len(batch) for batch in batches] == [20, 4]
    assert np.array_equal(torch.cat(batches), np.concatenate([y for _, y in EACH[:3]]))
    again = kind(path, FIELDS, batch_size=4)
    assert same_bits(fit(FederatedDataModule(again)), fit(at_once()))
    assert again.origin.endswith("(4 clients, 33 examples, read when drawn)")


def test_shapes_scales_and_types(tmp_path: Path) -> None:
    images = np.arange(24, dtype=np.uint8).reshape(2, 12)
    np.save(tmp_path / "image.npy", images)
    np.save(tmp_path / "precise.npy", np.array([0.5, 2.5]))
    np.save(tmp_path / "label.npy", np.array([3, 4], np.uint8))
    np.save(tmp_path / "ends.npy", [2])
    fields = ["image", "label", "precise"]
    own = set_up(ArrayClients, tmp_path, fields, shapes={"image": [3, 2, 2]}, scales={"image": 0.5})
    image, label, precise = own.open(0).tensors
    assert image.tolist() == (images.reshape(2, 3, 2, 2) / 2).tolist()
    assert [image.dtype, label.dtype, precise.dtype] == [torch.float32, torch.int64, torch.float32]


def test_text_stays_text(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    import pyarrow as pa
    from pyarrow import parquet

    with h5py.File(tmp_path / "text.h5", "w") as file:
        file["examples/a/snippets"] = [b"to be", "or n\u00f6t".encode()]
    parquet.write_table(pa.table({"client": [7, 7], "snippets": ["to be", "or n\u00f6t"]}), tmp_path / "text.parquet")
    for own in (
        set_up(HDF5Clients, tmp_path / "text.h5", ["snippets"]),
        set_up(ParquetClients, tmp_path / "text.parquet", ["snippets"]),
    ):
        found = own.open(0)
        assert [found[k] for k in range(len(found))] == [("to be",), ("or n\u00f6t",)]


def test_a_parquet_client_reads_its_row_groups_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from pyarrow import parquet

    own = ParquetClients(str(write_parquet(tmp_path / "clients.parquet")), FIELDS)
    own.setup("fit")
    read: list[list[int]] = []
    whole = parquet.ParquetFile.read_row_groups

    def counting(self: Any, groups: list[int], **kwargs: Any) -> Any:
        read.append(groups)
        return whole(self, groups, **kwargs)

    monkeypatch.setattr(parquet.ParquetFile, "read_row_groups", counting)
    own.open(2)  # rows 19 to 23 of groups of four
    assert read == [[4, 5]]


def test_hdf5_clients_are_listed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_hdf5(tmp_path / "clients.h5")
    index = Path(f"{path}.index.npz")
    set_up(HDF5Clients, path)
    assert index.exists()
    with monkeypatch.context() as patched:
        patched.setattr("fl_lightning.data.hdf5_clients._listed", lambda *_: pytest.fail("listed again"))
        assert set_up(HDF5Clients, path).num_examples().tolist() == SIZES
    size = path.stat().st_size
    write_hdf5(path, EACH[::-1])
    os.utime(path, (2, 2))
    assert path.stat().st_size == size  # only its time tells that it is another file
    assert set_up(HDF5Clients, path).num_examples().tolist() == SIZES[::-1]
    write_hdf5(path, EACH[1:])
    os.utime(path, (1, 1))
    assert set_up(HDF5Clients, path).num_examples().tolist() == SIZES[1:]
    index.write_bytes(b"not an index")
    assert set_up(HDF5Clients, path).num_examples().tolist() == SIZES[1:]


def test_an_index_that_cannot_be_written_is_a_warning_and_has_another_place(tmp_path: Path) -> None:
    path = write_hdf5(tmp_path / "clients.h5")
    Path(f"{path}.index.npz").mkdir()
    own = HDF5Clients(str(path), FIELDS)
    with pytest.warns(UserWarning, match="so each run lists the clients again. Set 'data.datamodule.index_path'"):
        own.setup("fit")
    assert own.num_examples().tolist() == SIZES
    set_up(HDF5Clients, path, index_path=str(tmp_path / "deep" / "index.npz"))
    assert (tmp_path / "deep" / "index.npz").exists()
