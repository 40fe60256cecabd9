"""Match images of cells with their annotations on disk, and read the dots."""

from __future__ import annotations

import csv
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from fl_lightning.data.image_files import UNREADABLE, folders_in
from fl_lightning.errors import DataError
from fl_lightning.functional.cells import dot_centres

_LOSSLESS = (".png", ".tif", ".tiff")
_IMAGES = (*_LOSSLESS, ".jpg", ".jpeg")
_FORMS = "NAME.png (or .jpg, .tif) next to NAME.csv, or NAMEcell.png next to NAMEdots.png"


@dataclass(frozen=True)
class CellFiles:
    """List the images, in the order of clients and names.

    Args:
        images: the image files.
        annotations: a CSV file or an image of dots for each image.
        domains: the client of each image, int64, shape (n,).
        domains_names: the names of the clients, sorted; empty if the images are not divided by client.
    """

    images: tuple[Path, ...]
    annotations: tuple[Path, ...]
    domains: Tensor
    domains_names: tuple[str, ...]

    @property
    def columns(self) -> dict[str, Any]:
        """Return the extra columns of a dataset of these images: the clients and their names, if any."""
        return {"domains": self.domains, "domains_names": self.domains_names} if self.domains_names else {}

    def select(self, kept: Tensor) -> CellFiles:
        """Return the files at the given positions."""
        images, annotations = ([files[k] for k in kept.tolist()] for files in (self.images, self.annotations))
        return CellFiles(tuple(images), tuple(annotations), self.domains[kept], self.domains_names)


def find_cells(root: Path) -> CellFiles:
    """Find images in root/image or root/client/image, each with its annotation next to it.

    Raises:
        DataError: if a folder has no images, an image no annotation, or an annotation no image.
    """
    if not root.is_dir():
        raise DataError(f"'{root}' is not a folder. Set 'data.datamodule.root' to a folder with images of the form {_FORMS}.")
    folders = folders_in(root)
    own = [] if folders and not _files(root, _IMAGES) else _pairs(root)
    if own and folders:
        raise DataError(
            f"'{root}' contains images as well as the folder '{folders[0].name}', so it is unclear whether that folder is a "
            "client. Set 'data.datamodule.root' to a folder of images, or to a folder that contains one folder of images for "
            "each client."
        )
    if not own and not folders:
        raise DataError(f"'{root}' contains no images. Set 'data.datamodule.root' to a folder with {_FORMS}.")
    clients = {"": own} if own else {folder.name: _pairs(folder) for folder in folders}
    empty = [name for name, pairs in clients.items() if not pairs]
    if empty:
        raise DataError(
            f"'{root / empty[0]}' contains no images. Add some ({_FORMS}), remove the folder, or set 'data.datamodule.root' to "
            "another folder."
        )
    images, annotations = zip(*(pair for pairs in clients.values() for pair in pairs), strict=True)
    domains = torch.arange(len(clients)).repeat_interleave(torch.tensor([len(pairs) for pairs in clients.values()]))
    return CellFiles(images, annotations, domains, () if own else tuple(clients))


def _files(folder: Path, kinds: Sequence[str]) -> list[Path]:
    return sorted(p for p in folder.iterdir() if p.suffix.lower() in kinds and p.is_file() and not p.name.startswith("."))


def _pairs(folder: Path) -> list[tuple[Path, Path]]:
    """Return each image of a folder with its annotation."""
    tables = {path.stem: path for path in _files(folder, [".csv"])}
    pictures = _files(folder, _IMAGES)
    drawn = [p for p in pictures if p.stem.endswith("dots") and p.suffix.lower() in _LOSSLESS and p.stem not in tables]
    images = [path for path in pictures if path not in drawn]
    _refuse(folder, [name for name, count in Counter(p.stem for p in images).items() if count > 1], "has several images")
    dots = {path.stem.removesuffix("dots") + "cell": path for path in drawn}
    _refuse(folder, [p.name for p in images if p.stem in tables and p.stem in dots], "has two annotations, .csv and dots")
    found = {**tables, **dots}
    _refuse(folder, [p.name for p in images if p.stem not in found], "has no annotation next to it")
    lonely = set(found) - {path.stem for path in images}
    _refuse(folder, sorted(found[stem].name for stem in lonely), "is an annotation without an image")
    return [(path, found[path.stem]) for path in images]


def _refuse(folder: Path, names: Sequence[str], what: str) -> None:
    if names:
        more = f" (and {len(names) - 1} more like it)" if len(names) > 1 else ""
        raise DataError(
            f"'{folder / names[0]}' {what}{more}. Each image under 'data.datamodule.root' needs one annotation: {_FORMS}. An "
            "empty annotation means that the image has no cells."
        )


def read_dots(path: Path, height: int, width: int) -> Tensor:
    """Return the dots of an annotation, (x, y) in pixels, float64, shape (n, 2); (0, 0) is the centre of the first pixel.

    Args:
        path: a CSV file or an image of dots.
        height: the height of the image that it belongs to.
        width: the width of that image.

    Raises:
        DataError: if the annotation cannot be read, or does not fit the image.
    """
    return _table(path, height, width) if path.suffix.lower() == ".csv" else _picture(path, height, width)


def _picture(path: Path, height: int, width: int) -> Tensor:
    try:
        with Image.open(path) as file:
            image = ImageOps.exif_transpose(file)  # as the picture beside it is read
            pixels = np.asarray(image if image.mode.startswith(("I", "F")) else image.convert("RGB"))
    except UNREADABLE as error:
        raise DataError(f"Cannot read {path} ({error}). Fix it under 'data.datamodule.root', or remove it.") from error
    if pixels.shape[:2] != (height, width):
        raise DataError(
            f"{path} has {pixels.shape[1]} x {pixels.shape[0]} pixels, but its image has {width} x {height}. Give both files "
            "the same size under 'data.datamodule.root', or remove them."
        )
    mask = pixels.reshape(height, width, -1).any(axis=2)
    if 2 * mask.sum() > mask.size:
        raise DataError(
            f"{path} has more coloured than black pixels, but every group of coloured pixels stands for one cell. Under "
            "'data.datamodule.root', make its background black (0) and its dots any other colour."
        )
    return dot_centres(torch.from_numpy(mask))


def _table(path: Path, height: int, width: int) -> Tensor:
    try:
        rows = list(csv.reader(path.read_text(encoding="utf-8-sig").splitlines()))
    except (OSError, ValueError, csv.Error) as error:
        raise DataError(f"Cannot read {path} ({error}). Fix it under 'data.datamodule.root', or remove it.") from error
    lines = [(number, row) for number, row in enumerate(rows, 1) if any(cell.strip() for cell in row)]
    columns = _columns(lines[0][1]) if lines else None
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
                "name the columns x and y in the first line. The file is under 'data.datamodule.root'."
            )
        if not (-0.5 <= dot[0] < width and -0.5 <= dot[1] < height):
            raise DataError(
                f"{path}, line {number}: the dot at x {dot[0]:g}, y {dot[1]:g} is outside its image of {width} x {height} "
                "pixels. Give the position in pixels of the file under 'data.datamodule.root', from 0, before any resizing."
            )
        dots.append(dot)
    return torch.tensor(dots, dtype=torch.float64).view(-1, 2)


def _columns(row: Sequence[str]) -> tuple[int, int] | None:
    """Return the positions of the columns x and y, if this row names them."""
    names = [cell.strip().lower() for cell in row]
    return (names.index("x"), names.index("y")) if {"x", "y"} <= set(names) else None
