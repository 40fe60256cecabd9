"""A user's own images of cells with their dots: the layouts, what is read, and what a user is told."""

from pathlib import Path

import numpy as np
import pytest
import torch
from command_line import ROOT
from federations import ready
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from scipy import ndimage
from small_images import cells_beside_tables, cells_of_two_clients, picture

from fl_lightning import CellFolderDataModule, DataError, DomainPartitioner, FederatedDataModule
from fl_lightning.cells.drawing import density_image


def set_up(root: Path, **settings) -> CellFolderDataModule:
    return ready(CellFolderDataModule(str(root), **{"test_share": 0.0, **settings}))


def counts(dataset, scale: float = 100.0) -> list[float]:
    return [round(float(x), 3) for x in dataset.tensors[1].sum(dim=(1, 2, 3)) / scale]


@pytest.fixture
def tables(tmp_path):
    return cells_beside_tables(tmp_path / "own")


@pytest.fixture
def clients(tmp_path):
    return cells_of_two_clients(tmp_path / "clients")


def test_images_beside_tables(tables):
    data = set_up(tables, density_sigma=1.5, density_scale=10.0)
    images, densities = data._train.tensors
    read = np.stack([np.asarray(Image.open(tables / name)) for name in ("a.png", "b.jpg", "c.tif", "d.jpeg")])
    np.testing.assert_array_equal(images[:, 0].numpy(), read)
    assert densities.dtype == torch.float32
    assert counts(data._train, 10) == [2, 0, 1, 0]
    wanted = 10 * density_image(torch.tensor([[3, 4], [10.5, 15.9]]).double(), 16, 20, 1.5)
    torch.testing.assert_close(densities[0, 0], wanted)
    assert data.origin == f"{tables} (4 images, no clients)"
    assert not hasattr(data._train, "domains")
    assert not FederatedDataModule(data, DomainPartitioner()).has_validation_set


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


def test_images_of_dots_become_tables_as_the_page_says(tmp_path, monkeypatch):
    """The VGG layout: groups of pixels that touch are one cell."""
    monkeypatch.chdir(tmp_path)
    own = Path("data/cells/own")
    picture(own / "1cell.png")
    image = Image.new("RGB", (20, 16))
    for place in ((2, 3), (3, 4), (10, 10), (19, 15), (11, 10), (18, 0)):
        image.putpixel(place, (255, 0, 0))
    image.save(own / "1dots.png")
    with pytest.raises(
        DataError, match=r"1cell.png' has no annotation next .* docs/cell_counting.md turns images of dots into"
    ):
        set_up(own)
    page = (ROOT / "docs" / "cell_counting.md").read_text()
    exec(page[page.index("from pathlib") : page.index("```", page.index("from pathlib"))])
    data = set_up(own)
    centres = torch.tensor([[18, 0], [2.5, 3.5], [10.5, 10], [19, 15]]).double()
    torch.testing.assert_close(data._train.tensors[1][0, 0], density_image(centres, 16, 20, 2.0) * 100)


def test_a_folder_for_each_client(clients):
    base = set_up(clients, channels=3)
    assert base._train.tensors[0].shape == (8, 3, 16, 20)
    assert base._train.domains_names == ("delft", "oxford")
    data = ready(FederatedDataModule(base, DomainPartitioner()))
    assert [data.client_name(k) for k in range(2)] == ["delft", "oxford"]
    held = [[counts(base._train)[i] for i in data.indices[k].tolist()] for k in range(2)]
    assert held == [[0, 1, 2, 3, 4], [0, 1, 2]]
    (clients / "readme.csv").write_text("not of an image")
    assert len(set_up(clients)._train) == 8


def test_a_share_is_held_out_in_the_proportions_of_the_clients(clients):
    data = set_up(clients, test_share=0.5)
    assert (len(data._train), len(data._test)) == (4, 4)
    assert sorted(counts(data._train) + counts(data._test)) == [0, 0, 1, 1, 2, 2, 3, 4]
    assert sorted(torch.bincount(data._test.domains).tolist()) in ([1, 3], [2, 2])
    assert counts(data._test) == counts(set_up(clients, test_share=0.5)._test)
    assert data.origin == f"{clients} (4 + 4 images, 2 clients)"
    assert len(data.val_dataloader()) == 1


def test_folders_for_training_validation_and_test(clients, tables, tmp_path):
    root = tmp_path / "split"
    root.mkdir()
    clients.rename(root / "train")
    tables.rename(root / "Testing")
    data = set_up(root, test_share=0.2)
    assert (len(data._train), len(data._test)) == (8, 4)
    assert len(data._train.domains) == 8
    picture(root / "val" / "z.png")
    (root / "val" / "z.csv").write_text("1,1\n2,2\n3,3")
    (batch,) = set_up(root).val_dataloader()
    assert round(float(batch[1].sum()) / 100, 3) == 3


SIZES, PLACES = st.integers(8, 40), st.floats(0.2, 0.8)


@given(width=SIZES, height=SIZES, size=SIZES, column=PLACES, row=PLACES)
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
