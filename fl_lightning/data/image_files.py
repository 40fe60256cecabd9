"""Find and read images on disk."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.pytorch.utilities.rank_zero import rank_zero_warn
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor
from torch.utils.data import Dataset
from torchvision.datasets.folder import IMG_EXTENSIONS
from tqdm import tqdm  # tqdm.auto warns in a notebook without ipywidgets

from fl_lightning.errors import DataError, require

_MANY = 5_000
"""The number of images from which reading shows its progress."""

UNREADABLE = (OSError, SyntaxError, ValueError, Image.DecompressionBombError)
"""Exceptions that Pillow raises for a file that is not a complete image."""

WHITE = 2**16 - 1
"""The largest value in 16 bits."""
_ORIENTATION, _ON_ITS_SIDE = 0x0112, (5, 6, 7, 8)
"""The EXIF tag by which cameras say how an image is to be turned, and its values that exchange width and height."""
_SHOWN = 20
_SAMPLE = 32
"""The number of images of which the brightest pixel is read beforehand."""


@dataclass(frozen=True)
class ImageFiles:
    """List the images, in the order of domains, classes and names.

    Args:
        paths: the paths of the images.
        targets: the class of each image, int64, shape (n,).
        classes: the names of the classes, sorted.
        domains: the domain of each image, int64, shape (n,).
        domains_names: the names of the domains, sorted; empty without domains.
    """

    paths: tuple[str, ...]
    targets: Tensor
    classes: tuple[str, ...]
    domains: Tensor
    domains_names: tuple[str, ...]

    @property
    def columns(self) -> dict[str, Any]:
        """Return the extra columns of a dataset of these images: names of classes, and domains with their names, if any."""
        named = {"domains": self.domains, "domains_names": self.domains_names} if self.domains_names else {}
        return {"classes": self.classes, **named}

    def select(self, kept: Tensor) -> ImageFiles:
        """Return the images at the given positions."""
        paths = tuple(self.paths[k] for k in kept.tolist())
        return ImageFiles(paths, self.targets[kept], self.classes, self.domains[kept], self.domains_names)


_SPLITS = {
    "train": ("train", "training"),
    "val": ("val", "valid", "validation"),
    "test": ("test", "testing"),
}


def split_folders(root: Path) -> tuple[Path, Path | None, Path | None]:
    """Return the folders of the training, validation and test images: subfolders with such names, otherwise ``root`` alone.

    Raises:
        DataError: if other folders stand beside them.
    """
    inside = {path.name.lower(): path for path in folders_in(root)}
    found = {part: next((inside[name] for name in names if name in inside), None) for part, names in _SPLITS.items()}
    train, others = found["train"], set(inside.values()) - set(found.values())
    if train is None or found["val"] is found["test"] is None:
        return root, None, None
    if others:
        named, held = ", ".join(sorted(path.name for path in others)), found["test"] or found["val"]
        raise DataError(
            f"'{root}' contains {named} next to '{train.name}' and '{held.name if held else ''}', so it is unclear which "
            f"folders are classes or domains. Set 'data.datamodule.root' to '{train}' and 'test_root' to '{held}', or move the "
            "other folders elsewhere."
        )
    return train, found["val"], found["test"]


def find_images(root: Path | Mapping[str, Path], classes: tuple[str, ...] = ()) -> ImageFiles:
    """Find images in root/class/image or root/domain/class/image (or root/domain/images/class/image, as in Office-31).

    Args:
        root: the folder, or a folder of the form domain/class/image for each domain by name.
        classes: the names of the classes in the order of their numbers, of which folders may lack some; if it is empty, those
            that exist, sorted.

    Raises:
        DataError: if a domain, or without domains a class, has no images, if only one class exists, or for a folder that is
            none of the given classes.
    """
    domains = _domains(root)
    found = {name: {label.name: _images(label) for label in folders_in(folder)} for name, folder in domains.items()}
    for name, labels in found.items():
        if deep := next((label for label, images in labels.items() if not images and folders_in(domains[name] / label)), None):
            raise DataError(
                f"'{root}' is nested more deeply than root/domain/class/image: '{deep}' contains folders. Set "
                "'data.datamodule.root' to the folder above the domains or classes, and remove empty folders from it."
            )
    there = sorted({label for labels in found.values() for label in labels})
    names = classes or tuple(there)
    if unknown := [label for label in there if label not in names]:
        raise DataError(
            f"'{root}' has a folder of the class '{unknown[0]}', which is not one of 'data.datamodule.classes' or of the "
            f"schema's classes: {', '.join(names[:20])}. Remove the folder, or add the class."
        )
    for name, labels in found.items():  # a domain may lack classes
        if (
            empty := [label for label, images in labels.items() if not images]
            if not name
            else []
            if any(labels.values())
            else [""]
        ):
            raise DataError(
                f"'{domains[name] / empty[0]}' contains no images ({', '.join(IMG_EXTENSIONS)}). Add some, or remove the "
                "folder."
            )
    if len(names) < 2:
        raise DataError(
            f"'{root}' contains the single class '{names[0]}', but classification needs two or more. Add another class."
        )
    lacking = {name: [label for label in names if label not in labels] for name, labels in found.items()}
    if any(lacking.values()) and not classes:
        text = "; ".join(f"'{name}' has no folder {', '.join(labels)}" for name, labels in lacking.items() if labels)
        rank_zero_warn(f"The domains have different classes: {text}. If a folder is misspelt, it counts as a class of its own.")
    each = [
        (path, target, owner)
        for owner, own in enumerate(found.values())
        for target, label in enumerate(names)
        for path in own.get(label, ())
    ]
    paths, targets, owners = zip(*each, strict=True)
    return ImageFiles(paths, torch.tensor(targets), names, torch.tensor(owners), () if "" in domains else tuple(domains))


def _domains(root: Path | Mapping[str, Path]) -> dict[str, Path]:
    """Return the folder of each domain by name, sorted; that of all images under an empty name if there are no domains."""
    given = {"": root} if isinstance(root, Path) else {name: root[name] for name in sorted(root)}
    for folder in given.values():
        if not folders_in(folder):
            raise DataError(
                f"'{folder}' {'contains no folders' if folder.is_dir() else 'is not a folder'}. Set 'data.datamodule.root' to "
                "a folder of the form root/class/image or root/domain/class/image, or to a folder for each client by name."
            )
    if isinstance(root, Path):
        inside = folders_in(root)
        if any(_images(folder) or not folders_in(folder) for folder in inside):
            return given
        given = {folder.name: folder for folder in inside}
    return {
        name: folder / "images" if [f.name for f in folders_in(folder)] == ["images"] else folder
        for name, folder in given.items()
    }


def folders_in(root: Path) -> list[Path]:
    """Return the subfolders of a folder, sorted, without hidden ones; an empty list if the folder does not exist."""
    return sorted(p for p in root.iterdir() if p.is_dir() and not p.name.startswith(".")) if root.is_dir() else []


def _images(folder: Path) -> list[str]:
    with os.scandir(folder) as entries:
        names = sorted(e.name for e in entries if e.name.lower().endswith(IMG_EXTENSIONS) and not e.name.startswith("."))
    return [str(folder / name) for name in names]


class ImageReader:
    """Decode image files.

    Args:
        channels: 1 for grey, 3 for colour.
        size: the height and width in pixels to which every image is resized; None keeps their sizes.
        white: the value of white in images of 16 bits, such as 4095 if a camera uses 12 of them.
    """

    def __init__(self, channels: int, size: int | None, white: int = WHITE) -> None:
        require(size is None or size >= 1, "data.datamodule.image_size", "1 or above, or null", size)
        require(1 <= white <= WHITE, "data.datamodule.white", f"1 to {WHITE}", white)
        self.channels, self.size, self.white = channels, size, white

    def read(self, path: str) -> Tensor:
        """Read one image as cameras say that it is to be shown, uint8, shape (C, H, W).

        Raises:
            OSError: if the file is not a complete image.
        """
        with Image.open(path) as file:
            image = _in_bytes(ImageOps.exif_transpose(file), self.white).convert("L" if self.channels == 1 else "RGB")
        if self.size is not None and image.size != (self.size, self.size):
            image = image.resize((self.size, self.size), Image.Resampling.BILINEAR)
        return torch.from_numpy(np.array(image)).view(image.height, image.width, -1).permute(2, 0, 1).contiguous()

    def header_size(self, path: str) -> tuple[int, int]:
        """Return height and width of an image, reading only the header of its file.

        Raises:
            OSError: if the file is not an image.
        """
        with Image.open(path) as file:
            lies = Image.Image.getexif(file).get(_ORIENTATION, 1) in _ON_ITS_SIDE
            return (file.width, file.height) if lies else (file.height, file.width)

    def warn_of_depth(self, paths: Sequence[str]) -> None:
        """Warn of images of 16 bits that use few of them, of which hardly any grey levels would be left, by a sample."""
        brightest = 0
        for path in paths[:: max(1, len(paths) // _SAMPLE)]:
            try:
                with Image.open(path) as file:
                    if not file.mode.startswith("I"):
                        return
                    brightest = max(brightest, int(np.asarray(file).max()))
            except UNREADABLE:
                continue
        if 0 < brightest <= self.white // 8:
            bits = max(9, brightest.bit_length())
            rank_zero_warn(
                f"The images have 16 bits, but the brightest of a sample has the value {brightest}, so that "
                f"{brightest * 255 // self.white + 1} of 256 grey levels are left. If the camera has {bits} bits, set "
                f"'data.datamodule.white' to {2**bits - 1}, for all clients."
            )


def _in_bytes(file: Image.Image, white: int) -> Image.Image:
    """Return an image of 8 bits; Pillow would clip the 16 bits of medical images at 255.

    Raises:
        ValueError: if pixels are floating-point, whose range is unknown, or have more than 16 bits.
    """
    if not file.mode.startswith(("I", "F")):
        return file
    values = np.asarray(file)
    if file.mode == "F" or values.min() < 0 or values.max() > WHITE:
        raise ValueError("its pixels are not whole numbers of 8 or 16 bits: convert it")
    if values.max() > white:
        raise ValueError(f"its brightest pixel is {values.max()}, but 'data.datamodule.white' is {white}")
    return Image.fromarray((values.astype(np.uint32) * 255 // white).astype(np.uint8))


def read_images(reader: ImageReader, paths: Sequence[str], limit: float = math.inf) -> Tensor | None:
    """Return images, uint8, shape (n, C, H, W); None, after a check of their headers, if they take more than ``limit`` bytes.

    Raises:
        DataError: naming images that cannot be read, or of different sizes.
    """
    first: list[Tensor] = []
    _for_each(lambda k: first.append(reader.read(paths[k])), paths[:1], "")
    reader.warn_of_depth(paths)
    shape, here = first[0].shape, len(paths) * first[0].nbytes <= limit
    images = torch.empty(len(paths) if here else 0, *shape, dtype=torch.uint8)
    odd: list[str] = []

    def read(position: int) -> None:
        """Read one image into its place, or its header."""
        image = reader.read(paths[position]) if here else None
        size = reader.header_size(paths[position]) if image is None else image.shape[1:]
        if reader.size is None and tuple(size) != shape[1:]:
            odd.append(paths[position])
        elif image is not None:
            images[position] = image

    _for_each(read, paths, "Reading images" if here else "Checking images")
    if odd:
        raise DataError(
            f"The images have different sizes: {len(odd)} of them, such as {min(odd)}, do not have the {shape[2]} x {shape[1]} "
            "pixels of the first image. Set 'data.datamodule.image_size' to resize all of them."
        )
    return images if here else None


def _for_each(work: Callable[[int], object], paths: Sequence[str], text: str) -> None:
    """Apply a function to the position of each image in threads, with a progress bar.

    Raises:
        DataError: naming images that cannot be read.
    """
    failures: dict[int, str] = {}

    def attempt(position: int) -> None:
        """Apply the function, and record a failure."""
        try:
            work(position)
        except UNREADABLE as error:
            failures[position] = "not an image" if isinstance(error, UnidentifiedImageError) else str(error)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        places = pool.map(attempt, range(len(paths)))
        for _ in tqdm(places, text, len(paths), unit="image", disable=len(paths) < _MANY, leave=False):
            pass
    if failures:
        named = ", ".join(f"{paths[k]} ({failures[k]})" for k in sorted(failures)[:_SHOWN])
        more = f" and {len(failures) - _SHOWN} more" if len(failures) > _SHOWN else ""
        raise DataError(
            f"{len(failures)} of {len(paths)} images cannot be read: {named}{more}. Fix them, or move them elsewhere."
        )


class LazyImages(Dataset[Any]):
    """Read images from disk on each access; with ``targets``, ``classes``, and ``domains`` if there are any.

    Args:
        files: the images.
        reader: the reader.
    """

    def __init__(self, files: ImageFiles, reader: ImageReader) -> None:
        self._paths, self._reader = files.paths, reader
        self.targets = files.targets
        vars(self).update(files.columns)

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        """Return an image, uint8, shape (C, H, W), and its class."""
        try:
            return self._reader.read(self._paths[index]), int(self.targets[index])
        except UNREADABLE as error:
            raise DataError(f"Cannot read {self._paths[index]} ({error}). Fix it, or move it elsewhere.") from error
