"""Images: folders, files and settings that cannot be used."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from federations import trainer
from refusing import Refusal
from small_images import by_class, by_domain, halved, paint

import fl_lightning as fl

Change = Callable[[Path], Any]


def told(call: Callable[[], Any], words: str) -> Refusal:
    return Refusal(call, words, fl.DataError)


def folder(change: Change, write: Callable[[Path], Path] = by_class, **settings: Any) -> Callable[[], Any]:
    """Return a call that reads all training images of a folder after a change of it."""

    def call() -> None:
        change(write(Path("own")))
        data = fl.ImageFolderDataModule(**{"root": "own", **settings})
        data.setup("fit")
        list(data.train_dataloader())

    return call


def painted(*names: str, count: int = 2, **settings: Any) -> Callable[[], Any]:
    return folder(lambda root: [paint(root / name, count) for name in names], Path, **settings)


def nothing_in(*names: str) -> Change:
    return lambda root: [(root / name).mkdir(parents=True) for name in names]


def broken(root: Path, *names: str) -> None:
    paint(root / "cat", 2)
    for name in names:
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text("")


def fitted(network: fl.LeNet, num_classes: int) -> Callable[[], Any]:
    def call() -> None:
        own = fl.ImageFolderDataModule(by_class(Path("own")), test_share=0.2, batch_size=5)
        task = fl.ClassificationTask(network, num_classes)
        trainer(1, fl.FederatedOrchestrator()).fit(task, fl.FederatedDataModule(own, fl.IIDPartitioner(2)))

    return call


REFUSALS = [
    told(
        folder(lambda root: paint(root / "gnu", 2), classes=["emu", "dog", "cat", "fox"]),
        "has a folder of the class 'gnu', which is not one of 'data.datamodule.classes': emu, ",
    ),
    Refusal(lambda: fl.ImageFolderDataModule("x", schema="schema.yaml"), "'schema' is now 'classes', a list of names"),
    told(folder(Path, root={"a": "no"}), "'no' is not a folder"),
    Refusal(folder(Path, root={}), "'data.datamodule.root' must be a folder, or a folder f"),
    told(
        lambda: fl.FederatedDataModule(fl.ImageFolderDataModule(by_class(Path("own"))), fl.DomainPartitioner()).setup("fit"),
        "has no column 'domains': ... Put each client's files ... partitioner",
    ),
    told(
        folder(lambda root: [paint(root / name, 1) for name in ("test/cat", "test/dog", "train/cat", "train/ant")], Path),
        "The training set has the classes ant, cat, but 'own/test' has cat, dog ... Give both the same classes",
    ),
    told(
        folder(lambda root: [paint(root / part / name, 1) for part in ("a", "b") for name in "cd"], Path, test_root="own/b"),
        "'data.datamodule.test_root' is own/b, which is inside 'root' own, so the federation would train on",
    ),
    told(painted("train/cat", "train/dog", "test/cat", "test/dog", "unlabelled/cat"), "contains unlabelled next to 'train',"),
    told(folder(halved, memory_limit=0.0), "1 of 1 images cannot be read: ... emu/1.png ... Fix them, or move them elsewhere"),
    told(lambda: fl.ImageFolderDataModule("nowhere").setup("fit"), "is not a folder. Set 'data.datamodule.root'"),
    told(folder(Path.mkdir, Path), "own' contains no folders"),
    told(painted("cat"), "own' contains the single class 'cat'"),
    told(folder(lambda root: (root / "ant").mkdir()), "ant' contains no images (.jpg"),
    told(
        folder(lambda root: Path("none/cat").mkdir(parents=True), root={"a": "none", "b": "own"}),
        "none' contains no images (.jpg ... Set 'data.datamodule.root' ... remove empty folders from it",
    ),
    told(folder(lambda root: (root / "webcam").mkdir(), by_domain), "own/amazon' contains no images ... remove empty folders"),
    told(painted("a/b/cat", "a/b/dog", "a/c/cat"), "own/a/b' contains no images ... of the form root/class/image or"),
    told(painted("cat", "dog", count=1, test_share=0.99), "'data.datamodule.test_share' is 0.99, ... the 2 images to train on"),
    told(
        folder(lambda root: broken(root, "dog/0.png", "cat/0.png", "cat/1.png"), Path),
        "1 of 1 images cannot be read: ... cat/0.png (not an image)",
    ),
    *(
        Refusal(lambda wrong=wrong: fl.ImageFolderDataModule("x", **wrong), f"'data.datamodule.{words}")
        for wrong, words in (
            ({"mean": [0.5]}, "std' must be above 0, with one value for each value of 'mean'"),
            ({"mean": [0.5], "std": [0.5]}, "mean' must be one number for each of 3 channels"),
            ({"mean": [0.5] * 3, "std": [0.5, 0.5, 0]}, "std' must be above 0"),
            ({"mean": [127.0], "std": [0.5]}, "mean' must be between 0 and 1 for each channel, since images are in [0, 1]"),
            ({"mean": [0.5], "std": [50.0]}, "std' must be between 0 and 1 for each channel ... by 255), but is [50.0]"),
        )
    ),
    Refusal(fitted(fl.LeNet(1, 16, 3), 3), "LeNet cannot take inputs of shape ( ... , 3, 16, 16): ... Change 'model.network'"),
    Refusal(fitted(fl.LeNet(3, 16, 4), 3), "LeNet returns outputs of shape ( ... , 4) for ... inputs, but the task has 3"),
]
