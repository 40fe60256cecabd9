"""Four clients in HDF5, and in arrays and Parquet for the examples of the pages."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from federations import blobs
from lazy_stores import SIZES

from fl_lightning import HDF5Clients

EACH = [tuple(part.numpy() for part in blobs(n, client)) for client, n in enumerate(SIZES)]
FIELDS = ["x", "y"]


def write_arrays(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, parts in zip("xy", zip(*EACH, strict=True), strict=True):
        np.save(folder / f"{name}.npy", np.concatenate(parts))
    np.save(folder / "ends.npy", np.cumsum([len(y) for _, y in EACH]))
    return folder


def write_parquet(path: Path, clients: list[Any] = EACH, names: Any = None) -> Path:
    import pyarrow as pa
    from pyarrow import parquet

    path.parent.mkdir(parents=True, exist_ok=True)
    x, y = (np.concatenate(parts) for parts in zip(*clients, strict=True))
    owners = [name for (_, part), name in zip(clients, names or [f"w{k}" for k in range(99)], strict=False) for _ in part]
    table = pa.table({"client": owners, "x": pa.FixedSizeListArray.from_arrays(x.ravel(), x.shape[1]), "y": y})
    parquet.write_table(table, path, row_group_size=4)  # groups that end within clients
    return path


def write_parquet_folder(folder: Path) -> Path:
    write_parquet(folder / "0.parquet", EACH[:2])
    write_parquet(folder / "1.parquet", EACH[2:], ["w2", "w3"])
    return folder


def write_hdf5(path: Path, clients: list[Any] = EACH) -> Path:
    h5py = pytest.importorskip("h5py")
    with h5py.File(path, "w") as file:
        for client, (x, y) in enumerate(clients):
            group = file.create_group(f"examples/f{client:04}_14")
            group["x"], group["y"] = x, y
    return path


def set_up(path: Path | str, fields: list[str] = FIELDS, **settings: Any) -> Any:
    own = HDF5Clients(str(path), fields, **settings)
    own.setup("fit")
    return own
