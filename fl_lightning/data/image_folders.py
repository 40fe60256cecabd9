"""Load your own images from folders: by class, or by domain and class."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from lightning.pytorch.utilities.rank_zero import rank_zero_warn
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor
from torch.utils.data import Dataset
from torchvision.datasets.folder import IMG_EXTENSIONS
from tqdm import tqdm  # tqdm.auto warns in a notebook without ipywidgets

from fl_lightning.core.capabilities import ResumeRule
from fl_lightning.data.in_memory import ImageDataModule, client_paths, held_share, named_dataset
from fl_lightning.data.labels import given_classes, require_alike
from fl_lightning.errors import DataError, require

UNREADABLE = (OSError, SyntaxError, ValueError, Image.DecompressionBombError)
"""Exceptions that Pillow raises for a file that is not a complete image."""

_WHITE = 2**16 - 1
"""The largest value in 16 bits."""
_SPLITS = (("train", "training"), ("val", "valid", "validation"), ("test", "testing"))
_MANY, _SHOWN = 5_000, 20
"""The number of images from which reading shows its progress, and of those that a message names."""


def folders_in(root: Path) -> list[Path]:
    """Return the subfolders of a folder, sorted, without hidden ones; an empty list if the folder does not exist."""
    return sorted(p for p in root.iterdir() if p.is_dir() and not p.name.startswith(".")) if root.is_dir() else []


def split_folders(root: Path) -> tuple[Path, Path | None, Path | None]:
    """Return the folders of the training, validation and test images: subfolders with such names, otherwise ``root`` alone.

    Raises:
        DataError: if other folders stand beside them.
    """
    inside = {path.name.lower(): path for path in folders_in(root)}
    train, val, test = (next((inside.pop(name) for name in names if name in inside), None) for names in _SPLITS)
    if train is None or val is test is None:
        return root, None, None
    if inside:
        others = ", ".join(sorted(path.name for path in inside.values()))
        raise DataError(
            f"'{root}' contains {others} next to '{train.name}', so it is unclear which of them are classes or clients. "
            "Move the other folders elsewhere."
        )
    return train, val, test


class ImageFiles(Dataset[Any]):
    """List images in the order of domains, classes and names, and read one from disk on each access.

    Args:
        reader: the reader.
        paths: the paths of the images.
        targets: the class of each image, int64, shape (n,).
        columns: what the dataset says besides: the names of the classes, and if there are domains, the domain of each image
            and their names, sorted.
    """

    classes: tuple[str, ...]
    domains: Tensor
    _shape: torch.Size

    def __init__(self, reader: ImageReader, paths: Sequence[str], targets: Tensor, columns: Mapping[str, Any]) -> None:
        self.paths, self.targets = tuple(paths), targets
        self._reader, self._columns = reader, columns
        vars(self).update(columns)

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        """Return an image, uint8, shape (C, H, W), and its class."""
        image = read_each(self._reader.read, [self.paths[index]])[0]
        if image.shape != self._shape:
            raise _of_other_size([self.paths[index]], self._shape)
        return image, int(self.targets[index])

    def select(self, kept: Tensor) -> ImageFiles:
        """Return the images at the given positions."""
        columns = {name: own[kept] if isinstance(own, Tensor) else own for name, own in self._columns.items()}
        return ImageFiles(self._reader, [self.paths[k] for k in kept.tolist()], self.targets[kept], columns)

    def in_memory(self, limit: float) -> Dataset[Any]:
        """Return a dataset of the images in memory; these files, which are read one by one, if they take more bytes.

        Raises:
            DataError: naming images that cannot be read, or of different sizes.
        """
        self._shape = read_each(self._reader.read, self.paths[:1])[0].shape
        if len(self) * self._shape.numel() > limit:
            return self
        return named_dataset([read_images(self._reader, self.paths), self.targets], **self._columns)


def find_images(root: Path | Mapping[str, Path], reader: ImageReader, classes: tuple[str, ...] = ()) -> ImageFiles:
    """Find images in root/class/image or root/domain/class/image (or root/domain/images/class/image, as in Office-31).

    Args:
        root: the folder, or a folder of the form domain/class/image for each domain by name.
        reader: reads them.
        classes: the names of the classes in the order of their numbers, of which folders may lack some; if it is empty, those
            that exist, sorted.

    Raises:
        DataError: if a domain, or without domains a class, has no images, if only one class exists, or for a folder that is
            none of the given classes.
    """
    domains = _domains(root)
    found = {name: {label.name: _images(label) for label in folders_in(folder)} for name, folder in domains.items()}
    for name, labels in found.items():
        none = [domains[name] / label for label, images in labels.items() if not images]
        wrong = [folder for folder in none if not name or folders_in(folder)]  # a domain may lack classes
        if wrong or len(none) == len(labels):
            raise _misplaced((wrong or [domains[name]])[0], f"contains no images ({', '.join(IMG_EXTENSIONS)})")
    there = sorted({label for labels in found.values() for label in labels})
    names = classes or tuple(there)
    if unknown := [label for label in there if label not in names]:
        raise DataError(
            f"'{root}' has a folder of the class '{unknown[0]}', which is not one of 'data.datamodule.classes': "
            f"{', '.join(names[:_SHOWN])}. Remove the folder, or add the class."
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
    of_domains = {} if "" in domains else {"domains": torch.tensor(owners), "domains_names": tuple(domains)}
    return ImageFiles(reader, paths, torch.tensor(targets), {"classes": names, **of_domains})


def _domains(root: Path | Mapping[str, Path]) -> dict[str, Path]:
    """Return the folder of each domain by name, sorted; that of all images under an empty name if there are no domains."""
    given = {"": root} if isinstance(root, Path) else {name: root[name] for name in sorted(root)}
    for folder in given.values():
        if not folders_in(folder):
            raise _misplaced(folder, "contains no folders" if folder.is_dir() else "is not a folder")
    if isinstance(root, Path):
        inside = folders_in(root)
        if any(_images(folder) or not folders_in(folder) for folder in inside):
            return given
        given = {folder.name: folder for folder in inside}
    return {
        name: folder / "images" if [f.name for f in folders_in(folder)] == ["images"] else folder
        for name, folder in given.items()
    }


def _misplaced(folder: Path, what: str) -> DataError:
    return DataError(
        f"'{folder}' {what}. Set 'data.datamodule.root' to a folder of the form root/class/image or root/domain/class/image, "
        "or to a folder for each client by name, and remove empty folders from it."
    )


def _images(folder: Path) -> list[str]:
    with os.scandir(folder) as entries:
        names = sorted(e.name for e in entries if e.name.lower().endswith(IMG_EXTENSIONS) and not e.name.startswith("."))
    return [str(folder / name) for name in names]


class ImageReader:
    """Decode image files.

    Args:
        channels: 1 for grey, 3 for colour.
        size: the height and width in pixels to which every image is resized; None keeps their sizes.
        white: the value of white in images of 16 bits, which are refused without it.
    """

    def __init__(self, channels: int, size: int | None, white: int | None = None) -> None:
        require(size is None or size >= 1, "data.datamodule.image_size", "1 or above, or null", size)
        require(white is None or 1 <= white <= _WHITE, "data.datamodule.white", f"1 to {_WHITE}, or null", white)
        self.channels, self.size, self.white = channels, size, white

    def read(self, path: str) -> Tensor:
        """Read one image as cameras say that it is to be shown, uint8, shape (C, H, W).

        Raises:
            OSError: if the file is not a complete image.
        """
        with Image.open(path) as file:
            image = self._in_bytes(ImageOps.exif_transpose(file)).convert("L" if self.channels == 1 else "RGB")
        if self.size is not None and image.size != (self.size, self.size):
            image = image.resize((self.size, self.size), Image.Resampling.BILINEAR)
        return torch.from_numpy(np.array(image)).view(image.height, image.width, -1).permute(2, 0, 1).contiguous()

    def _in_bytes(self, file: Image.Image) -> Image.Image:
        """Return an image of 8 bits; Pillow would clip the 16 bits of medical images at 255.

        Raises:
            ValueError: if the value of white is not known, or pixels are floating-point or brighter.
        """
        if not file.mode.startswith(("I", "F")):
            return file
        values, white = np.asarray(file), self.white
        if file.mode == "F" or white is None or values.min() < 0 or values.max() > white:
            raise ValueError(
                f"its pixels of more than 8 bits are from {values.min()} to {values.max()}, but 'data.datamodule.white' "
                f"is {white}; set it to the value of white, such as 4095 for a camera of 12 bits, or convert the image"
            )
        return Image.fromarray((values.astype(np.uint32) * 255 // white).astype(np.uint8))


def read_images(reader: ImageReader, paths: Sequence[str]) -> Tensor:
    """Return images of one size, uint8, shape (n, C, H, W).

    Raises:
        DataError: naming images that cannot be read, or of different sizes.
    """
    shape = read_each(reader.read, paths[:1])[0].shape
    images = torch.empty(len(paths), *shape, dtype=torch.uint8)

    def fits(path: str, place: int) -> bool:
        """Read one image into its place, and return whether it has the size of the others."""
        image = reader.read(path)
        if image.shape == shape:
            images[place] = image
        return bool(image.shape == shape)

    fitting = read_each(fits, paths, range(len(paths)))
    if odd := [path for path, fit in zip(paths, fitting, strict=True) if not fit]:
        raise _of_other_size(odd, shape)
    return images


def _of_other_size(odd: Sequence[str], shape: torch.Size) -> DataError:
    return DataError(
        f"The images have different sizes: {len(odd)} of them, such as {min(odd)}, do not have the {shape[2]} x {shape[1]} "
        "pixels of the first image. Set 'data.datamodule.image_size' to resize all of them."
    )


def read_each(work: Callable[..., Any], paths: Sequence[str], *beside: Iterable[Any]) -> list[Any]:
    """Return what a function returns for each image and what belongs to it; many in threads, with a progress bar.

    Raises:
        DataError: naming images that cannot be read.
    """
    failed = []

    def attempt(path: str, *own: Any) -> Any:
        """Apply the function, and record a failure."""
        try:
            return work(path, *own)
        except UNREADABLE as error:
            failed.append(f"{path} ({'not an image' if isinstance(error, UnidentifiedImageError) else error})")

    if len(paths) == 1:
        results = list(map(attempt, paths, *beside))
    else:
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            shown = {"unit": "image", "disable": len(paths) < _MANY, "leave": False}
            results = list(tqdm(pool.map(attempt, paths, *beside), "Reading images", len(paths), **shown))
    if failed:
        named = ", ".join(sorted(failed)[:_SHOWN])
        raise DataError(f"{len(failed)} of {len(paths)} images cannot be read: {named}. Fix them, or move them elsewhere.")
    return results


class ImageFolderDataModule(ImageDataModule):
    """Load images from root/class/image, root/domain/class/image (Office-31), or either under root/train and root/test.

    Images are kept in memory as one uint8 tensor if that fits ``memory_limit``; otherwise each batch is read from disk. With
    domains, :class:`~fl_lightning.DomainPartitioner` creates one client for each.

    Args:
        root: the folder. If it consists of train (or training), test (or testing) and val (or valid, validation), the server
            validates on val and tests on test, or uses for both the one that exists. Or a dictionary
            of clients' names and folders, each folder of the form class/image.
        test_share: the share of the images, in [0, 1), held out as the server's test set in the proportions of domains and
            classes, if no folder has one. With 0, no set is held out: see ``server_set`` of the FederatedDataModule.
        image_size: the height and width in pixels to which images are resized; None if all images have the same size.
        channels: 3 for colour, 1 for grey.
        memory_limit: the GiB that the images of one set may take in memory.
        classes: the names of the classes in the order of their numbers, of which folders may lack some; None for those that
            exist, sorted.
        white: the value of white in images of 16 bits: 4095 for a camera of 12 bits, 65535 for all 16. Without it they are
            refused.
        settings: those of the :class:`~fl_lightning.ImageDataModule`: batch sizes, mean and std, augmentation, num_workers.

    Raises:
        ConfigurationError: if a value is outside its range.
        DataError: if ``root`` has other folders next to train and test.
    """

    on_resume = ResumeRule(free="root num_workers memory_limit")

    def __init__(
        self,
        root: str | dict[str, str],
        test_share: float = 0.0,
        image_size: int | None = None,
        channels: Literal[1, 3] = 3,
        memory_limit: float = 4.0,
        classes: list[str | int] | None = None,
        white: int | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(**settings)
        require(0 <= test_share < 1, "data.datamodule.test_share", "at least 0 and below 1", test_share)
        require(memory_limit >= 0, "data.datamodule.memory_limit", "0 or above, in GiB", memory_limit)
        fits = self.mean is None or len(self.mean) == channels
        require(fits, "data.datamodule.mean", f"one number for each of {channels} channels", self.mean)
        self.root, self.test_share = root, test_share
        self._root = client_paths("data.datamodule.root", root)
        require(bool(self._root), "data.datamodule.root", "a folder, or a folder for each client", root)
        self.image_size, self.channels, self.memory_limit = image_size, channels, memory_limit
        self._reader = ImageReader(channels, image_size, white)
        self.classes = given_classes(classes, str)
        if not test_share and (isinstance(self._root, dict) or split_folders(self._root)[1:] == (None, None)):
            self.without_server_set()

    def load(self) -> tuple[Dataset[Any], Dataset[Any] | None]:
        """Find and read the images.

        Raises:
            DataError: if folders do not have this form, or images cannot be read.
        """
        folder, *held = (self._root, None, None) if isinstance(self._root, dict) else split_folders(self._root)
        files = find_images(folder, self._reader, self.classes)
        val, test = (None if path is None else find_images(path, self._reader, self.classes) for path in held)
        for path, other in zip(held, (val, test), strict=True):
            require_alike("The training set", files, f"'{path}'", other)
        domains = len(getattr(files, "domains_names", ()))
        if val is test is None and self.test_share:
            strata = files.targets + (files.domains * len(files.classes) if domains else 0)
            files, test = map(files.select, held_share("test_share", self.test_share, strata))
        sets: list[Any] = [None if part is None else part.in_memory(self.memory_limit * 2**30) for part in (files, val, test)]
        train, self._val, test = sets
        sizes = " + ".join(str(len(part)) for part in sets if part is not None)
        lazy = ", from disk" if isinstance(train, ImageFiles) else ""
        shown = folder if isinstance(folder, Path) else f"{len(folder)} folders"
        self.origin = f"{shown} ({sizes} images, {len(files.classes)} classes, {domains or 'no'} domains{lazy})"
        return train, test
