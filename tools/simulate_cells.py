"""Simulated images of cells with their dots, one folder for each site: to try CellFolderDataModule with.

    python tools/simulate_cells.py --out cells --images 20
    fl-lightning partition --config adafed_mnist --data.datamodule CellFolderDataModule \\
        --data.datamodule.root cells --data.partitioner DomainPartitioner

cells/clear/000.png is an image, cells/clear/000.csv has x and y of each of the annotator's dots.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

from PIL import Image

from fl_lightning.cells.simulated import SITES, simulate


def write(out: Path, images: int, image_size: int, seed: int) -> None:
    """Write the sites' first training images."""
    for name, site in SITES.items():
        folder = out / name
        folder.mkdir(parents=True)
        dots = 0
        for number, drawn in enumerate(islice(simulate(site, name, "train", image_size, seed), images)):
            Image.fromarray(drawn.image.numpy()).save(folder / f"{number:03d}.png")
            lines = ["x,y", *(f"{x},{y}" for x, y in drawn.dots.tolist())]
            (folder / f"{number:03d}.csv").write_text("\n".join(lines) + "\n")
            dots += len(drawn.dots)
        print(f"{folder}: {images} images, {dots} dots")


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the arguments and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder to write to; must not hold the sites yet")
    parser.add_argument("--images", type=int, default=20, help="of each site")
    parser.add_argument("--image_size", type=int, default=64, help="height and width in pixels")
    parser.add_argument("--seed", type=int, default=0, help="of the simulation")
    write(**vars(parser.parse_args(arguments)))


if __name__ == "__main__":
    main()
