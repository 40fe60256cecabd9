"""A user's own images of cells with their dots: the layouts, what is read, and what a user is told."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch
from command_line import ADAFED, ROOT
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from scipy import ndimage

from fl_lightning import CellFolderDataModule, ConfigurationError, DataError, DomainPartitioner, FederatedDataModule
from fl_lightning.functional import density_image


def picture(path: Path, width: int = 20, height: int = 16, seed: int = 0, channels: int = 1) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, channels), dtype=np.uint8)
    Image.fromarray(pixels.squeeze(2) if channels == 1 else pixels).save(path)


def dots(path: Path, at: list[tuple[int, int]], width: int = 20, height: int = 16, mode: str = "RGB") -> None:
    image = Image.new(mode, (width, height))
    if mode == "P":
        image.putpalette([0, 0, 0, 0, 90, 0])
    for place in at:
        image.putpixel(place, {"RGB": (255, 0, 0), "I;16": 1}.get(mode, 1))
    image.save(path)


def set_up(root: Path, **settings) -> CellFolderDataModule:
    data = CellFolderDataModule(str(root), **{"test_share": 0.0, **settings})
    data.setup("fit")
    return data


def counts(dataset, scale: float = 100.0) -> list[float]:
    return [round(float(x), 3) for x in dataset.tensors[1].sum(dim=(1, 2, 3)) / scale]


@pytest.fixture
def tables(tmp_path):
    """Four images with 2, 0, 1 and 0 cells."""
    root = tmp_path / "own"
    for k, (name, text) in enumerate(
        (("a.png", "x,y\n3,4\n10.5,15.9\n"), ("b.jpg", ""), ("c.tif", "19.5 , 0\n"), ("d.jpeg", "X, Y\n"))
    ):
        picture(root / name, seed=k)
        (root / name).with_suffix(".csv").write_text(text)
    return root


@pytest.fixture
def vgg(tmp_path):
    """Two clients with 3 and 5 images; image k of a client has k cells."""
    for client, size in (("oxford", 3), ("delft", 5)):
        for k in range(size):
            picture(tmp_path / "vgg" / client / f"{k:03d}cell.png", seed=k, channels=3)
            dots(tmp_path / "vgg" / client / f"{k:03d}dots.png", [(4 * i, 3 * i) for i in range(k)])
    return tmp_path / "vgg"


# ------------------------------------------------------------------ what is read


def test_images_beside_tables(tables):
    data = set_up(tables, density_sigma=1.5, density_scale=10.0)
    images, densities = data._train.tensors
    read = np.stack([np.asarray(Image.open(tables / name)) for name in ("a.png", "b.jpg", "c.tif", "d.jpeg")])
    np.testing.assert_array_equal(images[:, 0].numpy(), read)
    assert densities.dtype == torch.float32
    assert counts(data._train, 10) == [2, 0, 1, 0]
    rows, columns = np.mgrid[:16, :20]
    wanted = 0
    for x, y in ((3, 4), (10.5, 15.9)):
        bell = np.exp(-((columns - x) ** 2 + (rows - y) ** 2) / (2 * 1.5**2))
        wanted = wanted + 10 * bell / bell.sum()
    np.testing.assert_allclose(densities[0, 0].numpy(), wanted, atol=1e-5)
    assert data.origin == f"{tables} (4 images, no clients)"
    assert not hasattr(data._train, "domains")


@pytest.mark.parametrize(
    ("text", "places"),
    [
        ("\ufeffx,y\n1,2\n", [(1, 2)]),
        ("Name,Y,X\n1,2,3\n\n4,5,6\n", [(3, 2), (6, 5)]),
        ("1,2\r\n3,4\r\n", [(1, 2), (3, 4)]),
        ("\n , \n", []),
        ("0,0\n19.99,15.99", [(0, 0), (19.99, 15.99)]),
    ],
)
def test_tables_with_and_without_a_first_line(text, places, tables):
    (tables / "a.csv").write_text(text, encoding="utf-8")
    data = set_up(tables)
    wanted = density_image(torch.tensor(places, dtype=torch.float64).view(-1, 2), 16, 20, 2.0) * 100
    torch.testing.assert_close(data._train.tensors[1][0, 0], wanted)


@pytest.mark.parametrize("mode", ["RGB", "L", "1", "P", "I;16"])
def test_images_of_dots_of_any_kind(tmp_path, mode):
    """Groups of pixels that touch are one cell, as scipy labels them; 1 of 65,535 is not black."""
    places = [(2, 3), (3, 4), (10, 10), (19, 15), (11, 10), (18, 0)]
    picture(tmp_path / "own" / "1cell.png")
    dots(tmp_path / "own" / "1dots.png", places, mode=mode)
    mask = np.zeros((16, 20), dtype=bool)
    mask[tuple(zip(*[(y, x) for x, y in places], strict=True))] = True
    labels, count = ndimage.label(mask, np.ones((3, 3)))
    centres = np.array(ndimage.center_of_mass(mask, labels, range(1, count + 1)))[:, ::-1].copy()
    data = set_up(tmp_path / "own")
    assert counts(data._train) == [count] == [4]
    torch.testing.assert_close(data._train.tensors[1][0, 0], density_image(torch.from_numpy(centres), 16, 20, 2.0) * 100)


def test_a_folder_for_each_client(vgg):
    base = set_up(vgg, channels=3)
    assert base._train.tensors[0].shape == (8, 3, 16, 20)
    assert base._train.domains_names == ("delft", "oxford")
    data = FederatedDataModule(base, DomainPartitioner())
    data.setup("fit")
    assert [data.client_name(k) for k in range(2)] == ["delft", "oxford"]
    held = [[counts(base._train)[i] for i in data.indices[k].tolist()] for k in range(2)]
    assert held == [[0, 1, 2, 3, 4], [0, 1, 2]]
    (vgg / "readme.csv").write_text("not of an image")
    assert len(set_up(vgg)._train) == 8


def test_a_share_is_held_out_in_the_proportions_of_the_clients(vgg):
    data = set_up(vgg, test_share=0.5)
    assert (len(data._train), len(data._test)) == (4, 4)
    assert sorted(counts(data._train) + counts(data._test)) == [0, 0, 1, 1, 2, 2, 3, 4]
    assert sorted(torch.bincount(data._test.domains).tolist()) in ([1, 3], [2, 2])
    assert counts(data._test) == counts(set_up(vgg, test_share=0.5)._test)
    assert data.origin == f"{vgg} (4 + 4 images, 2 clients)"
    assert len(data.val_dataloader()) == 1


def test_folders_for_training_validation_and_test(vgg, tables, tmp_path):
    root = tmp_path / "split"
    root.mkdir()
    vgg.rename(root / "train")
    tables.rename(root / "Testing")
    data = set_up(root, test_share=0.2)
    assert (len(data._train), len(data._test)) == (8, 4)
    assert len(data._train.domains) == 8
    picture(root / "val" / "z.png")
    (root / "val" / "z.csv").write_text("1,1\n2,2\n3,3")
    (batch,) = set_up(root).val_dataloader()
    assert round(float(batch[1].sum()) / 100, 3) == 3
    other = set_up(root / "train", test_root=str(root / "val"))
    assert counts(other._test) == [3]


def test_without_a_test_set_there_is_none(tables):
    data = FederatedDataModule(CellFolderDataModule(str(tables), test_share=0.0), DomainPartitioner())
    assert not data.has_validation_set


@given(
    width=st.integers(8, 40),
    height=st.integers(8, 40),
    size=st.integers(8, 40),
    column=st.floats(0.2, 0.8),
    row=st.floats(0.2, 0.8),
)
def test_dots_are_resized_with_their_image(width, height, size, column, row, tmp_path_factory):
    """A bright pixel's edges keep their places: its centre of light after Pillow's resizing lies where the dot does."""
    root = tmp_path_factory.mktemp("resized")
    x, y = int(column * width), int(row * height)
    image = Image.new("L", (width, height))
    image.putpixel((x, y), 255)
    image.save(root / "a.png")
    (root / "a.csv").write_text(f"{x},{y}")
    data = set_up(root, image_size=size, density_sigma=0.8)
    pixels, density = (tensor[0, 0].double().numpy() for tensor in data._train.tensors)
    assert pixels.shape == density.shape == (size, size)
    assert density.sum() == pytest.approx(100, rel=1e-5)
    dot = np.array([(y + 0.5) * size / height - 0.5, (x + 0.5) * size / width - 0.5])
    if pixels.sum() > 0 and (dot > 4).all() and (dot < size - 5).all():
        np.testing.assert_allclose(ndimage.center_of_mass(density), dot, atol=0.01)
        np.testing.assert_allclose(ndimage.center_of_mass(pixels), dot, atol=0.2 * max(1, size / width, size / height))


def test_images_of_several_sizes_need_one(tables):
    picture(tables / "e.png", 30, 10)
    (tables / "e.csv").write_text("29,9")
    with pytest.raises(DataError, match=r"a.png has 20 x 16 pixels, but .*e.png has 30 x 10.* 'data.datamodule.image_size'"):
        set_up(tables)
    data = set_up(tables, image_size=12)
    assert data._train.tensors[0].shape == (5, 1, 12, 12)
    assert counts(data._train) == [2, 0, 1, 0, 1]


# ------------------------------------------------------------------ what a user is told


@pytest.mark.parametrize("line", ["20,3", "-0.6,3", "3,16", "3,-1", "1e9,2"])
def test_a_dot_outside_of_its_image(line, tables):
    (tables / "a.csv").write_text(f"x,y\n1,1\n{line}\n")
    x, y = line.split(",")
    place = rf"a.csv, line 3: the dot at x {float(x):g}, y {y} is outside .* 20 x 16 pixels. .*'data.datamodule.root'"
    with pytest.raises(DataError, match=place.replace("+", r"\+")):
        set_up(tables)


@pytest.mark.parametrize(
    ("text", "number", "line"),
    [
        ("x,y\n1,two\n", 2, "1,two"),
        ("1,2\n\n3,nan\n", 3, "3,nan"),
        ("1,2,3\n", 1, "1,2,3"),
        ("1;2\n", 1, "1;2"),
        ("column,row\n1,2\n", 1, "column,row"),
        ("x,y\n7\n", 2, "7"),
    ],
)
def test_a_table_that_is_not_numbers(text, number, line, tables):
    (tables / "a.csv").write_text(text)
    with pytest.raises(DataError, match=rf"a.csv, line {number}, must be two numbers, .* but is '{line}'. .*datamodule.root'"):
        set_up(tables)


def test_a_table_that_is_no_text(tables):
    (tables / "a.csv").write_bytes(b"\xff\xfe\x00\x81")
    with pytest.raises(DataError, match=r"Cannot read .*a.csv .* under 'data.datamodule.root'"):
        set_up(tables)


def test_images_of_dots_that_do_not_fit(vgg):
    path = vgg / "delft" / "001dots.png"
    dots(path, [(1, 1)], width=16, height=20)
    with pytest.raises(DataError, match=r"001dots.png has 16 x 20 pixels, but its image has 20 x 16. .*'data.datamodule.root'"):
        set_up(vgg)
    Image.new("L", (20, 16), 255).save(path)
    with pytest.raises(DataError, match=r"001dots.png has more coloured than black pixels.*root', make its background black"):
        set_up(vgg)
    path.write_text("no picture")
    with pytest.raises(DataError, match=r"Cannot read .*001dots.png .*'data.datamodule.root'"):
        set_up(vgg)


@pytest.mark.parametrize(
    ("gone", "message"),
    [
        ("own/a.csv", r"own/a.png' has no annotation next to it. Each image under 'data.datamodule.root' needs one"),
        ("own/a.png", r"own/a.csv' is an annotation without an image"),
        ("vgg/delft/002dots.png", r"delft/002cell.png' has no annotation next to it"),
        ("vgg/delft/002cell.png", r"delft/002dots.png' is an annotation without an image"),
    ],
)
def test_images_and_annotations_come_in_pairs(gone, message, tables, vgg, tmp_path):
    (tmp_path / gone).unlink()
    with pytest.raises(DataError, match=message):
        set_up(tmp_path / gone.split("/")[0])


def test_pairs_that_are_not_clear(tables, vgg):
    picture(tables / "a.tif")
    with pytest.raises(DataError, match="own/a' has several images"):
        set_up(tables)
    (vgg / "oxford" / "000cell.csv").write_text("1,1")
    with pytest.raises(DataError, match=r"000cell.png' has two annotations, .csv and dots"):
        set_up(vgg)
    (vgg / "oxford" / "000cell.csv").unlink()
    for k in (0, 1, 2):
        (vgg / "oxford" / f"00{k}dots.png").unlink()
    with pytest.raises(DataError, match=r"000cell.png' has no annotation next to it \(and 2 more like it\)"):
        set_up(vgg)


def test_an_image_whose_name_ends_in_dots(tables):
    picture(tables / "polkadots.png")
    (tables / "polkadots.csv").write_text("1,1")
    assert len(set_up(tables)._train) == 5


def test_folders_that_are_not_of_the_form(tables, vgg, tmp_path):
    with pytest.raises(DataError, match=r"nowhere' is not a folder. Set 'data.datamodule.root'"):
        set_up(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"empty' contains no images. Set 'data.datamodule.root'"):
        set_up(tmp_path / "empty")
    (vgg / "brno").mkdir()
    with pytest.raises(DataError, match=r"brno' contains no images. Add some .*'data.datamodule.root'"):
        set_up(vgg)
    (tables / "more").mkdir()
    with pytest.raises(DataError, match=r"own' contains images as well as the folder 'more', .* Set 'data.datamodule.root'"):
        set_up(tables)
    with pytest.raises(DataError, match=r"'data.datamodule.test_root' is .* inside 'root'"):
        set_up(vgg, test_root=str(vgg / "delft"))


def test_an_image_that_is_not_one(tables):
    (tables / "b.jpg").write_text("no picture")
    with pytest.raises(DataError, match=r"Cannot read .*b.jpg \(not an image\). Fix or remove .*'data.datamodule.root'"):
        set_up(tables)
    (tables / "c.tif").write_bytes((tables / "c.tif").read_bytes()[:50])
    with pytest.raises(DataError, match=r"b.jpg \(not an image\) and 1 more\. Fix"):
        set_up(tables)


def test_no_cells_to_learn_from(tables):
    for name in "abcd":
        (tables / f"{name}.csv").write_text("")
    with pytest.raises(DataError, match=r"count is zero everywhere: no training image of .*own' .*'data.datamodule.root'"):
        set_up(tables)


def test_a_share_that_leaves_nothing(tables):
    with pytest.raises(
        DataError, match=r"'data.datamodule.test_share' is 0.99, which leaves none of the 4 images to train on. Lower it"
    ):
        set_up(tables, test_share=0.99)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"density_sigma": 0}, "density_sigma' must be above 0 pixels"),
        ({"density_scale": -1}, "density_scale' must be above 0"),
        ({"test_share": 1}, "test_share' must be at least 0 and below 1"),
        ({"image_size": 0}, "image_size' must be 1 or above, or null"),
        ({"eval_batch_size": 0}, "eval_batch_size' must be 1 or above"),
    ],
)
def test_settings(wrong, message):
    with pytest.raises(ConfigurationError, match="'data.datamodule." + message):
        CellFolderDataModule("x", **wrong)


# ------------------------------------------------------------------ the simulator's folders


def test_simulated_cells_in_folders(tmp_path, fl, capsys):
    spec = importlib.util.spec_from_file_location("simulate_cells", ROOT / "tools" / "simulate_cells.py")
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    tool.main(["--out", str(tmp_path / "cells"), "--images", "3", "--image_size", "32"])
    said = capsys.readouterr().out.splitlines()
    data = set_up(tmp_path / "cells")
    assert data._train.tensors[0].shape == (15, 1, 32, 32)
    of_client = torch.zeros(5).index_add_(0, data._train.domains, torch.tensor(counts(data._train)))
    for name, found in zip(data._train.domains_names, of_client.tolist(), strict=True):
        (line,) = [line for line in said if f"{name}: " in line]
        pixels = [np.asarray(Image.open(path)) for path in (tmp_path / "cells" / name).glob("*dots.png")]
        labelled = sum(ndimage.label(image, np.ones((3, 3)))[1] for image in pixels)
        every, touching = (int(word) for word in line.replace(",", "").split() if word.isdigit() and word != "3")
        assert round(found) == labelled == every - touching
    overrides = ["--data.datamodule", "CellFolderDataModule", "--data.datamodule.root", "cells"]
    status, text = fl("partition", "--config", ADAFED, *overrides, "--data.partitioner", "DomainPartitioner")
    assert status == 0, text
    assert "5 clients, 12 training examples" in text
