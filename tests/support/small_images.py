"""Images of noise, in folders and in the files of torchvision's sets."""

from __future__ import annotations

import bz2
import pickle
import struct
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image


def paint(folder: Path, count: int, size: int = 16, seed: int = 0, kind: str = "png") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)
    for k in range(count):
        Image.fromarray(rng.integers(0, 256, (size, size, 3), dtype=np.uint8)).save(folder / f"{k}.{kind}")


def write_cifar(folder: Path, names: list[str], key: str, meta: tuple[str, str], size: int = 12, seed: int = 0) -> None:
    folder.mkdir(parents=True)
    rng = np.random.default_rng(seed)
    for name in names:
        entry = {"data": rng.integers(0, 256, (size, 3072), dtype=np.uint8), key: [k % 10 for k in range(size)]}
        (folder / name).write_bytes(pickle.dumps(entry))
    (folder / meta[0]).write_bytes(pickle.dumps({meta[1]: [f"class {c}" for c in range(10)]}))


def write_torchvision_sets(root: Path, monkeypatch: Any, seed: int = 0) -> str:
    """All sets in the files that torchvision reads, small: only the checksums are not theirs."""
    from scipy.io import savemat

    for module in ("cifar", "svhn"):
        monkeypatch.setattr(f"torchvision.datasets.{module}.check_integrity", lambda *args: True)
    rng = np.random.default_rng(seed)
    batches = [*(f"data_batch_{k}" for k in range(1, 6)), "test_batch"]
    write_cifar(root / "cifar-10-batches-py", batches, "labels", ("batches.meta", "label_names"), seed=seed)
    write_cifar(root / "cifar-100-python", ["train", "test"], "fine_labels", ("meta", "fine_label_names"), seed=seed)
    for name in ("FashionMNIST", "MNIST"):
        raw = root / name / "raw"
        raw.mkdir(parents=True)
        for part in ("train", "t10k"):
            images, labels = rng.integers(0, 256, (12, 28, 28), dtype=np.uint8), np.arange(12, dtype=np.uint8) % 10
            (raw / f"{part}-images-idx3-ubyte").write_bytes(struct.pack(">IIII", 2051, 12, 28, 28) + images.tobytes())
            (raw / f"{part}-labels-idx1-ubyte").write_bytes(struct.pack(">II", 2049, 12) + labels.tobytes())
    for part in ("train", "test"):
        images = rng.integers(0, 256, (32, 32, 3, 12), dtype=np.uint8)
        savemat(root / f"{part}_32x32.mat", {"X": images, "y": (np.arange(12) % 10 + 1).reshape(-1, 1)})
    for name in ("usps.bz2", "usps.t.bz2"):
        rows = [f"{k % 10 + 1} " + " ".join(f"{i + 1}:{rng.uniform(-1, 1):.6f}" for i in range(256)) for k in range(12)]
        (root / name).write_bytes(bz2.compress("\n".join(rows).encode()))
    return str(root)
