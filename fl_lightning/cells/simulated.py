"""Simulate microscope images of cells to count, from sites with different microscopes and annotators."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from itertools import count, islice
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from fl_lightning.cells.drawing import CellSite, annotate, density_image, draw_cells, require_cells
from fl_lightning.data.in_memory import ImageDataModule, named_dataset
from fl_lightning.errors import require
from fl_lightning.functional.seeding import generator

SITES: Mapping[str, CellSite] = {
    "clear": CellSite(images=120),
    "blurred": CellSite(images=80, blur=2.5, background=0.2, gradient=0.15),
    "noisy": CellSite(images=60, noise=0.2, read_noise=0.05, brightness=0.4),
    "crowded": CellSite(images=40, cells=(30, 60), radius=2.5, brightness_spread=0.5),
    "careless": CellSite(images=60, missed=0.3, spurious=0.05, displaced=1.5),
}
"""Five sites that differ in number of images, focus, noise, density and care."""


class CellImage(NamedTuple):
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
    least, most = site.cells
    for number in count():
        key = (seed, name, part, number)
        draw = generator(*key, "cells")
        image, cells = draw_cells(least + int(torch.randint(most - least + 1, (), generator=draw)), size, size, site, draw)
        dots = annotate(cells, size, size, site.missed, site.spurious, site.displaced, generator(*key, "annotator"))
        yield CellImage(image.mul(255).round().to(torch.uint8), cells, dots)


class SimulatedCellsDataModule(ImageDataModule):
    """Simulate images of cells with their density, whose sum is the count (AdaFed, section 3.2).

    Nothing is downloaded: the microscopes and annotators of a few sites are simulated, and the same seed gives the same data.
    :class:`~fl_lightning.DomainPartitioner` creates one client for each site, with its name; other partitioners mix the
    sites. Batches hold images, uint8, shape (B, 1, H, W), in [0, 1] after the transfer, and densities, float32, of the same
    shape: Gaussians of mass ``density_scale`` for each annotated dot. The server's set has the same microscopes, and true
    dots.

    Args:
        sites: the sites by name; None uses five: ``clear`` (120 images), ``blurred`` (80), ``noisy`` (60), ``crowded`` (40,
            twice the cells) and ``careless`` (60, 30 % of the cells missed, 5 % invented, dots 1.5 pixels off).
        image_size: the height and width in pixels, >= 8; the U-Net requires a multiple of 2 ** depth.
        test_images: the number of images in the server's set, >= 1; the sites take turns, so their numbers differ by at most
            one.
        density_sigma: the standard deviation of a dot's Gaussian in pixels, > 0.
        density_scale: the factor on the density, > 0, which keeps the squared error from being tiny; a count is a sum divided
            by it.
        batch_size: the examples per training batch, B.
        eval_batch_size: the examples per evaluation batch.
        seed: the seed of the simulation.

    Raises:
        ConfigurationError: if a value is outside its range.
    """

    def __init__(
        self,
        sites: dict[str, CellSite] | None = None,
        image_size: int = 64,
        test_images: int = 60,
        density_sigma: float = 2.0,
        density_scale: float = 100.0,
        batch_size: int = 8,
        eval_batch_size: int = 64,
        seed: int = 0,
    ) -> None:
        super().__init__(batch_size, eval_batch_size)
        require(sites is None or len(sites) > 0, "data.datamodule.sites", "one site or more, or null", sites)
        require(image_size >= 8, "data.datamodule.image_size", "8 or above", image_size)
        require(test_images >= 1, "data.datamodule.test_images", "1 or above", test_images)
        require(0 < density_sigma < math.inf, "data.datamodule.density_sigma", "above 0 pixels", density_sigma)
        require(density_scale > 0, "data.datamodule.density_scale", "above 0", density_scale)
        self.sites = dict(SITES if sites is None else sites)
        self.image_size, self.test_images = image_size, test_images
        self.density_sigma, self.density_scale = density_sigma, density_scale
        self.seed = seed

    def load(self) -> tuple[TensorDataset, TensorDataset]:
        """Simulate the training set and the server's set.

        Raises:
            DataError: if no training image has a dot.
        """
        each, more = divmod(self.test_images, len(self.sites))
        train = self._simulated("train", [site.images for site in self.sites.values()])
        test = self._simulated("test", [each + (k < more) for k in range(len(self.sites))])
        fix = "Set 'cells' of a site in 'data.datamodule.sites' above 0, and its 'missed' below 1."
        require_cells(train.tensors[1], "simulated training image", fix)
        self.origin = f"simulated cells ({len(train)} + {len(test)} images, {len(self.sites)} sites)"
        return train, test

    def _simulated(self, part: Literal["train", "test"], sizes: list[int]) -> TensorDataset:
        images, densities, side = [], [], self.image_size
        for (name, site), number in zip(self.sites.items(), sizes, strict=True):
            for drawn in islice(simulate(site, name, part, side, self.seed), number):
                dots = drawn.dots if part == "train" else drawn.cells
                images.append(drawn.image)
                densities.append(density_image(dots, side, side, self.density_sigma) * self.density_scale)
        domains = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
        turns = torch.cat([torch.arange(size) for size in sizes])
        order = turns.argsort(stable=True)  # sites take turns, so that the first few images show all of them
        columns = {"domains": domains[order], "domains_names": tuple(self.sites)}
        return named_dataset([torch.stack(images)[order, None], torch.stack(densities)[order, None]], **columns)
