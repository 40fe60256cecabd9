"""Clients with simulated images of cells, and the network that counts them."""

from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch
from command_line import ADAFED
from federations import ready

from fl_lightning import DensityCount, DomainPartitioner, FederatedDataModule, IIDPartitioner, SimulatedCellsDataModule, UNet
from fl_lightning.cells import CellSite
from fl_lightning.cells.simulated import simulate

SITES = {"west": CellSite(images=7, cells=(2, 4)), "east": CellSite(images=12, cells=(0, 9), missed=0.5, displaced=3.0)}


def set_up(**settings_) -> SimulatedCellsDataModule:
    return ready(SimulatedCellsDataModule(**{"sites": SITES, "image_size": 24, "test_images": 5, **settings_}))


def test_a_client_for_each_site():
    base = set_up()
    data = ready(FederatedDataModule(base, DomainPartitioner()))
    held = {data.client_name(k): base._train.domains[data.indices[k]].unique().tolist() for k in range(2)}
    assert held == {"east": [1], "west": [0]}
    assert {data.client_name(k): data.num_examples(k) for k in range(2)} == {"east": 12, "west": 7}
    assert base._test.domains.tolist() == [0, 1, 0, 1, 0]
    mixed = ready(FederatedDataModule(base, IIDPartitioner(3)))
    assert sum(mixed.num_examples(k) for k in range(3)) == 19
    assert base.origin == "simulated cells (19 + 5 images, 2 sites)"


def test_batches_are_images_and_densities_with_the_annotators_counts():
    data = set_up(density_scale=50.0, density_sigma=1.5)
    images, densities = data._train.tensors
    assert (images.shape, images.dtype) == ((19, 1, 24, 24), torch.uint8)
    assert (densities.shape, densities.dtype) == ((19, 1, 24, 24), torch.float32)
    counts = densities.sum(dim=(1, 2, 3)) / 50
    torch.testing.assert_close(counts, counts.round(), atol=1e-4, rtol=0)
    west, east = (counts[data._train.domains == k] for k in (0, 1))
    assert set(west.round().tolist()) <= {2, 3, 4}
    drawn = list(islice(simulate(SITES["east"], "east", "train", 24, 0), 12))
    torch.testing.assert_close(east, torch.tensor([float(len(one.dots)) for one in drawn]), atol=1e-4, rtol=0)
    assert sum(len(one.dots) for one in drawn) < sum(len(one.cells) for one in drawn)
    true = [len(one.cells) for one in islice(simulate(SITES["east"], "east", "test", 24, 0), 2)]
    torch.testing.assert_close(
        data._test.tensors[1].sum(dim=(1, 2, 3))[1:4:2] / 50, torch.tensor(true).float(), atol=1e-4, rtol=0
    )
    first = next(iter(data.val_dataloader()))
    scaled, targets = data.on_after_batch_transfer(first, 0)
    assert scaled.dtype == torch.float32
    assert torch.equal(scaled, first[0] / 255)
    assert torch.equal(targets, data._test.tensors[1])


def test_images_do_not_depend_on_the_annotator_on_other_sites_or_on_their_number():
    data = set_up()
    one, of_east = data._train.tensors[0], data._train.domains == 1
    careful = replace(SITES["east"], missed=0.0, displaced=0.0, images=3)
    other = set_up(sites={"south": CellSite(images=2), "east": careful})
    assert torch.equal(other._train.tensors[0][other._train.domains == 1], one[of_east][:3])
    assert torch.equal(one, set_up()._train.tensors[0])
    assert not torch.equal(one, set_up(seed=1)._train.tensors[0])
    assert not torch.equal(set_up()._test.tensors[0][:3], one[:3])


def test_from_yaml(fl):
    """A site without cells is fine beside others."""
    sites = "{north: {images: 4, cells: [1, 2], blur: 2.0}, south: {images: 6}}"
    own = f"{{class_path: SimulatedCellsDataModule, init_args: {{image_size: 16, sites: {sites}}}}}"
    Path("cells.yaml").write_text(f"data:\n  datamodule: {own}\n  partitioner: DomainPartitioner\n")
    configs = ["--config", ADAFED, "--config", "cells.yaml", "--data.datamodule.sites.south.cells=[0,0]"]
    status, text = fl("partition", *configs)
    assert status == 0, text
    assert "2 clients, 10 training examples" in text


# ------------------------------------------------------------------ the network and its count


@pytest.mark.parametrize(("channels", "outputs", "width", "depth"), [(1, 1, 8, 2), (3, 2, 4, 1), (1, 1, 2, 3)])
def test_the_unet_keeps_the_size_and_has_the_papers_layers(channels, outputs, width, depth):
    """By hand: 9 a b + b for a convolution, 4 a b + b for an up-convolution from a to b features, a b + b for the last."""
    torch.manual_seed(0)
    net = UNet(channels, outputs, width, depth)
    for height, breadth in ((8, 16), (24, 40)):
        assert net(torch.rand(2, channels, height, breadth)).shape == (2, outputs, height, breadth)
    w = [width * 2**k for k in range(depth + 1)]
    wanted = sum(9 * a * b + b + 9 * b * b + b for a, b in zip([channels, *w[:-1]], w, strict=True))
    wanted += sum(4 * 2 * b * b + b + 9 * 2 * b * b + b + 9 * b * b + b for b in w[:-1]) + width * outputs + outputs
    assert sum(p.numel() for p in net.parameters()) == wanted
    assert not list(net.buffers())


def test_the_unet_moves_with_its_image_and_starts_near_zero():
    """Away from the border a shift by 2 ** depth pixels is nothing but a shift."""
    torch.manual_seed(1)
    net = UNet(width=4)
    image = torch.zeros(1, 1, 96, 96)
    image[:, :, 40:48, 40:48] = torch.rand(8, 8)
    with torch.no_grad():
        one, other = net(image), net(image.roll((8, -4), (2, 3)))
    torch.testing.assert_close(one.roll((8, -4), (2, 3))[..., 30:70, 30:70], other[..., 30:70, 30:70])
    assert 0 < float(one.abs().max()) < 0.2
    net(image).square().sum().backward()
    assert all(bool(p.grad.any()) for p in net.parameters())


def test_counts_are_sums_in_full_precision():
    images = np.random.default_rng(0).normal(size=(3, 1, 20, 30))
    np.testing.assert_allclose(DensityCount(7)(torch.from_numpy(images)).numpy(), images.sum(axis=(1, 2, 3)) / 7, rtol=1e-12)
    half = DensityCount(1.0)(torch.full((2, 1, 300, 300), 1.0, dtype=torch.float16))  # 90,000 is above what 16 bits hold
    assert half.dtype == torch.float32
    assert half.tolist() == [90_000, 90_000]
    assert not list(DensityCount().parameters())
