"""Load your own images from folders: by class, or by domain and class."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn
from torch.utils.data import Dataset

from fl_lightning.core.capabilities import ResumeRule
from fl_lightning.data.class_names import given_classes
from fl_lightning.data.client_paths import client_paths
from fl_lightning.data.image_files import WHITE, ImageFiles, ImageReader, LazyImages, find_images, read_images, split_folders
from fl_lightning.data.images import ImageDataModule
from fl_lightning.data.in_memory import held_share, named_dataset
from fl_lightning.data.schema_file import read_schema
from fl_lightning.errors import DataError, require
from fl_lightning.functional.seeding import generator


class ImageFolderDataModule(ImageDataModule):
    """Load images from root/class/image, root/domain/class/image (Office-31), or either under root/train and root/test.

    Images are kept in memory as one uint8 tensor if that fits ``memory_limit``; otherwise each batch is read from disk. With
    domains, :class:`~fl_lightning.DomainPartitioner` creates one client for each.

    Args:
        root: the folder. If it consists of train (or training), test (or testing) and val (or valid, validation), the server
            validates on val and tests on test, or uses for both the one that exists. Or a dictionary
            of clients' names and folders, each folder of the form class/image.
        test_root: a separate folder with the server's test set, with the same classes; None uses that under ``root``, if any.
        test_share: the share of the images, in [0, 1), held out as the server's test set in the proportions of domains and
            classes, if no folder has one. With 0, no set is held out: see ``server_set`` of the FederatedDataModule.
        image_size: the height and width in pixels to which images are resized; None if all images have the same size.
        channels: 3 for colour, 1 for grey.
        batch_size: the examples per training batch, B.
        eval_batch_size: the examples per evaluation batch.
        mean: the mean of each channel, for images in [0, 1]; None leaves them in [0, 1].
        std: the standard deviation of each channel.
        augmentation: a transform of training images in [0, 1], applied to each independently, from
            ``torchvision.transforms.v2`` or any module.
        memory_limit: the GiB that the images of one set may take in memory.
        num_workers: the number of processes that read images that are not in memory.
        classes: the names of the classes in the order of their numbers, of which folders may lack some; None for those that
            exist, sorted.
        white: the value of white in images of 16 bits: 4095 for a camera of 12 bits, 65535 for all 16.
        schema: the YAML or JSON file of a schema, whose target's classes replace ``classes``; its other fields do not matter.

    Attributes:
        schema: the schema; None without one.

    Raises:
        ConfigurationError: if a value is outside its range, or the schema has no classes.
        DataError: if ``test_root`` lies inside ``root``, or if ``root`` has other folders next to train and test.
    """

    on_resume = ResumeRule(free="root test_root num_workers memory_limit")

    def __init__(
        self,
        root: str | dict[str, str],
        test_root: str | None = None,
        test_share: float = 0.0,
        image_size: int | None = None,
        channels: Literal[1, 3] = 3,
        batch_size: int = 100,
        eval_batch_size: int = 1000,
        mean: list[float] | None = None,
        std: list[float] | None = None,
        augmentation: nn.Module | None = None,
        memory_limit: float = 4.0,
        num_workers: int = 0,
        classes: list[str | int] | None = None,
        white: int = WHITE,
        schema: str | None = None,
    ) -> None:
        super().__init__(batch_size, eval_batch_size, mean, std, augmentation, num_workers)
        require(0 <= test_share < 1, "data.datamodule.test_share", "at least 0 and below 1", test_share)
        require(memory_limit >= 0, "data.datamodule.memory_limit", "0 or above, in GiB", memory_limit)
        fits = mean is None or len(mean) == channels
        require(fits, "data.datamodule.mean", f"one number for each of {channels} channels", mean)
        self.root, self.test_root, self.test_share = root, test_root, test_share
        self._root = client_paths("data.datamodule.root", root)
        self.image_size = image_size
        self.channels = channels
        self.memory_limit, self._reader = memory_limit, ImageReader(channels, image_size, white)
        self.schema = None if schema is None else read_schema(schema)
        if self.schema is not None:
            require(classes is None, "data.datamodule.classes", "left out with a 'schema', which has them", classes)
            require(bool(self.schema.classes), "data.datamodule.schema", "a schema whose target has classes", schema)
        self.classes = given_classes(classes, str) if self.schema is None else self.schema.classes
        if not test_share and self._folders()[1:] == (None, None):
            self.without_server_set()

    def _folders(self) -> tuple[Path | dict[str, Path], Path | None, Path | None]:
        """Return the folders of training, validation and test images."""
        test = Path(self.test_root) if self.test_root else None
        root = self._root
        require(bool(root), "data.datamodule.root", "a folder, or a folder for each client", self.root)
        if test is None:
            return split_folders(root) if isinstance(root, Path) else (root, None, None)
        if any(one == test or one in test.parents for one in (root.values() if isinstance(root, dict) else [root])):
            raise DataError(
                f"'data.datamodule.test_root' is {test}, which is inside 'root' {root}, so the federation would train on its "
                "images. Set 'root' to the folder of the training images alone."
            )
        return root, None, test

    def compare_with_schema(self) -> list[str]:
        """Return a sentence about the number of training images of each class of the schema, for those who own them.

        Raises:
            DataError: if folders do not have the form, or other classes.
        """
        if self.schema is None:
            return []
        files = find_images(self._folders()[0], self.classes)
        counts = torch.bincount(files.targets, minlength=len(files.classes)).tolist()
        pairs = [f"{count} of '{name}'" for name, count in zip(files.classes, counts, strict=True)]
        return [f"'{self.root}' has {len(files.paths)} images: {', '.join(pairs)}."]

    def load(self) -> tuple[Dataset[Any], Dataset[Any] | None]:
        """Find and read the images.

        Raises:
            DataError: if folders do not have this form, or images cannot be read.
        """
        folder, *held = self._folders()
        files = find_images(folder, self.classes)
        others = [None if path is None else self._like(files, path) for path in held]
        if others == [None, None] and self.test_share:
            strata = files.domains * len(files.classes) + files.targets
            draw = generator(0, "test share")
            files, others[1] = map(files.select, held_share("test_share", self.test_share, strata, draw))
        train = self._read(files)
        self._val, test = (None if part is None else self._read(part) for part in others)
        sizes = " + ".join(str(len(part)) for part in (train, self._val, test) if part is not None)  # type: ignore[arg-type]
        lazy = ", from disk" if isinstance(train, LazyImages) else ""
        domains = len(files.domains_names) or "no"
        shown = folder if isinstance(folder, Path) else f"{len(folder)} folders"
        self.origin = f"{shown} ({sizes} images, {len(files.classes)} classes, {domains} domains{lazy})"
        return train, test

    def _like(self, files: ImageFiles, other: Path) -> ImageFiles:
        """Return the images of another folder, if it has the same classes."""
        found = find_images(other, self.classes)
        if found.classes != files.classes:
            raise DataError(
                f"'{other}' has the classes {', '.join(found.classes)}, but the training images have "
                f"{', '.join(files.classes)}. Give both the same classes, or name all of them in 'data.datamodule.classes'."
            )
        return found

    def _read(self, files: ImageFiles) -> Dataset[Any]:
        images = read_images(self._reader, files.paths, self.memory_limit * 2**30)
        return LazyImages(files, self._reader) if images is None else named_dataset([images, files.targets], **files.columns)
