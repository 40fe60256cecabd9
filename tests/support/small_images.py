"""Images of noise, in folders and in CIFAR's files."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
from PIL import Image


def paint(folder: Path, count: int, size: int = 16, seed: int = 0, kind: str = "png") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)
    for k in range(count):
        Image.fromarray(rng.integers(0, 256, (size, size, 3), dtype=np.uint8)).save(folder / f"{k}.{kind}")


def write_cifar(folder: Path, names: list[str], key: str, meta: tuple[str, str], size: int = 12) -> None:
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    for name in names:
        entry = {"data": rng.integers(0, 256, (size, 3072), dtype=np.uint8), key: [k % 10 for k in range(size)]}
        (folder / name).write_bytes(pickle.dumps(entry))
    (folder / meta[0]).write_bytes(pickle.dumps({meta[1]: [f"class {c}" for c in range(10)]}))
