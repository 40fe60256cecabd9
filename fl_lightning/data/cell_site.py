"""Simulate the microscope and the annotator of one clinic."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Literal

import torch
from torch import Tensor

from fl_lightning.core.resume_rule import ResumeRule
from fl_lightning.errors import require
from fl_lightning.functional.cells import Microscope, annotate, draw_cells
from fl_lightning.functional.seeding import generator
from fl_lightning.utilities.argument_types import checks_types

_NAME = "data.datamodule.sites.*."
_SHARES = ("brightness", "brightness_spread", "background", "gradient", "missed", "spurious")
_ABOVE_0 = ("radius", "softness")
_MOST_CELLS, _LARGEST = 1_000, 10_000


@checks_types
@dataclass(frozen=True)
class CellSite(Microscope):
    """Describe a clinic's images and the care of its annotator.

    For the other settings, see :class:`~fl_lightning.functional.cells.Microscope`.

    Args:
        images: the number of training images, >= 1.
        cells: the smallest and the largest number of cells in an image, drawn uniformly, from 0 to 1,000.
        missed: the probability that a cell gets no dot, in [0, 1].
        spurious: the probability of a false dot for each cell, anywhere in the image, in [0, 1].
        displaced: the standard deviation of a dot's displacement from its cell in pixels, >= 0; dots stay in the image.

    Raises:
        ConfigurationError: if a value is outside its range.
    """

    images: int = 40
    cells: tuple[int, int] = (5, 30)
    missed: float = 0.0
    spurious: float = 0.0
    displaced: float = 0.0
    on_resume = ResumeRule()

    def __post_init__(self) -> None:
        require(self.images >= 1, _NAME + "images", "1 or above", self.images)
        ordered = len(self.cells) == 2 and 0 <= self.cells[0] <= self.cells[1] <= _MOST_CELLS
        require(ordered, _NAME + "cells", f"the fewest and the most cells, from 0 to {_MOST_CELLS}", list(self.cells))
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name in _SHARES:
                require(0 <= value <= 1, _NAME + field.name, "from 0 to 1", value)
            elif field.name in _ABOVE_0:
                require(0 < value <= _LARGEST, _NAME + field.name, f"above 0 and at most {_LARGEST}", value)
            elif field.name not in ("images", "cells"):
                require(0 <= value <= _LARGEST, _NAME + field.name, f"0 or above and at most {_LARGEST}", value)


@dataclass(frozen=True)
class CellImage:
    """Hold one simulated image with its annotation.

    Attributes:
        image: the image, uint8, shape (H, W).
        cells: the true centres (x, y) in pixels, shape (n, 2).
        dots: the annotator's dots, shape (m, 2).
    """

    image: Tensor
    cells: Tensor
    dots: Tensor


def simulate(site: CellSite, name: str, part: Literal["train", "test"], size: int, seed: int) -> Iterator[CellImage]:
    """Yield images of a site endlessly, each drawn independently: more images or other sites do not change the first ones.

    The annotator's settings change neither the images nor the places of the cells.

    Args:
        site: the site.
        name: the name of the site.
        part: the set; training and test images are drawn independently.
        size: the height and width in pixels.
        seed: the seed of the simulation.
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
