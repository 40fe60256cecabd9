"""Digits of three origins, as images of three clients: those of configs/studies/three_domains.yaml.

    python tools/three_domains.py --mnist data --usps usps.h5 --out data/domains

writes MNIST (70,000 images), USPS (9,298) and scikit-learn's digits (1,797) as PNG files into
``<out>/<domain>/<class>/``. Needs h5py.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from PIL import Image


def write_images(folder: Path, mnist: Path, usps: Path) -> None:
    """The three data sets, training and test parts together, as PNG files by domain and class."""
    import h5py  # this tool's only
    from sklearn.datasets import load_digits
    from torchvision.datasets import MNIST

    parts = [MNIST(str(mnist), train=train) for train in (True, False)]
    sets = {"mnist": (np.concatenate([p.data.numpy() for p in parts]), np.concatenate([p.targets.numpy() for p in parts]))}
    with h5py.File(usps) as file:
        data, target = (np.concatenate([file[part][name][:] for part in ("train", "test")]) for name in ("data", "target"))
    sets["usps"] = ((data.reshape(-1, 16, 16) * 255).round().clip(0, 255).astype(np.uint8), target)
    digits = load_digits()
    sets["sklearn"] = ((digits.images / 16 * 255).round().astype(np.uint8), digits.target)
    for domain, (images, labels) in sets.items():
        for label in range(10):
            (folder / domain / str(label)).mkdir(parents=True, exist_ok=True)
        for position, (image, label) in enumerate(zip(images, labels, strict=True)):
            Image.fromarray(image).save(folder / domain / str(label) / f"{position:05d}.png")


def main() -> None:
    """Make the images, unless the folder is there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mnist", type=Path, default=Path("data"), help="folder with MNIST/raw")
    parser.add_argument("--usps", type=Path, default=Path("data/usps.h5"), help="USPS as HDF5: train and test, data and target")
    parser.add_argument("--out", type=Path, default=Path("data/domains"))
    args = parser.parse_args()
    if args.out.exists():
        parser.error(f"{args.out} is there already. Remove it, or give another --out.")
    write_images(args.out, args.mnist, args.usps)


if __name__ == "__main__":
    main()
