"""Folders of images and of cells."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from federations import trainer
from refusing import Refusal, later, told
from small_images import by_class, by_domain, cells_beside_tables, cells_of_two_clients, halved, paint, picture

import fl_lightning as fl
from fl_lightning import CellFolderDataModule, SimulatedCellsDataModule, UNet
from fl_lightning.cells import CellSite

# ------ Cells


Change = Callable[[Path], Any]


@later
def cells(change: Change, write: Callable[[Path], Path] = cells_beside_tables, **settings: Any) -> None:
    """Return a call that reads a folder of cells after a change of it."""
    root = write(Path("own"))
    change(root)
    CellFolderDataModule(**{"root": str(root), "test_share": 0.0, **settings}).setup("fit")


def client_cells(change: Change) -> Callable[[], Any]:
    return cells(change, cells_of_two_clients)


def cell_table(text: str) -> Callable[[], Any]:
    return cells(lambda root: (root / "a.csv").write_text(text))


def without(name: str) -> Change:
    return lambda root: (root / name).unlink()


def without_three(root: Path) -> None:
    for k in range(3):
        (root / "oxford" / f"00{k}.csv").unlink()


def of_two_sizes(root: Path) -> None:
    picture(root / "e.png", 30, 10)
    (root / "e.csv").write_text("29,9")


def two_broken(root: Path) -> None:
    (root / "b.jpg").write_text("no picture")
    (root / "c.tif").write_bytes((root / "c.tif").read_bytes()[:50])


def emptied(root: Path) -> None:
    for name in "abcd":
        (root / f"{name}.csv").write_text("")


CELL_FOLDERS = [
    *(
        told(cell_table(f"x,y\n1,1\n{line}\n"), f"a.csv, line 3: the dot at {place} is outside ... 20 x 16 pixels. ... .root'")
        for line, place in (("20,3", "x 20, y 3"), ("-0.6,3", "x -0.6, y 3"), ("3,16", "x 3, y 16"), ("3,-1", "x 3, y -1"))
    ),
    *(
        told(cell_table(text), f"a.csv, line {number}, must be two numbers, ... but is '{line}'. ... 'data.datamodule.root'")
        for text, number, line in (
            ("1,2\n\n3,nan\n", 3, "3,nan"),
            ("1,2,3\n", 1, "1,2,3"),
            ("x,y\n7\n", 2, "7"),
        )
    ),
    told(cells(lambda root: (root / "a.csv").write_bytes(b"\xff\xfe\x00\x81")), "Cannot read ... under 'data.datamodule.root'"),
    told(cells(without("a.csv")), "own/a.png' has no annotation next to it. Each image under 'data.datamodule.root' needs one"),
    told(cells(without("a.png")), "own/a.csv' is an annotation without an image"),
    told(client_cells(without_three), "000.png' has no annotation next to it (and 2 more like it)"),
    told(cells(lambda root: picture(root / "a.tif")), "own/a' has several images"),
    told(cells(of_two_sizes), "1 of them, such as ... e.png, do not have the 20 x 16 pixels ... 'data.datamodule.image_size'"),
    told(lambda: CellFolderDataModule("nowhere").setup("fit"), "nowhere' is not a folder. Add some ... 'data.datamodule.root'"),
    told(cells(Path.mkdir, Path), "own' contains no images. Add some ... 'data.datamodule.root'"),
    told(client_cells(lambda root: (root / "brno").mkdir()), "brno' contains no images. Add some ... 'data.datamodule.root'"),
    told(cells(lambda root: (root / "more").mkdir()), "own' contains images as well as the folder ... 'data.datamodule.root'"),
    told(cells(two_broken), "2 of 4 images cannot be read: ... b.jpg (not an image), ... c.tif ( ... Fix"),
    told(cells(emptied), "count is zero everywhere: no training image of ... own' ... 'data.datamodule.root'"),
    told(cells(Path, test_share=0.99), "'data.datamodule.test_share' is 0.99, which leaves ... 4 images to train on. Lower it"),
]


SIMULATED_CELLS = [
    told(lambda: SimulatedCellsDataModule({"a": CellSite(2, (0, 0))}).setup("fit"), "zero everywhere: ... Set 'cells' of"),
    Refusal(lambda: SimulatedCellsDataModule({}), "'data.datamodule.sites' must be one site or more, or null"),
    Refusal(lambda: UNet()(torch.rand(1, 1, 32, 30)), "depth' 2 ... multiples of 4, but these have 30 x 32 pixels. Set"),
]


# ------ Images


@later
def folder(change: Change, write: Callable[[Path], Path] = by_class, **settings: Any) -> None:
    """Return a call that reads all training images of a folder after a change of it."""
    change(write(Path("own")))
    data = fl.ImageFolderDataModule(**{"root": "own", **settings})
    data.setup("fit")
    list(data.train_dataloader())


def painted(*names: str, count: int = 2, **settings: Any) -> Callable[[], Any]:
    return folder(lambda root: [paint(root / name, count) for name in names], Path, **settings)


def nothing(root: Path) -> None:
    Path("none/cat").mkdir(parents=True)


@later
def fitted(network: fl.LeNet, num_classes: int) -> None:
    own = fl.ImageFolderDataModule(by_class(Path("own")), test_share=0.2, batch_size=5)
    task = fl.ClassificationTask(network, num_classes)
    trainer(1, fl.FederatedOrchestrator()).fit(task, fl.FederatedDataModule(own, fl.IIDPartitioner(2)))


IMAGE = [
    told(folder(lambda root: paint(root / "gnu", 2), classes=["emu", "dog", "cat"]), "a folder of the class 'gnu', which"),
    Refusal(lambda: fl.ImageFolderDataModule("x", schema="schema.yaml"), "'schema' is now 'classes', a list of names"),
    Refusal(folder(Path, root={}), "'data.datamodule.root' must be a folder, or a folder f"),
    told(painted("test/cat", "test/dog", "train/cat", "train/ant"), "training set has the classes ant, cat, but 'own/test'"),
    Refusal(lambda: fl.ImageFolderDataModule("x", test_root="y"), "'test_root' is now the folder 'test' in 'root', beside"),
    told(painted("train/cat", "train/dog", "test/cat", "test/dog", "unlabelled/cat"), "contains unlabelled next to 'train',"),
    told(folder(halved, memory_limit=0.0), "1 of 1 images cannot be read: ... emu/1.png ... Fix them, or move them elsewhere"),
    told(lambda: fl.ImageFolderDataModule("nowhere").setup("fit"), "is not a folder. Set 'data.datamodule.root'"),
    told(folder(Path.mkdir, Path), "own' contains no folders"),
    told(painted("cat"), "own' contains the single class 'cat'"),
    told(folder(lambda root: (root / "ant").mkdir()), "ant' contains no images (.jpg"),
    told(folder(nothing, root={"a": "none", "b": "own"}), "none' contains no images (.jpg ... 'data.datamodule.root'"),
    told(folder(lambda root: (root / "webcam").mkdir(), by_domain), "own/amazon' contains no images ... remove empty folders"),
    told(painted("cat", "dog", count=1, test_share=0.99), "'data.datamodule.test_share' is 0.99, ... the 2 images to train on"),
    *(
        Refusal(lambda wrong=wrong: fl.ImageFolderDataModule("x", **wrong), f"'data.datamodule.{words}")
        for wrong, words in (
            ({"mean": [0.5]}, "std' must be above 0, with one value for each value of 'mean'"),
            ({"mean": [0.5], "std": [0.5]}, "mean' must be one number for each of 3 channels"),
            ({"mean": [127.0], "std": [0.5]}, "mean' must be between 0 and 1 for each channel, since images are in [0, 1]"),
            ({"mean": [0.5], "std": [50.0]}, "std' must be between 0 and 1 for each channel ... by 255), but is [50.0]"),
        )
    ),
    Refusal(fitted(fl.LeNet(1, 16, 3), 3), "LeNet cannot take inputs of shape ( ... , 3, 16, 16): ... Change 'model.network'"),
    Refusal(fitted(fl.LeNet(3, 16, 4), 3), "LeNet returns outputs of shape ( ... , 4) for ... inputs, but the task has 3"),
]


REFUSALS = [*CELL_FOLDERS, *SIMULATED_CELLS, *IMAGE]
