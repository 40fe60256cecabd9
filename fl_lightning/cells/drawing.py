"""Simulate fluorescence images of cells, their dots, and the density that sums to the count (Lempitsky & Zisserman 2010)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fl_lightning.errors import DataError, require
from fl_lightning.utilities.argument_types import checks_types

_NAME = "data.datamodule.sites.*."
_MOST_CELLS, _LARGEST = 1_000, 10_000
_TRIES = 30
"""The number of places drawn for a cell before the least crowded one is taken."""


@checks_types
@dataclass(frozen=True)
class CellSite:
    """Describe a clinic's images and the care of its annotator; intensities are shares of the camera's full scale.

    Args:
        images: the number of training images, >= 1.
        cells: the smallest and the largest number of cells in an image, drawn uniformly, from 0 to 1,000.
        radius: the median radius of a cell in pixels, > 0, that of a circle of the same area.
        brightness: the mean intensity of a cell above the background, in [0, 1].
        brightness_spread: a cell's own brightness is uniform within this share around the mean, in [0, 1].
        background: the intensity without cells, in [0, 1].
        gradient: how much the background rises from the middle to an edge, in a random direction, in [0, 1].
        blur: the standard deviation of the Gaussian point spread function in pixels, >= 0; more is further out of focus.
        noise: the standard deviation of the shot noise at full scale, >= 0; at the intensity v it is noise * sqrt(v).
        read_noise: the standard deviation of the camera's own noise, the same everywhere, >= 0.
        missed: the probability that a cell gets no dot, in [0, 1].
        spurious: the probability of a false dot for each cell, anywhere in the image, in [0, 1].
        displaced: the standard deviation of a dot's displacement from its cell in pixels, >= 0; dots stay in the image.

    Attributes:
        radius_spread: the standard deviation of the logarithm of the radius, truncated at three.
        elongation: the ratio of the longer half-axis to the shorter is uniform between 1 and 1 + elongation.
        spacing: the smallest distance between the centres of two cells, in radii; 2 separates cells of the median size.
        softness: the width of a cell's edge, as a share of its half-axes.

    Raises:
        ConfigurationError: if a value is outside its range.
    """

    images: int = 40
    cells: tuple[int, int] = (5, 30)
    radius: float = 3.0
    brightness: float = 0.6
    brightness_spread: float = 0.3
    background: float = 0.1
    gradient: float = 0.05
    blur: float = 1.0
    noise: float = 0.05
    read_noise: float = 0.01
    missed: float = 0.0
    spurious: float = 0.0
    displaced: float = 0.0
    radius_spread: ClassVar[float] = 0.15
    elongation: ClassVar[float] = 0.3
    spacing: ClassVar[float] = 1.5
    softness: ClassVar[float] = 0.1

    def __post_init__(self) -> None:
        require(self.images >= 1, _NAME + "images", "1 or above", self.images)
        ordered = len(self.cells) == 2 and 0 <= self.cells[0] <= self.cells[1] <= _MOST_CELLS
        require(ordered, _NAME + "cells", f"the fewest and the most cells, from 0 to {_MOST_CELLS}", list(self.cells))
        require(0 < self.radius <= _LARGEST, _NAME + "radius", f"above 0 and at most {_LARGEST}", self.radius)
        for name in ("brightness", "brightness_spread", "background", "gradient", "missed", "spurious"):
            require(0 <= getattr(self, name) <= 1, _NAME + name, "from 0 to 1", getattr(self, name))
        for name in ("blur", "noise", "read_noise", "displaced"):
            value = getattr(self, name)
            require(0 <= value <= _LARGEST, _NAME + name, f"0 or above and at most {_LARGEST}", value)


def place_cells(count: int, height: int, width: int, distance: float, generator: torch.Generator) -> Tensor:
    """Draw centres one after another, uniform over the image and at least a distance away from earlier centres.

    If a cell finds no such place in 30 draws, it takes the one furthest from its nearest neighbour. A crowded image
    therefore has more overlap, never fewer cells.

    Args:
        count: the number of cells n, >= 0.
        height: the height of the image in pixels.
        width: the width of the image in pixels.
        distance: the smallest distance in pixels, >= 0.
        generator: draws the centres.

    Returns:
        Centres (x, y) in pixels, x in [0, width - 1], y in [0, height - 1], float64, shape (n, 2). The centre of the first
        pixel is (0, 0).
    """
    extent = torch.tensor([width - 1, height - 1], dtype=torch.float64)
    places = (torch.rand(count, _TRIES, 2, generator=generator, dtype=torch.float64) * extent).numpy()
    found = places[:, 0].copy()
    for cell in range(1, count):
        nearest = ((places[cell, :, None] - found[None, :cell]) ** 2).sum(axis=2).min(axis=1)
        free = nearest >= distance**2
        found[cell] = places[cell, free.argmax() if free.any() else nearest.argmax()]
    return torch.from_numpy(found)


def draw_cells(count: int, height: int, width: int, site: CellSite, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw one simulated fluorescence image, and return it with the centres of its cells.

    Cells are ellipses with soft edges whose light adds up: with rho the distance from the centre in half-axes, brightness *
    sigmoid((1 - rho) / softness). Their sum is convolved with the point spread function. Background, shot noise (Poisson, of
    1 / noise^2 photons at full scale) and read noise (Gaussian) are added, and the camera clips below 0 and above 1.

    Args:
        count: the number of cells n, >= 0.
        height: the height of the image in pixels.
        width: the width of the image in pixels.
        site: how the cells look.
        generator: draws all random numbers.

    Returns:
        The image in [0, 1], float32, shape (height, width), and the centres (x, y) of :func:`place_cells`, shape (n, 2).
    """
    dots = place_cells(count, height, width, site.spacing * site.radius, generator)
    angle = 2 * math.pi * float(torch.rand((), generator=generator, dtype=torch.float64))
    light, margin = _light(dots, height, width, site, generator)
    rows, columns = (_point_spread(size, margin, site.blur) for size in (height, width))
    slope_x, slope_y = (torch.linspace(-1, 1, size, dtype=torch.float64) for size in (width, height))
    slope = math.cos(angle) * slope_x + math.sin(angle) * slope_y[:, None]
    image = (rows @ light @ columns.T + site.background + site.gradient * slope).clamp(0, 1)
    if site.noise:
        photon = site.noise**2
        image = torch.poisson(image / photon, generator=generator) * photon
    image += site.read_noise * torch.randn(image.shape, generator=generator, dtype=torch.float64)
    return image.clamp(0, 1).float(), dots


def _light(dots: Tensor, height: int, width: int, site: CellSite, generator: torch.Generator) -> tuple[Tensor, int]:
    """Return the cells' light, with a margin around the image that holds whole cells, and the margin in pixels."""
    spread, stretch, turn, shine = torch.rand(4, len(dots), generator=generator, dtype=torch.float64)
    normal = torch.special.ndtri(spread).clamp(-3, 3)
    radius = site.radius * torch.exp(site.radius_spread * normal)
    ratio = torch.sqrt(1 + site.elongation * stretch)
    own = site.brightness * (1 + site.brightness_spread * (2 * shine - 1))
    reach = 1 + 8 * site.softness  # in half-axes: beyond it lies less than 1/2000 of the light
    half = math.ceil(reach * float((radius * ratio).max())) + 1 if len(dots) else 0
    steps, nearest = torch.arange(-half, half + 1), dots.round().long()
    places = nearest[:, :, None] + steps
    (right, down), (cos, sin) = (places - dots[:, :, None]).unbind(1), (torch.cos(math.pi * turn), torch.sin(math.pi * turn))
    right, down = right[:, None, :], down[:, :, None]
    along = (right * cos[:, None, None] + down * sin[:, None, None]) / (radius * ratio)[:, None, None]
    across = (down * cos[:, None, None] - right * sin[:, None, None]) / (radius / ratio)[:, None, None]
    shape = torch.sigmoid((1 - torch.hypot(along, across)) / site.softness)
    canvas = torch.zeros(height + 2 * half, width + 2 * half, dtype=torch.float64)
    x, y = (places + half).unbind(1)
    at = y[:, :, None] * canvas.shape[1] + x[:, None, :]
    canvas.view(-1).index_add_(0, at.flatten(), (own[:, None, None] * shape).flatten())
    return canvas, half


def _point_spread(size: int, margin: int, sigma: float) -> Tensor:
    """Return the matrix that blurs a line of ``size + 2 * margin`` pixels and cuts the margin off."""
    away = torch.arange(size + 2 * margin, dtype=torch.float64) - margin - torch.arange(size, dtype=torch.float64)[:, None]
    if sigma == 0:
        return (away == 0).double()
    whole = torch.arange(-math.ceil(8 * sigma) - 1, math.ceil(8 * sigma) + 2, dtype=torch.float64)
    return torch.exp(-((away / sigma) ** 2) / 2) / torch.exp(-((whole / sigma) ** 2) / 2).sum()


def density_image(dots: Tensor, height: int, width: int, sigma: float) -> Tensor:
    """Return an image that sums to the number of dots: each dot is a Gaussian of mass 1 within the image.

    The mass that a Gaussian at the border would lose outside is spread over its part inside. The sum therefore equals the
    number of dots up to rounding, wherever they are.

    Args:
        dots: the dots (x, y) in pixels, shape (n, 2); (0, 0) is the centre of the first pixel.
        height: the height of the image in pixels.
        width: the width of the image in pixels.
        sigma: the standard deviation of a dot in pixels, > 0.

    Returns:
        Cells per pixel, float32, shape (height, width).
    """
    away = (torch.arange(size, dtype=torch.float64) - dots[:, k, None].double() for k, size in enumerate((width, height)))
    columns, rows = (torch.softmax(-((one / sigma) ** 2) / 2, dim=1) for one in away)  # each sums to 1, shape (n, size)
    return (rows.T @ columns).float()


def require_cells(densities: Tensor, what: str, fix: str) -> None:
    """Refuse training images without a single dot.

    Args:
        densities: the training images' densities.
        what: the images, in words.
        fix: the end of the message.

    Raises:
        DataError: if all are 0.
    """
    if not densities.any():
        raise DataError(f"The count is zero everywhere: no {what} has a dot, so there is nothing to learn. {fix}")


def annotate(
    dots: Tensor, height: int, width: int, missed: float, spurious: float, displaced: float, generator: torch.Generator
) -> Tensor:
    """Return the dots that a careless annotator sets.

    Args:
        dots: the true dots (x, y) in pixels, shape (n, 2).
        height: the height of the image in pixels.
        width: the width of the image in pixels.
        missed: the probability that a cell gets no dot, in [0, 1].
        spurious: the probability of a false dot for each cell, in [0, 1], anywhere in the image.
        displaced: the standard deviation of a dot's displacement from its cell along each axis, in pixels, >= 0.
        generator: draws all random numbers.

    Returns:
        Dots within the image, float64, shape (m, 2): the remaining true ones, then false ones.
    """
    found, false = torch.rand(2, len(dots), generator=generator, dtype=torch.float64)
    extent = torch.tensor([width - 1, height - 1], dtype=torch.float64)
    invented = torch.rand(len(dots), 2, generator=generator, dtype=torch.float64) * extent
    jitter = displaced * torch.randn(len(dots), 2, generator=generator, dtype=torch.float64)
    moved = (dots.double() + jitter).clamp(min=torch.zeros_like(extent), max=extent)
    return torch.cat([moved[found >= missed], invented[false < spurious]])
