"""Load your own microscope images from folders, with a dot on each cell."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import torch
from PIL import Image, ImageOps
from torch import Tensor
from torch.utils.data import TensorDataset

from fl_lightning.cells.drawing import density_image, require_cells
from fl_lightning.core.capabilities import ResumeRule
from fl_lightning.data.image_folders import ImageReader, folders_in, read_images, split_folders
from fl_lightning.data.in_memory import ImageDataModule, held_share, named_dataset, selected
from fl_lightning.data.schema import repeated
from fl_lightning.errors import DataError, require

_IMAGES = (".png", ".tif", ".tiff", ".jpg", ".jpeg")
_FORMS = "NAME.png (or .jpg, .tif) next to NAME.csv; docs/cell_counting.md turns images of dots into such files"
_ROOT = "under 'data.datamodule.root'"

Pairs = list[tuple[Path, Path]]
"""Images, each with its annotation, a CSV file."""


class CellFolderDataModule(ImageDataModule):
    """Load images of cells and draw their density from your dots; the sum of the density is the count.

    An image is NAME.png (or .jpg, .jpeg, .tif, .tiff) beside NAME.csv, with x and y of each cell in pixels. Put them into
    ``root``, or into one folder for each client, from which :class:`~fl_lightning.DomainPartitioner` creates the clients.
    Either layout may be under root/train and root/test. Batches are as in :class:`~fl_lightning.SimulatedCellsDataModule`.

    The centre of the first pixel is (0, 0). A CSV file may name its columns in a first line, and may then have further ones;
    an empty file means that the image has no cells.

    Args:
        root: the folder. If it consists of train (or training), test (or testing) and val (or valid, validation), the server
            validates on val and tests on test, or uses for both the one that exists.
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
        white: the value of white in images of 16 bits: 4095 for a camera of 12 bits, 65535 for all 16. Without it they are
            refused.

    Raises:
        ConfigurationError: if a value is outside its range.
    """

    on_resume = ResumeRule(free="root")

    def __init__(
        self,
        root: str,
        test_share: float = 0.2,
        image_size: int | None = None,
        density_sigma: float = 2.0,
        density_scale: float = 100.0,
        batch_size: int = 8,
        eval_batch_size: int = 64,
        channels: Literal[1, 3] = 1,
        white: int | None = None,
    ) -> None:
        super().__init__(batch_size, eval_batch_size)
        require(0 <= test_share < 1, "data.datamodule.test_share", "at least 0 and below 1", test_share)
        require(0 < density_sigma < math.inf, "data.datamodule.density_sigma", "above 0 pixels", density_sigma)
        require(density_scale > 0, "data.datamodule.density_scale", "above 0", density_scale)
        self.root, self.test_share, self.image_size, self.channels = root, test_share, image_size, channels
        self.density_sigma, self.density_scale = density_sigma, density_scale
        self._reader = ImageReader(channels, image_size, white)
        if not test_share and split_folders(Path(root))[1:] == (None, None):
            self.without_server_set()

    def load(self) -> tuple[TensorDataset, TensorDataset | None]:
        """Find and read images and dots.

        Raises:
            DataError: if files do not have this form or do not match, or if no training image has a cell.
        """
        folder, *held = split_folders(Path(self.root))
        train, names = self._set(find_cells(folder))
        self._val, test = (None if path is None else self._set(find_cells(path))[0] for path in held)
        if held == [None, None] and self.test_share:
            owners = getattr(train, "domains", torch.zeros(len(train), dtype=torch.int64))
            train, test = (selected(train, part) for part in held_share("test_share", self.test_share, owners))
        fix = "Set 'data.datamodule.root' to images some of which have cells."
        require_cells(train.tensors[1], f"training image of '{folder}'", fix)
        sizes = " + ".join(str(len(part)) for part in (train, self._val, test) if part is not None)
        self.origin = f"{folder} ({sizes} images, {len(names) or 'no'} clients)"
        return train, test

    def _set(self, clients: dict[str, Pairs]) -> tuple[TensorDataset, tuple[str, ...]]:
        """Return the images and densities of clients, and the clients' names, if any."""
        pairs = [pair for own in clients.values() for pair in own]
        images = read_images(self._reader, [str(path) for path, _ in pairs])
        height, width = images.shape[2:]
        densities = torch.empty(len(images), 1, height, width)
        for k, (image, path) in enumerate(pairs):
            with Image.open(image) as file:
                own = ImageOps.exif_transpose(file).size
            factor = torch.tensor([width / own[0], height / own[1]], dtype=torch.float64)
            dots = (read_dots(path, *own) + 0.5) * factor - 0.5  # the edges of pixels keep their places, not the centres
            densities[k, 0] = density_image(dots, height, width, self.density_sigma) * self.density_scale
        names = tuple(clients) if "" not in clients else ()
        owners = torch.arange(len(clients)).repeat_interleave(torch.tensor([len(own) for own in clients.values()]))
        columns = {"domains": owners, "domains_names": names} if names else {}
        return named_dataset([images, densities], **columns), names


def find_cells(root: Path) -> dict[str, Pairs]:
    """Find images in root/image or root/client/image, each with its annotation next to it.

    Returns:
        The images of each client by name, sorted; of all under an empty name if they are not divided by client.

    Raises:
        DataError: if a folder has no images, an image no annotation, or an annotation no image.
    """
    folders = folders_in(root)
    own = _pairs(root) if root.is_dir() and (not folders or _files(root, _IMAGES)) else []
    if own and folders:
        raise DataError(
            f"'{root}' contains images as well as the folder '{folders[0].name}', so it is unclear whether that folder is a "
            "client. Set 'data.datamodule.root' to a folder of images, or of one folder of images for each client."
        )
    clients = {"": own} if own else {folder.name: _pairs(folder) for folder in folders}
    for folder in [root / name for name, pairs in clients.items() if not pairs] if clients else [root]:
        what = "contains no images" if folder.is_dir() else "is not a folder"
        raise DataError(f"'{folder}' {what}. Add some ({_FORMS}), or set 'data.datamodule.root' to another folder.")
    return clients


def _files(folder: Path, kinds: Sequence[str]) -> list[Path]:
    return sorted(p for p in folder.iterdir() if p.suffix.lower() in kinds and p.is_file() and not p.name.startswith("."))


def _pairs(folder: Path) -> Pairs:
    """Return each image of a folder with its annotation."""
    images, tables = _files(folder, _IMAGES), {path.stem: path for path in _files(folder, [".csv"])}
    stems = [path.stem for path in images]
    for names, what in (
        (repeated(stems), "has several images"),
        ([path.name for path in images if path.stem not in tables], "has no annotation next to it"),
        (sorted(tables[stem].name for stem in tables.keys() - {*stems}), "is an annotation without an image"),
    ):
        if names:
            more = f" (and {len(names) - 1} more like it)" if len(names) > 1 else ""
            raise DataError(
                f"'{folder / names[0]}' {what}{more}. Each image {_ROOT} needs one annotation: {_FORMS}. An empty annotation "
                "means that the image has no cells."
            )
    return [(path, tables[path.stem]) for path in images]


def read_dots(path: Path, width: int, height: int) -> Tensor:
    """Return the dots of an annotation, (x, y) in pixels, float64, shape (n, 2); (0, 0) is the centre of the first pixel.

    Args:
        path: the CSV file.
        width: the width of the image that it belongs to.
        height: the height of that image.

    Raises:
        DataError: if the annotation cannot be read, or does not fit the image.
    """
    try:
        rows = csv.reader(path.read_text(encoding="utf-8-sig").splitlines())
        lines = [(number, row) for number, row in enumerate(rows, 1) if any(cell.strip() for cell in row)]
    except (OSError, ValueError, csv.Error) as error:
        raise DataError(f"Cannot read {path} ({error}). Fix it {_ROOT}, or remove it.") from error
    names = [cell.strip().lower() for cell in lines[0][1]] if lines else []
    columns = (names.index("x"), names.index("y")) if {"x", "y"} <= set(names) else None
    dots = []
    for number, row in lines[columns is not None :]:
        try:
            x, y = row if columns is None else (row[column] for column in columns)
            dot = (math.nan, math.nan) if "_" in x + y else (float(x), float(y))  # Python reads 1_0 as ten
        except (IndexError, ValueError):
            dot = math.nan, math.nan
        if not all(map(math.isfinite, dot)):
            raise DataError(
                f"{path}, line {number}, must be two numbers, x and y in pixels, but is '{','.join(row)}'. Fix the line, or "
                f"name the columns x and y in the first line. The file is {_ROOT}."
            )
        if not (-0.5 <= dot[0] < width and -0.5 <= dot[1] < height):
            raise DataError(
                f"{path}, line {number}: the dot at x {dot[0]:g}, y {dot[1]:g} is outside its image of {width} x {height} "
                f"pixels. Give the position in pixels of the file {_ROOT}, from 0, before any resizing."
            )
        dots.append(dot)
    return torch.tensor(dots, dtype=torch.float64).view(-1, 2)
