"""Simulated images of cells with their dots, in the VGG layout, one folder for each site: to try CellFolderDataModule with.

    python tools/simulate_cells.py --out cells --images 20
    fl-lightning partition --config adafed_mnist --data.datamodule CellFolderDataModule \\
        --data.datamodule.root cells --data.partitioner DomainPartitioner

cells/clear/000cell.png is an image, cells/clear/000dots.png has a white pixel for each of the annotator's dots. Dots in the
same pixel, or in pixels that touch, are read as one cell: their number is printed.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

import torch
from PIL import Image

from fl_lightning.cells.drawing import dot_centres
from fl_lightning.cells.simulated import SITES, simulate


def write(out: Path, images: int, image_size: int, seed: int) -> None:
    """Write the sites' first training images."""
    for name, site in SITES.items():
        folder = out / name
        folder.mkdir(parents=True)
        dots = cells = 0
        for number, drawn in enumerate(islice(simulate(site, name, "train", image_size, seed), images)):
            mask = torch.zeros(image_size, image_size, dtype=torch.bool)
            x, y = drawn.dots.round().long().unbind(1)
            mask[y, x] = True
            Image.fromarray(drawn.image.numpy()).save(folder / f"{number:03d}cell.png")
            Image.fromarray((mask * 255).to(torch.uint8).numpy()).save(folder / f"{number:03d}dots.png")
            dots, cells = dots + len(drawn.dots), cells + len(dot_centres(mask))
        print(f"{folder}: {images} images, {dots} dots, {dots - cells} of which touch another")


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
