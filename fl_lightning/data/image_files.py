"""Find and read images on disk."""

from __future__ import annotations

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
    of_domains = "" not in domains
    there = tuple(sorted({label.name for folder in domains.values() for label in folders_in(folder)}))
    names = classes or there
    deep = [label for folder in domains.values() for label in folders_in(folder) if not _images(label) and folders_in(label)]
    if deep:
        empty = [folder.name for folder in folders_in(root) if not any(folder.iterdir())] if isinstance(root, Path) else []
        raise DataError(
            f"'{root}' is nested more deeply than root/domain/class/image: '{deep[0].name}' contains folders. "
            + (f"Remove '{empty[0]}', which is empty, or add" if empty else "Set")
            + (" images to it." if empty else " 'data.datamodule.root' to the folder above the domains or classes.")
        )
    paths: list[str] = []
    targets: list[int] = []
    sizes: list[int] = []
    unknown = [name for name in there if name not in names]
    if unknown:
        raise DataError(
            f"'{root}' has a folder of the class '{unknown[0]}', which is not one of "
            f"'data.datamodule.classes' or of the schema's classes: {', '.join(names[:20])}. Remove the folder, or add the "
            "class."
        )
    lacking = {name: [label for label in names if not (folder / label).is_dir()] for name, folder in domains.items()}
    if any(lacking.values()) and not classes:
        text = "; ".join(f"'{name}' has no folder {', '.join(labels)}" for name, labels in lacking.items() if labels)
        rank_zero_warn(f"The domains have different classes: {text}. If a folder is misspelt, it counts as a class of its own.")
    for name, folder in domains.items():
        for target, label in enumerate(names):
            found = _images(folder / label) if (folder / label).is_dir() else []
            if not found and not name and label in there:
                raise DataError(
                    f"'{folder / label}' contains no images ({', '.join(IMG_EXTENSIONS)}). Add some, or remove the folder."
                )
            paths += found
            targets += [target] * len(found)
        sizes.append(len(paths) - sum(sizes))
        if not sizes[-1]:
            raise DataError(f"'{folder}' contains no images ({', '.join(IMG_EXTENSIONS)}). Add some, or remove the folder.")
    if len(names) < 2:
        raise DataError(
            f"'{root}' contains the single class '{names[0]}', but classification needs two or more. Add another class."
        )
    domain_of = torch.arange(len(domains)).repeat_interleave(torch.tensor(sizes))
    return ImageFiles(tuple(paths), torch.tensor(targets), names, domain_of, tuple(domains) if of_domains else ())


def _domains(root: Path | Mapping[str, Path]) -> dict[str, Path]:
    """Return the folder of each domain by name, sorted; that of all images under an empty name if there are no domains."""
    given = {"": root} if isinstance(root, Path) else {name: root[name] for name in sorted(root)}
    for folder in given.values():
        if not folders_in(folder):
            raise DataError(
                f"'{folder}' {'contains no folders' if folder.is_dir() else 'is not a folder'}. Set 'data.datamodule.root' to "
                "a folder of the form root/class/image or root/domain/class/image, or to a folder for each client by name."
            )
    if not isinstance(root, Path):
        return {name: _inside(folder) for name, folder in given.items()}
    inside = folders_in(root)
    of_domains = all(not _images(folder) and folders_in(folder) for folder in inside)
    return {folder.name: _inside(folder) for folder in inside} if of_domains else given


def folders_in(root: Path) -> list[Path]:
    """Return the subfolders of a folder, sorted, without hidden ones; an empty list if the folder does not exist."""
    return sorted(p for p in root.iterdir() if p.is_dir() and not p.name.startswith(".")) if root.is_dir() else []


def _inside(domain: Path) -> Path:
    inner = folders_in(domain)
    return inner[0] if [folder.name for folder in inner] == ["images"] else domain


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

    def shape(self, paths: Sequence[str]) -> tuple[int, int, int]:
        """Return the shape of the first image that can be read.

        Raises:
            DataError: if no image can be read.
        """
        why = ""
        for path in paths:
            try:
                height, width = self.read(path).shape[1:]
            except UNREADABLE as error:
                why = why or str(error)
                continue
            return self.channels, height, width
        raise DataError(f"None of the {len(paths)} images can be read, such as '{paths[0]}' ({why}). Fix or replace them.")


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


def for_each(work: Callable[[int], object], size: int, text: str) -> dict[int, str]:
    """Apply a function to each of n images in threads, with a progress bar; return error messages by position."""
    failures: dict[int, str] = {}

    def attempt(position: int) -> None:
        """Apply the function, and record a failure."""
        try:
            work(position)
        except UNREADABLE as error:
            short = isinstance(error, UnidentifiedImageError)
            failures[position] = "not an image" if short else str(error)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for _ in tqdm(pool.map(attempt, range(size)), text, size, unit="image", disable=size < _MANY, leave=False):
            pass
    return dict(sorted(failures.items()))


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
            raise DataError(
                f"Cannot read {self._paths[index]} ({error}). Fix it, or set 'data.datamodule.unreadable' to 'skip'."
            ) from error
