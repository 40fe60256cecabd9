"""Load your own microscope images from folders, with a dot on each cell."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from fl_lightning.core.resume_rule import ResumeRule
from fl_lightning.data.cell_files import CellFiles, find_cells, read_dots
from fl_lightning.data.image_files import WHITE, for_each
from fl_lightning.data.image_folders import ImageFolderDataModule
from fl_lightning.data.in_memory import named_dataset
from fl_lightning.errors import DataError, require
from fl_lightning.functional.cells import density_image
from fl_lightning.functional.partition import Partition
from fl_lightning.functional.seeding import generator
from fl_lightning.functional.splitting import hold_out


class CellFolderDataModule(ImageFolderDataModule):
    """Load images of cells and draw their density from your dots; the sum of the density is the count.

    An image is NAME.png (or .jpg, .jpeg, .tif, .tiff) beside NAME.csv, with x and y of each cell in pixels, or NAMEcell.png
    beside NAMEdots.png, an image of the same size that is black except for a dot on each cell (the VGG layout). Put them into
    ``root``, or into one folder for each client, from which :class:`~fl_lightning.DomainPartitioner` creates the clients.
    Either layout may be under root/train and root/test. Batches are as in :class:`~fl_lightning.SimulatedCellsDataModule`.

    The centre of the first pixel is (0, 0). A CSV file may name its columns in a first line, and may then have further ones;
    an empty file means that the image has no cells. Dots that touch, by an edge or a corner, are one cell.

    Args:
        root: the folder. If it consists of train (or training), test (or testing) and val (or valid, validation), the server
            validates on val and tests on test, or uses for both the one that exists.
        test_root: a separate folder with the server's test set; None uses that under ``root``, if any.
        test_share: the share of the images, in [0, 1), held out as the server's test set in the proportions of the clients,
            if no folder has one. With 0, no set is held out: see ``server_set`` of the FederatedDataModule.
        image_size: the height and width in pixels to which images are resized, with their dots; None if all images already
            have the same size.
        density_sigma: the standard deviation of a dot's Gaussian in pixels, after resizing, > 0.
        density_scale: the factor on the density, > 0, which keeps the squared error from being tiny; a count is a sum divided
            by it.
        batch_size: the examples per training batch, B.
        eval_batch_size: the examples per evaluation batch.
        channels: 3 for colour, 1 for grey.
        seed: the seed of the draw of a test share.
        white: the value of white in images of 16 bits: 4095 for a camera of 12 bits, 65535 for all 16.

    Raises:
        ConfigurationError: if a value is outside its range.
    """

    on_resume = ResumeRule(free="root test_root num_workers memory_limit")

    def __init__(
        self,
        root: str,
        test_root: str | None = None,
        test_share: float = 0.2,
        image_size: int | None = None,
        density_sigma: float = 2.0,
        density_scale: float = 100.0,
        batch_size: int = 8,
        eval_batch_size: int = 64,
        channels: Literal[1, 3] = 1,
        seed: int = 0,
        white: int = WHITE,
    ) -> None:
        require(0 < density_sigma < math.inf, "data.datamodule.density_sigma", "above 0 pixels", density_sigma)
        require(density_scale > 0, "data.datamodule.density_scale", "above 0", density_scale)
        super().__init__(root, test_root, test_share, image_size, channels, batch_size, eval_batch_size, seed=seed, white=white)
        self.density_sigma, self.density_scale = density_sigma, density_scale

    def load(self) -> tuple[TensorDataset, TensorDataset | None]:
        """Find and read images and dots.

        Raises:
            DataError: if files do not have this form or do not match, or if no training image has a cell.
        """
        folder, *held = self._folders()
        assert isinstance(folder, Path)  # 'root' is a text here
        files = find_cells(folder)
        others = [None if path is None else find_cells(path) for path in held]
        if others == [None, None] and self.test_share:
            files, others[1] = self._share(files)
        train = self._dataset(files)
        if not train.tensors[1].any():
            raise DataError(
                f"The count is zero everywhere: no training image of '{folder}' has a dot, so there is nothing to learn. "
                "Set 'data.datamodule.root' to images some of which have cells."
            )
        self._val, test = (None if part is None else self._dataset(part) for part in others)
        sizes = " + ".join(str(len(part)) for part in (train, self._val, test) if part is not None)
        self.origin = f"{folder} ({sizes} images, {len(files.domains_names) or 'no'} clients)"
        return train, test

    def _share(self, files: CellFiles) -> tuple[CellFiles, CellFiles]:
        everything = Partition.of_parts([torch.arange(len(files.images))])
        size = torch.tensor([max(1, round(self.test_share * len(files.images)))])
        rest, taken = hold_out(everything, size, files.domains, generator(self.seed, "test share"))
        if not rest.order.numel():
            raise DataError(
                f"'data.datamodule.test_share' is {self.test_share}, which leaves none of the {len(files.images)} images to "
                "train on. Lower it, or add images."
            )
        return files.select(rest.order), files.select(taken.order)

    def _dataset(self, files: CellFiles) -> TensorDataset:
        images, sizes = self._images_of(files)
        densities = torch.empty(len(images), 1, *images.shape[2:])
        for k, (path, own) in enumerate(zip(files.annotations, sizes, strict=True)):
            height, width = images.shape[2:]
            dots = _resized(read_dots(path, *own), own, (height, width))
            densities[k, 0] = density_image(dots, height, width, self.density_sigma) * self.density_scale
        return named_dataset([images, densities], **files.columns)

    def _images_of(self, files: CellFiles) -> tuple[Tensor, list[tuple[int, int]]]:
        """Return images, uint8, shape (N, C, H, W), and their heights and widths before resizing."""
        reader = self._reader
        paths = [str(path) for path in files.images]
        reader.warn_of_depth(paths)
        images: dict[int, Tensor] = {}
        sizes: dict[int, tuple[int, int]] = {}

        def read(position: int) -> None:
            """Read one image."""
            sizes[position], images[position] = reader.header_size(paths[position]), reader.read(paths[position])

        failures = for_each(read, len(paths), "Reading images")
        if failures:
            first, why = next(iter(failures.items()))
            more = f" and {len(failures) - 1} more" if len(failures) > 1 else ""
            raise DataError(
                f"Cannot read {paths[first]} ({why}){more}. Fix or remove these images, with their annotations, under "
                "'data.datamodule.root'."
            )
        odd = [k for k in range(len(paths)) if images[k].shape != images[0].shape]
        if odd:
            (one, other) = (f"{paths[k]} has {sizes[k][1]} x {sizes[k][0]} pixels" for k in (0, odd[0]))
            raise DataError(
                f"The images have different sizes: {one}, but {other}. Set 'data.datamodule.image_size' to resize all of them."
            )
        return torch.stack([images[k] for k in range(len(paths))]), [sizes[k] for k in range(len(paths))]


def _resized(dots: Tensor, before: tuple[int, int], after: tuple[int, int]) -> Tensor:
    """Return the dots after a change of their image's size: the edges of pixels keep their places, not the centres."""
    factor = torch.tensor([after[1] / before[1], after[0] / before[0]], dtype=torch.float64)
    return (dots + 0.5) * factor - 0.5
