"""Cells: folders, files and settings that cannot be used."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from refusing import Refusal
from small_images import cells_beside_tables, cells_of_two_clients, picture

from fl_lightning import CellFolderDataModule, DataError, SimulatedCellsDataModule, UNet
from fl_lightning.cells import CellSite

Change = Callable[[Path], Any]


def told(call: Callable[[], Any], words: str) -> Refusal:
    return Refusal(call, words, DataError)


def cells(change: Change, write: Callable[[Path], Path] = cells_beside_tables, **settings: Any) -> Callable[[], Any]:
    """Return a call that reads a folder of cells after a change of it."""

    def call() -> None:
        root = write(Path("own"))
        change(root)
        CellFolderDataModule(**{"root": str(root), "test_share": 0.0, **settings}).setup("fit")

    return call


def client_cells(change: Change, **settings: Any) -> Callable[[], Any]:
    return cells(change, cells_of_two_clients, **settings)


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
            ("x,y\n1,two\n", 2, "1,two"),
            ("1,2\n\n3,nan\n", 3, "3,nan"),
            ("1,2,3\n", 1, "1,2,3"),
            ("column,row\n1,2\n", 1, "column,row"),
            ("x,y\n7\n", 2, "7"),
        )
    ),
    told(cells(lambda root: (root / "a.csv").write_bytes(b"\xff\xfe\x00\x81")), "Cannot read ... under 'data.datamodule.root'"),
    told(cells(without("a.csv")), "own/a.png' has no annotation next to it. Each image under 'data.datamodule.root' needs one"),
    told(cells(without("a.png")), "own/a.csv' is an annotation without an image"),
    told(client_cells(without("delft/002.csv")), "delft/002.png' has no annotation next to it"),
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
    *(Refusal(lambda wrong=wrong: CellFolderDataModule("x", **wrong), f"'data.datamodule.{words}") for wrong, words in ()),
]


def simulated(**settings: Any) -> Callable[[], Any]:
    data = {"image_size": 24, "test_images": 5, **settings}
    return lambda: SimulatedCellsDataModule(**data).setup("fit")


SIMULATED_CELLS = [
    told(simulated(sites={"a": CellSite(images=2, cells=(0, 0))}), "count is zero everywhere: ... Set 'cells' of a site"),
    told(simulated(sites={"a": CellSite(images=2, missed=1.0)}), "count is zero everywhere: ... Set 'cells' of a site"),
    *(
        Refusal(lambda wrong=wrong: CellSite(**wrong), f"'data.datamodule.sites.*.{words}")
        for wrong, words in (
            ({"blur": float("nan")}, "blur' must be 0 or above"),
            ({"read_noise": float("inf")}, "read_noise' must be 0 or above"),
        )
    ),
    *(
        Refusal(simulated(**wrong), f"'data.datamodule.{words}")
        for wrong, words in (
            ({"sites": {}}, "sites' must be one site or more, or null"),
            ({"image_size": 7}, "image_size' must be 8 or above"),
            ({"test_images": 0}, "test_images' must be 1 or above"),
            ({"density_sigma": 0}, "density_sigma' must be above 0 pixels"),
            ({"density_scale": 0}, "density_scale' must be above 0"),
            ({"batch_size": 0}, "batch_size' must be 1 or above"),
        )
    ),
    Refusal(lambda: UNet()(torch.rand(1, 1, 32, 30)), "depth' 2 ... multiples of 4, but these have 30 x 32 pixels. Set"),
    *(
        Refusal(lambda name=name: UNet(**{name: 0}), f"'model.network.{name}' must be 1 or above, but is 0")
        for name in ("channels", "outputs", "width", "depth")
    ),
]
REFUSALS = [*CELL_FOLDERS, *SIMULATED_CELLS]
