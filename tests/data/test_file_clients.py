"""Clients in Parquet, HDF5 and arrays of numpy: the bits of the same clients given at once, few reads, and clear errors."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import pytest
import torch
from federations import Plain, blobs, same_bits, weights
from torch.utils.data import TensorDataset

from fl_lightning import (
    ArrayClients,
    ConfigurationError,
    DataError,
    FederatedDataModule,
    FederatedOrchestrator,
    HDF5Clients,
    LazyClients,
    LocalTraining,
    ParquetClients,
)
from fl_lightning.errors import VersionError

SIZES = [7, 12, 5, 9]
EACH = [tuple(part.numpy() for part in blobs(n, client)) for client, n in enumerate(SIZES)]
FIELDS = ["x", "y"]


def write_arrays(folder: Path, clients: list[Any] = EACH) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, parts in zip("xy", zip(*clients, strict=True), strict=True):
        np.save(folder / f"{name}.npy", np.concatenate(parts))
    np.save(folder / "ends.npy", np.cumsum([len(y) for _, y in clients]))
    return folder


def write_shards(folder: Path) -> Path:
    write_arrays(folder / "a", EACH[:1])
    write_arrays(folder / "b", EACH[1:])
    return folder


def write_parquet(path: Path, clients: list[Any] = EACH, names: Any = None, group: int = 4) -> Path:
    import pyarrow as pa
    from pyarrow import parquet

    path.parent.mkdir(parents=True, exist_ok=True)
    x, y = (np.concatenate(parts) for parts in zip(*clients, strict=True))
    owners = [name for (_, part), name in zip(clients, names or [f"w{k}" for k in range(99)], strict=False) for _ in part]
    table = pa.table({"client": owners, "x": pa.FixedSizeListArray.from_arrays(x.ravel(), x.shape[1]), "y": y})
    parquet.write_table(table, path, row_group_size=group)  # groups that end within clients
    return path


def write_parquet_folder(folder: Path) -> Path:
    write_parquet(folder / "0.parquet", EACH[:2])
    write_parquet(folder / "1.parquet", EACH[2:], ["w2", "w3"], group=100)
    return folder


def write_hdf5(path: Path, clients: list[Any] = EACH) -> Path:
    h5py = pytest.importorskip("h5py")
    with h5py.File(path, "w") as file:
        for client, (x, y) in enumerate(clients):
            group = file.create_group(f"examples/f{client:04}_14")
            group["x"], group["y"] = x, y
    return path


FORMS: dict[str, tuple[Callable[..., LazyClients], Callable[[Path], Path]]] = {
    "arrays": (ArrayClients, lambda folder: write_arrays(folder / "arrays")),
    "shards": (ArrayClients, lambda folder: write_shards(folder / "shards")),
    "parquet": (ParquetClients, lambda folder: write_parquet(folder / "clients.parquet")),
    "parquet files": (ParquetClients, lambda folder: write_parquet_folder(folder / "parts")),
    "hdf5": (HDF5Clients, lambda folder: write_hdf5(folder / "clients.h5")),
}


def fit(data: FederatedDataModule) -> Any:
    federation = FederatedOrchestrator(local=LocalTraining(engine="fabric"), clients_per_round=2)
    torch.manual_seed(0)
    module = Plain()
    quiet = {"logger": False, "enable_progress_bar": False, "accelerator": "cpu", "enable_checkpointing": False}
    L.Trainer(max_epochs=2, callbacks=[federation], **quiet).fit(module, data)
    return weights(module)


@pytest.mark.parametrize("form", FORMS)
def test_the_bits_of_the_same_clients_given_at_once(tmp_path: Path, form: str) -> None:
    kind, write = FORMS[form]
    own = kind(str(write(tmp_path)), FIELDS, batch_size=4)
    given = {str(k): TensorDataset(*map(torch.from_numpy, one)) for k, one in enumerate(EACH)}
    assert same_bits(fit(FederatedDataModule(own)), fit(FederatedDataModule.from_clients(given, batch_size=4)))
    assert own.origin.endswith("(4 clients, 33 examples, read when drawn)")


@pytest.mark.parametrize("form", FORMS)
def test_each_client_has_its_own_examples_and_the_server_those_of_the_test_file(tmp_path: Path, form: str) -> None:
    kind, write = FORMS[form]
    path = str(write(tmp_path))
    own = kind(path, ["y", "x"], test_path=path, test_clients=3, eval_batch_size=20)
    own.setup("fit")
    assert own.num_examples().tolist() == SIZES
    for client, (x, y) in enumerate(EACH):
        found = own.open(client)
        assert [len(found), found.tensors[1].dtype] == [len(y), torch.float32]
        assert np.array_equal(found.tensors[1], x)
        assert np.array_equal(found.tensors[0], y)
    batches = [y for y, _ in own.val_dataloader()]
    assert [len(batch) for batch in batches] == [20, 4]
    assert np.array_equal(torch.cat(batches), np.concatenate([y for _, y in EACH[:3]]))


def test_shapes_scales_and_types(tmp_path: Path) -> None:
    images = np.arange(24, dtype=np.uint8).reshape(2, 12)
    np.save(tmp_path / "image.npy", images)
    np.save(tmp_path / "precise.npy", np.array([0.5, 2.5]))
    np.save(tmp_path / "label.npy", np.array([3, 4], np.uint8))
    np.save(tmp_path / "ends.npy", [2])
    fields = ["image", "label", "precise"]
    own = ArrayClients(str(tmp_path), fields, shapes={"image": [3, 2, 2]}, scales={"image": 0.5})
    own.setup("fit")
    image, label, precise = own.open(0).tensors
    assert image.tolist() == (images.reshape(2, 3, 2, 2) / 2).tolist()
    assert [image.dtype, label.dtype, precise.dtype] == [torch.float32, torch.int64, torch.float32]
    wrong = ArrayClients(str(tmp_path), fields, shapes={"image": [1, 5]})
    wrong.setup("fit")
    with pytest.raises(DataError, match=r"'image' have the shape \[12\], which cannot become \[1, 5\]. Correct"):
        wrong.open(0)


def test_text_stays_text(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    import pyarrow as pa
    from pyarrow import parquet

    with h5py.File(tmp_path / "text.h5", "w") as file:
        file["examples/a/snippets"] = [b"to be", "or n\u00f6t".encode()]
    parquet.write_table(pa.table({"client": [7, 7], "snippets": ["to be", "or n\u00f6t"]}), tmp_path / "text.parquet")
    for own in (
        HDF5Clients(str(tmp_path / "text.h5"), ["snippets"]),
        ParquetClients(str(tmp_path / "text.parquet"), ["snippets"]),
    ):
        own.setup("fit")
        found = own.open(0)
        assert [found[k] for k in range(len(found))] == [("to be",), ("or n\u00f6t",)]


# ------------------------------------------------------------------ what is read


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
    own = HDF5Clients(str(path), FIELDS)
    own.setup("fit")
    assert index.exists()
    with monkeypatch.context() as patched:
        patched.setattr("fl_lightning.data.hdf5_clients._listed", lambda *_: pytest.fail("listed again"))
        again = HDF5Clients(str(path), FIELDS)
        again.setup("fit")
        assert again.num_examples().tolist() == SIZES
    size = path.stat().st_size
    write_hdf5(path, EACH[::-1])
    os.utime(path, (2, 2))
    assert path.stat().st_size == size  # only its time tells that it is another file
    turned = HDF5Clients(str(path), FIELDS)
    turned.setup("fit")
    assert turned.num_examples().tolist() == SIZES[::-1]
    write_hdf5(path, EACH[1:])
    os.utime(path, (1, 1))
    changed = HDF5Clients(str(path), FIELDS)
    changed.setup("fit")
    assert changed.num_examples().tolist() == SIZES[1:]
    index.write_bytes(b"not an index")
    damaged = HDF5Clients(str(path), FIELDS)
    damaged.setup("fit")
    assert damaged.num_examples().tolist() == SIZES[1:]


def test_an_index_that_cannot_be_written_is_a_warning_and_has_another_place(tmp_path: Path) -> None:
    path = write_hdf5(tmp_path / "clients.h5")
    Path(f"{path}.index.npz").mkdir()
    own = HDF5Clients(str(path), FIELDS)
    with pytest.warns(UserWarning, match="so each run lists the clients again. Set 'data.datamodule.index_path'"):
        own.setup("fit")
    assert own.num_examples().tolist() == SIZES
    elsewhere = HDF5Clients(str(path), FIELDS, index_path=str(tmp_path / "deep" / "index.npz"))
    elsewhere.setup("fit")
    assert (tmp_path / "deep" / "index.npz").exists()


# ------------------------------------------------------------------ errors


def set_up(kind: Any, path: Path, fields: list[str] = FIELDS, **settings: Any) -> Any:
    own = kind(str(path), fields, **settings)
    own.setup("fit")
    return own


@pytest.mark.parametrize(("kind", "name"), [(ParquetClients, "a Parquet file"), (HDF5Clients, "an HDF5 file")])
def test_files_that_are_missing_or_something_else(tmp_path: Path, kind: Any, name: str) -> None:
    pytest.importorskip("h5py")
    (tmp_path / "text").write_text("neither")
    for path in (tmp_path / "missing", tmp_path / "text"):
        with pytest.raises(DataError, match=rf"Cannot read '.*{path.name}' as {name} \(.*\). Correct 'data.datamodule.path'"):
            set_up(kind, path)


def test_names_that_a_file_does_not_have(tmp_path: Path) -> None:
    parquet = write_parquet(tmp_path / "clients.parquet")
    with pytest.raises(DataError, match=r"has no column 'clint'. Did you mean client\? It has client, x.*client_column'"):
        set_up(ParquetClients, parquet, client_column="clint")
    with pytest.raises(DataError, match=r"has no column 'z'.* It has client, x, y. Correct 'data.datamodule.fields'"):
        set_up(ParquetClients, parquet, ["x", "z"])
    with pytest.raises(DataError, match=r"has no array 'z'.* It has x, y. Correct 'data.datamodule.fields'"):
        set_up(ArrayClients, write_arrays(tmp_path / "arrays"), ["z"])
    with pytest.raises(DataError, match=r"has no field 'z'.* It has x, y. Correct 'data.datamodule.fields'"):
        set_up(HDF5Clients, write_hdf5(tmp_path / "clients.h5"), ["z"])


def test_parquet_that_cannot_be_divided_by_client(tmp_path: Path) -> None:
    apart = write_parquet(tmp_path / "apart.parquet", names=["a", "b", "a", "c"])
    with pytest.raises(DataError, match=r"rows of client 'a' do not lie together. Sort the rows by the column 'client'"):
        set_up(ParquetClients, apart)
    gaps = write_parquet(tmp_path / "gaps.parquet", names=["a", None, "b", "c"])
    with pytest.raises(DataError, match=r"rows have no 'client'. Fill the column"):
        set_up(ParquetClients, gaps)
    with pytest.raises(DataError, match=r"has no files '\*.parquet'"):
        set_up(ParquetClients, tmp_path / "..")
    with pytest.raises(DataError, match=r"has no clients. Add at least one"):
        set_up(ParquetClients, write_parquet(tmp_path / "empty.parquet", [(np.zeros((0, 2)), np.zeros(0, int))]))


def test_parquet_values_that_no_tensor_holds(tmp_path: Path) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    path = tmp_path / "values.parquet"
    parquet.write_table(pa.table({"client": [1, 1], "tokens": [[1, 2, 3], [1]], "age": [3, None]}), path)
    with pytest.raises(DataError, match=r"'tokens' has lists of different lengths, 3 and 1. Pad them"):
        set_up(ParquetClients, path, ["tokens"]).open(0)
    with pytest.raises(DataError, match=r"the column 'age' has missing values. Fill them"):
        set_up(ParquetClients, path, ["age"]).open(0)
    (tmp_path / "mixed").mkdir()
    for name, column in (("a", [1]), ("b", ["one"])):
        parquet.write_table(pa.table({"client": column, "x": [1.0]}), tmp_path / "mixed" / f"{name}.parquet")
    with pytest.raises(DataError, match="as Parquet files with columns of the same types"):
        set_up(ParquetClients, tmp_path / "mixed", ["x"])


def test_hdf5_without_clients_or_with_uneven_fields(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    path = tmp_path / "clients.h5"
    with h5py.File(path, "w") as file:
        file["writers"] = [1]
    with pytest.raises(DataError, match=r"has no group 'examples', but writers. Write a group for each client"):
        set_up(HDF5Clients, path)
    with h5py.File(path, "w") as file:
        file.create_group("examples")
    with pytest.raises(DataError, match="has no clients"):
        set_up(HDF5Clients, path)
    with h5py.File(path, "w") as file:
        file["examples/a/x"], file["examples/a/y"] = np.zeros((3, 2)), [1]
    with pytest.raises(DataError, match=r"the fields of client 'a' have 'x' \[3, 2\], 'y' \[1\], but must have one value for"):
        set_up(HDF5Clients, path)
    with h5py.File(path, "w") as file:
        file["examples/a/x"], file["examples/b/z"] = [1], [1]
    with pytest.raises(DataError, match=r"has no field of client 'b' 'x'. It has z"):
        set_up(HDF5Clients, path, ["x"]).open(1)
    with h5py.File(path, "w") as file:
        file["examples/a/x"], file["examples/b/x"] = np.zeros((1, 2)), np.zeros((1, 3))
    with pytest.raises(DataError, match=r"the examples of 'x' have the shapes \[2\] and \[3\]"):
        set_up(HDF5Clients, path, ["x"], test_path=str(path))


def test_arrays_that_do_not_fit_together(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"has no file 'ends.npy', nor subfolders with one.*np.save\('ends.npy'"):
        set_up(ArrayClients, tmp_path)
    write_arrays(tmp_path)
    np.save(tmp_path / "y.npy", np.zeros(5))
    with pytest.raises(DataError, match=r"y.npy' has 5 rows, but 'ends.npy' ends at 33. Write both again"):
        set_up(ArrayClients, tmp_path)
    np.save(tmp_path / "ends.npy", np.zeros((2, 2)))
    with pytest.raises(DataError, match=r"ends.npy' must hold a whole number for each client, but has float64 of shape"):
        set_up(ArrayClients, tmp_path)
    (tmp_path / "ends.npy").write_bytes(b"text")
    with pytest.raises(DataError, match=r"Cannot read '.*ends.npy' as an array of numpy"):
        set_up(ArrayClients, tmp_path)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"fields": []}, r"'data.datamodule.fields' must be a list of different names, at least one, but is \[\]"),
        ({"fields": "x"}, "'data.datamodule.fields' must be a list of different names"),
        ({"fields": ["x", "x"]}, "'data.datamodule.fields' must be a list of different names"),
        ({"fields": ["x"], "shapes": {"z": [1]}}, "'data.datamodule.shapes' must be for fields among x, but is 'z'"),
        ({"fields": ["x"], "scales": {"z": 1.0}}, "'data.datamodule.scales' must be for fields among x, but is 'z'"),
        ({"fields": ["x"], "test_clients": 0}, "'data.datamodule.test_clients' must be 1 or above, or null, but is 0"),
        ({"fields": ["x"], "eval_batch_size": 0}, "'data.datamodule.eval_batch_size' must be 1 or above, but is 0"),
    ],
)
def test_wrong_settings(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        ArrayClients("data", **settings)


@pytest.mark.parametrize(("kind", "package", "extra"), [(HDF5Clients, "h5py", "hdf5"), (ParquetClients, "pyarrow", "tables")])
def test_a_missing_package_is_named_with_its_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: Any, package: str, extra: str
) -> None:
    for name in (package, "pyarrow.compute"):
        monkeypatch.setitem(__import__("sys").modules, name, None)
    with pytest.raises(VersionError, match=rf"read with {package}.*pip install 'fl_lightning\[{extra}\]'"):
        set_up(kind, tmp_path / "x")
