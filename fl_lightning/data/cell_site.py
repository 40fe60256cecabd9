"""One clinic's microscope and annotator, simulated."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Literal

import torch
from torch import Tensor

from fl_lightning.errors import require
from fl_lightning.functional.cells import Microscope, annotate, draw_cells
from fl_lightning.functional.seeding import generator

_NAME = "data.datamodule.sites.*."
_SHARES = ("brightness", "brightness_spread", "background", "gradient", "missed", "spurious")
_ABOVE_0 = ("radius", "softness")
_MOST_CELLS = 1_000


@dataclass(frozen=True)
class CellSite(Microscope):
    """What a clinic's images look like, and how careful its annotator is; see :class:`Microscope` for the rest.

    Args:
        images: training images, >= 1.
        cells: fewest and most cells of an image, each number between as probable, from 0 to 1,000.
        missed: probability in [0, 1] that a cell gets no dot.
        spurious: probability in [0, 1] of a false dot for each cell, anywhere in the image.
        displaced: standard deviation in pixels, >= 0, by which dots lie beside their cell; they stay in the image.

    Raises:
        ConfigurationError: for a value outside its range.
    """

    images: int = 40
    cells: tuple[int, int] = (5, 30)
    missed: float = 0.0
    spurious: float = 0.0
    displaced: float = 0.0

    def __post_init__(self) -> None:
        require(self.images >= 1, _NAME + "images", "1 or above", self.images)
        ordered = len(self.cells) == 2 and 0 <= self.cells[0] <= self.cells[1] <= _MOST_CELLS
        require(ordered, _NAME + "cells", f"the fewest and the most cells, from 0 to {_MOST_CELLS}", list(self.cells))
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name in _SHARES:
                require(0 <= value <= 1, _NAME + field.name, "from 0 to 1", value)
            elif field.name in _ABOVE_0:
                require(0 < value < math.inf, _NAME + field.name, "above 0", value)
            elif field.name not in ("images", "cells"):
                require(0 <= value < math.inf, _NAME + field.name, "0 or above", value)


@dataclass(frozen=True)
class CellImage:
    """One simulated image with its annotation.

    Attributes:
        image: uint8, shape (H, W).
        cells: the true centres (x, y) in pixels, shape (n, 2).
        dots: the annotator's, shape (m, 2).
    """

    image: Tensor
    cells: Tensor
    dots: Tensor


def simulate(site: CellSite, name: str, part: Literal["train", "test"], size: int, seed: int) -> Iterator[CellImage]:
    """Images of a site without end, each by a draw of its own: more images, or other sites, leave the first ones as they are.

    Cells lie at the same places, and images are the same, whatever the annotator's settings.

    Args:
        site: whose.
        name: of the site.
        part: training and test images are drawn apart.
        size: height and width in pixels.
        seed: of the simulation.
    """
    number = 0
    least, most = site.cells
    while True:
        key = (seed, name, part, number)
        draw = generator(*key, "cells")
        count = least + int(torch.randint(most - least + 1, (), generator=draw))
        image, cells = draw_cells(count, size, size, site, draw)
        careless = generator(*key, "annotator")
        dots = annotate(cells, size, size, site.missed, site.spurious, site.displaced, careless)
        yield CellImage(image.mul(255).round().to(torch.uint8), cells, dots)
        number += 1
