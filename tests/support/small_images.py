"""Images of noise, in folders and in the files of torchvision's sets."""

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


def write_cifar(folder: Path, names: list[str], key: str, meta: tuple[str, str], size: int = 12) -> None:
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    for name in names:
        entry = {"data": rng.integers(0, 256, (size, 3072), dtype=np.uint8), key: [k % 10 for k in range(size)]}
        (folder / name).write_bytes(pickle.dumps(entry))
    (folder / meta[0]).write_bytes(pickle.dumps({meta[1]: [f"class {c}" for c in range(10)]}))


def write_torchvision_sets(root: Path, monkeypatch: Any) -> str:
    """Sets in the files that torchvision reads, small: only the checksums are not theirs."""
    from scipy.io import savemat

    for module in ("cifar", "svhn"):
        monkeypatch.setattr(f"torchvision.datasets.{module}.check_integrity", lambda *args: True)
    rng = np.random.default_rng(0)
    batches = [*(f"data_batch_{k}" for k in range(1, 6)), "test_batch"]
    write_cifar(root / "cifar-10-batches-py", batches, "labels", ("batches.meta", "label_names"))
    write_cifar(root / "cifar-100-python", ["train", "test"], "fine_labels", ("meta", "fine_label_names"))
    raw = root / "FashionMNIST" / "raw"
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


def picture(path: Path, width: int = 20, height: int = 16, seed: int = 0, channels: int = 1) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, channels), dtype=np.uint8)
    Image.fromarray(pixels.squeeze(2) if channels == 1 else pixels).save(path)


def cells_beside_tables(root: Path) -> Path:
    """Four images with 2, 0, 1 and 0 cells."""
    own = (("a.png", "x,y\n3,4\n10.5,15.9\n"), ("b.jpg", ""), ("c.tif", "19.5 , 0\n"), ("d.jpeg", "X, Y\n"))
    for k, (name, text) in enumerate(own):
        picture(root / name, seed=k)
        (root / name).with_suffix(".csv").write_text(text)
    return root


def cells_of_two_clients(root: Path) -> Path:
    """Two clients with 3 and 5 images; image k of a client has k dots."""
    for client, size in (("oxford", 3), ("delft", 5)):
        for k in range(size):
            picture(root / client / f"{k:03d}.png", seed=k, channels=3)
            (root / client / f"{k:03d}.csv").write_text("\n".join(["x,y", *(f"{4 * i},{3 * i}" for i in range(k))]))
    return root


def halved(root: Path) -> None:
    """Cut an image in the middle: its header is fine."""
    path = root / "emu" / "1.png"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def by_class(root: Path) -> Path:
    """Images of three classes: 6, 7 and 8."""
    for k, name in enumerate(("cat", "dog", "emu")):
        paint(root / name, 6 + k, seed=k)
    return root


def by_domain(root: Path) -> Path:
    """Images of two domains with two classes: 10 and 16."""
    for d, domain in enumerate(("amazon", "dslr")):
        for k, name in enumerate(("cat", "dog")):
            paint(root / domain / "images" / name, 5 + 3 * d, seed=10 * d + k)
    return root
