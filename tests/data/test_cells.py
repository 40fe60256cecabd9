"""Simulated cells, their density, annotators, and the network that draws it."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch
from command_line import ADAFED
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import ndimage, stats
from scipy.spatial.distance import pdist
from torch import nn

from fl_lightning import (
    ConfigurationError,
    DataError,
    DensityCount,
    DomainPartitioner,
    FederatedDataModule,
    IIDPartitioner,
    SimulatedCellsDataModule,
    UNet,
)
from fl_lightning.data import CellSite
from fl_lightning.data.cell_site import simulate
from fl_lightning.functional import Microscope, annotate, density_image, dot_centres, draw_cells, generator, place_cells

PLAIN = Microscope(radius_spread=0, elongation=0, brightness_spread=0, background=0, gradient=0, blur=0, noise=0, read_noise=0)
"""Round cells of one size and brightness on black, in focus, without noise."""

# ------------------------------------------------------------------ density


@given(
    height=st.integers(1, 40),
    width=st.integers(1, 40),
    count=st.integers(0, 30),
    sigma=st.floats(0.05, 50),
    seed=st.integers(0, 10**6),
)
def test_the_density_sums_to_the_number_of_dots(height, width, count, sigma, seed):
    dots = torch.rand(count, 2, generator=generator(seed)) * torch.tensor([width, height]) - 0.5
    density = density_image(dots, height, width, sigma)
    assert density.shape == (height, width)
    assert density.dtype == torch.float32
    assert float(density.double().sum()) == pytest.approx(count, abs=1e-5 * (count + 1))
    assert float(density.min()) >= 0


@pytest.mark.parametrize(("x", "y"), [(20, 15), (0, 0), (39, 3), (2, 29)])
def test_the_density_of_a_dot_is_scipys_gaussian_brought_to_one(x, y):
    point = np.zeros((30, 40))
    point[y, x] = 1
    filtered = ndimage.gaussian_filter(point, 2.5, mode="constant", truncate=20)
    density = density_image(torch.tensor([[x, y]]), 30, 40, 2.5).numpy()
    np.testing.assert_allclose(density, filtered / filtered.sum(), atol=1e-8)


def test_the_density_between_pixels_by_hand():
    columns, rows = np.arange(12), np.arange(9)
    wanted = np.zeros((9, 12))
    for x, y in ((3.25, 7.9), (10.6, 0.1)):
        bell = np.exp(-((columns - x) ** 2 + (rows[:, None] - y) ** 2) / (2 * 1.3**2))
        wanted += bell / bell.sum()
    density = density_image(torch.tensor([[3.25, 7.9], [10.6, 0.1]], dtype=torch.float64), 9, 12, 1.3)
    np.testing.assert_allclose(density.numpy(), wanted, rtol=1e-5)


# ------------------------------------------------------------------ where cells are


@settings(max_examples=30)
@given(count=st.integers(0, 20), distance=st.floats(0, 12), seed=st.integers(0, 10**6))
def test_cells_lie_in_the_image_and_apart(count, distance, seed):
    """20 cells forbid at most 20 pi 12^2 = 9,048 of 199 x 299 pixels: 30 draws all in there have a probability of 1e-24."""
    dots = place_cells(count, 200, 300, distance, generator(seed)).numpy()
    assert dots.shape == (count, 2)
    assert ((dots >= 0) & (dots <= [299, 199])).all()
    assert pdist(dots).min(initial=np.inf) >= distance


@pytest.mark.parametrize("seed", range(20))
def test_cells_that_would_overlap_are_placed_again(seed):
    """Of 20 cells in 200 x 300 pixels, 190 pairs, 1.4 would be expected within 12 pixels of each other."""
    assert pdist(place_cells(20, 200, 300, 12.0, generator(seed)).numpy()).min() >= 12


def test_a_crowded_image_has_no_fewer_cells_but_more_overlap():
    dots = place_cells(200, 20, 20, 5.0, generator(0)).numpy()
    free = place_cells(200, 20, 20, 0.0, generator(0)).numpy()
    assert len(dots) == 200
    assert 0 < pdist(dots).min() < 5
    nearest, nearest_free = (np.sort(pdist(d))[:100].mean() for d in (dots, free))
    assert nearest > 2 * nearest_free


def test_places_are_uniform():
    dots = torch.cat([place_cells(50, 60, 100, 0.0, generator(k)) for k in range(60)]).numpy()
    assert stats.kstest(dots[:, 0], stats.uniform(0, 99).cdf).pvalue > 1e-3
    assert stats.kstest(dots[:, 1], stats.uniform(0, 59).cdf).pvalue > 1e-3


# ------------------------------------------------------------------ how cells look


def moments(image: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
    """Mass, centre (x, y) and covariance of the light."""
    y, x = np.mgrid[: image.shape[0], : image.shape[1]]
    mass = image.sum()
    centre = np.array([(image * x).sum(), (image * y).sum()]) / mass
    away = np.stack([x - centre[0], y - centre[1]])
    return mass, centre, np.einsum("hw,ahw,bhw->ab", image, away, away) / mass


def lone_cell(look: Microscope) -> tuple[np.ndarray, np.ndarray]:
    """A cell away from the border of its image."""
    for seed in range(100):
        image, dots = draw_cells(1, 120, 120, look, generator(seed))
        if dots.min() > 40 and dots.max() < 79:
            return image.double().numpy(), dots[0].numpy()
    raise AssertionError("none in the middle")


@pytest.mark.parametrize("elongation", [0.0, 1.0])
@pytest.mark.parametrize("blur", [0.0, 2.0])
def test_a_cell_shines_as_its_integral_says(elongation, blur):
    """Fermi's integrals, up to terms of exp(-1 / s): of rho sigmoid((1 - rho) / s) (1 + pi^2 s^2 / 3) / 2, of rho^3 sigmoid
    (1 + 2 pi^2 s^2 + 7 pi^4 s^4 / 15) / 4."""
    p = (np.pi * 0.1) ** 2
    look = replace(PLAIN, radius=8.0, softness=0.1, elongation=elongation, blur=blur)
    image, dot = lone_cell(look)
    mass, centre, covariance = moments(image)
    assert mass == pytest.approx(0.6 * np.pi * 8**2 * (1 + p / 3), rel=1e-3)
    np.testing.assert_allclose(centre, dot, atol=0.01)
    assert 0.99 * 0.6 < image.max() <= 0.6
    long, short = np.linalg.eigvalsh(covariance)[::-1] - blur**2  # the point spread function adds its variance
    assert np.sqrt(long * short) == pytest.approx(8**2 / 4 * (1 + 2 * p + 7 * p**2 / 15) / (1 + p / 3), rel=1e-3)
    assert np.sqrt(long / short) < 1.01 if elongation == 0 else 1.05 < np.sqrt(long / short) < 2


def test_sizes_and_brightness_are_spread_as_they_say():
    """Light of many cells: pi r^2 times brightness, r lognormal, brightness uniform; half-axes one to between one and two."""
    look = replace(PLAIN, radius=6.0, radius_spread=0.2, brightness_spread=0.5, blur=0.5, elongation=1.0)
    masses, tops, ratios = [], [], []
    for seed in range(300):
        image, dots = draw_cells(1, 60, 60, look, generator(seed, "spread"))
        if dots.min() > 20 and dots.max() < 39:
            masses.append(float(image.sum()))
            tops.append(float(image.max()))
            long, short = np.linalg.eigvalsh(moments(image.double().numpy())[2])[::-1] - 0.5**2
            ratios.append(np.sqrt(long / short))
    assert len(tops) > 20
    assert min(tops) >= 0.6 * 0.5 * 0.99
    assert max(tops) <= 0.6 * 1.5
    assert stats.kstest(tops, stats.uniform(0.3, 0.6).cdf).pvalue > 1e-3
    radii = np.sqrt(np.array(masses) / np.array(tops) / np.pi / (1 + np.pi**2 * 0.1**2 / 3))
    assert stats.kstest(np.log(radii / 6) / 0.2, stats.norm.cdf).pvalue > 1e-3
    assert stats.kstest(ratios, stats.uniform(1, 1).cdf).pvalue > 1e-3


def test_light_comes_in_from_cells_at_the_border():
    """Blurring what is cut off, too: scipy's filter on a larger image of the same cells."""
    sharp = replace(PLAIN, radius=5.0)
    dots = draw_cells(12, 40, 50, sharp, generator(3))[1]
    y, x = np.mgrid[-40:80, -40:90]
    light = sum(0.6 / (1 + np.exp((np.hypot(x - a, y - b) / 5 - 1) / 0.1)) for a, b in dots.tolist())
    wanted = ndimage.gaussian_filter(light, 3.0, truncate=8)[40:80, 40:90]
    image, same = draw_cells(12, 40, 50, replace(sharp, blur=3.0), generator(3))
    assert torch.equal(dots, same)
    np.testing.assert_allclose(image.numpy(), wanted.clip(0, 1), atol=1e-3)


def test_the_background_is_a_plane():
    look = replace(PLAIN, background=0.3, gradient=0.1)
    images = [draw_cells(0, 40, 60, look, generator(seed))[0].double().numpy() for seed in range(8)]
    v, u = np.meshgrid(np.linspace(-1, 1, 40), np.linspace(-1, 1, 60), indexing="ij")
    plane = np.stack([np.ones(2400), u.ravel(), v.ravel()], axis=1)
    directions = set()
    for image in images:
        (level, *slope), residual, *_ = np.linalg.lstsq(plane, image.ravel(), rcond=None)
        assert level == pytest.approx(0.3)
        assert np.hypot(*slope) == pytest.approx(0.1)
        assert float(residual[0]) < 1e-9
        directions.add(round(float(np.arctan2(*slope)), 2))
    assert len(directions) == 8


def test_noise_has_the_variance_of_photons_and_of_the_camera():
    look = replace(PLAIN, background=0.4, noise=0.1, read_noise=0.05)
    image = draw_cells(0, 300, 300, look, generator(5))[0].double().numpy()
    assert image.mean() == pytest.approx(0.4, abs=0.002)
    assert image.var() == pytest.approx(0.1**2 * 0.4 + 0.05**2, rel=0.03)  # standard error 0.5 %
    photons = draw_cells(0, 100, 100, replace(look, read_noise=0.0), generator(5))[0].double().numpy() / 0.1**2
    np.testing.assert_allclose(photons, photons.round(), atol=1e-4)
    bins = np.bincount(photons.round().astype(int).ravel(), minlength=90)[:90]
    expected = stats.poisson(40).pmf(np.arange(90)) * 10_000
    kept = expected > 5
    assert stats.chisquare(bins[kept], expected[kept] * bins[kept].sum() / expected[kept].sum()).pvalue > 1e-3


def test_drawing_leaves_the_global_random_state_and_stays_in_range():
    state = torch.get_rng_state()
    look = Microscope(brightness=1.0, background=0.9, noise=0.5, read_noise=0.5)
    image, dots = draw_cells(30, 32, 48, look, generator(0))
    again, same = draw_cells(30, 32, 48, look, generator(0))
    assert torch.equal(state, torch.get_rng_state())
    assert torch.equal(image, again)
    assert torch.equal(dots, same)
    assert image.dtype == torch.float32
    assert image.shape == (32, 48)
    assert 0 <= float(image.min()) <= float(image.max()) <= 1


# ------------------------------------------------------------------ annotators


def test_a_careless_annotator_misses_invents_and_displaces_as_often_as_it_says():
    dots = torch.rand(20_000, 2, generator=generator(0), dtype=torch.float64) * 400 + 50
    kept = annotate(dots, 500, 500, 0.3, 0.0, 0.0, generator(1))
    assert stats.binomtest(20_000 - len(kept), 20_000, 0.3).pvalue > 1e-3
    assert {tuple(d) for d in kept.tolist()} <= {tuple(d) for d in dots.tolist()}
    more = annotate(dots, 500, 500, 0.0, 0.2, 0.0, generator(2))
    assert torch.equal(more[:20_000], dots)
    false = more[20_000:].numpy()
    assert stats.binomtest(len(false), 20_000, 0.2).pvalue > 1e-3
    assert all(stats.kstest(false[:, axis], stats.uniform(0, 499).cdf).pvalue > 1e-3 for axis in (0, 1))
    both = annotate(dots, 500, 500, 0.5, 0.5, 0.0, generator(4))
    assert len(both) != 20_000  # misses are not the inventions
    assert abs(len(both) - 20_000) < 4 * np.sqrt(20_000 * 2 * 0.25)
    moved = (annotate(dots, 500, 500, 0.0, 0.0, 2.0, generator(3)) - dots).numpy()
    assert all(stats.kstest(moved[:, axis], stats.norm(0, 2).cdf).pvalue > 1e-3 for axis in (0, 1))


@given(
    dots=arrays(np.float64, st.tuples(st.integers(0, 9), st.just(2)), elements=st.floats(0, 19)),
    displaced=st.floats(0, 100),
    seed=st.integers(0, 10**6),
)
def test_dots_stay_in_the_image(dots, displaced, seed):
    every = annotate(torch.from_numpy(dots), 20, 30, 0.0, 1.0, displaced, generator(seed))
    assert len(every) == 2 * len(dots)
    assert bool(((every >= 0) & (every <= torch.tensor([29.0, 19.0]))).all())
    assert len(annotate(torch.from_numpy(dots), 20, 30, 1.0, 0.0, displaced, generator(seed))) == 0


@given(arrays(bool, st.tuples(st.integers(1, 12), st.integers(1, 12)), elements=st.booleans()))
def test_dots_that_touch_are_one(mask):
    labels, count = ndimage.label(mask, np.ones((3, 3)))
    wanted = np.array(ndimage.center_of_mass(mask, labels, range(1, count + 1))).reshape(-1, 2)[:, ::-1]
    found = dot_centres(torch.from_numpy(mask)).numpy()
    assert found.shape == (count, 2)
    np.testing.assert_allclose(np.array(sorted(found.tolist())), np.array(sorted(wanted.tolist())), atol=1e-9)


# ------------------------------------------------------------------ the datamodule


SITES = {"west": CellSite(images=7, cells=(2, 4)), "east": CellSite(images=12, cells=(0, 9), missed=0.5, displaced=3.0)}


def set_up(**settings_) -> SimulatedCellsDataModule:
    data = SimulatedCellsDataModule(**{"sites": SITES, "image_size": 24, "test_images": 5, **settings_})
    data.setup("fit")
    return data


def test_a_client_for_each_site():
    base = set_up()
    data = FederatedDataModule(base, DomainPartitioner())
    data.setup("fit")
    held = {data.client_name(k): base._train.domains[data.indices[k]].unique().tolist() for k in range(2)}
    assert held == {"east": [1], "west": [0]}
    assert {data.client_name(k): data.num_examples(k) for k in range(2)} == {"east": 12, "west": 7}
    assert base._test.domains.tolist() == [0, 1, 0, 1, 0]
    mixed = FederatedDataModule(base, IIDPartitioner(3))
    mixed.setup("fit")
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


def test_the_sites_by_default_differ():
    data = SimulatedCellsDataModule()
    data.setup("fit")
    assert len(data.sites) == 5
    assert len(data._train) == 360
    images, densities = data._train.tensors
    of = {name: data._train.domains == k for k, name in enumerate(data.sites)}
    counts = densities.sum(dim=(1, 2, 3)) / 100
    assert counts[of["crowded"]].min() >= 29.9
    assert counts[of["careless"]].mean() < 0.85 * counts[of["clear"]].mean()
    deviation = {name: float((images[mask].float() / 255).diff(dim=3).std()) for name, mask in of.items()}
    assert deviation["noisy"] > 1.2 * deviation["clear"] > 1.5 * deviation["blurred"]


def test_from_yaml(fl):
    Path("cells.yaml").write_text(
        "data:\n"
        "  datamodule:\n"
        "    class_path: SimulatedCellsDataModule\n"
        "    init_args:\n"
        "      image_size: 16\n"
        "      sites:\n"
        "        north: {images: 4, cells: [1, 2], blur: 2.0}\n"
        "        south: {images: 6}\n"
        "  partitioner: DomainPartitioner\n"
    )
    status, text = fl("partition", "--config", ADAFED, "--config", "cells.yaml")
    assert status == 0, text
    assert "2 clients, 10 training examples" in text
    status, text = fl("partition", "--config", ADAFED, "--config", "cells.yaml", "--data.datamodule.sites.south.missed=2")
    assert status == 1
    assert "error: 'data.datamodule.sites.*.missed' must be from 0 to 1, but is 2" in text
    status, text = fl("partition", "--config", ADAFED, "--config", "cells.yaml", "--data.datamodule.sites.south.cells=[0,0]")
    assert status == 0, text


def test_no_cells_anywhere():
    for site in (CellSite(images=2, cells=(0, 0)), CellSite(images=2, missed=1.0)):
        with pytest.raises(DataError, match=r"count is zero everywhere: .* Set 'cells' of a site in 'data.datamodule.sites'"):
            set_up(sites={"empty": site})
    assert float(set_up(sites={"empty": CellSite(cells=(0, 0)), "full": CellSite()})._train.tensors[1].sum()) > 0


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"images": 0}, "images' must be 1 or above, but is 0"),
        ({"cells": (5, 3)}, r"cells' must be the fewest and the most cells, from 0 to 1000, but is \[5, 3\]"),
        ({"cells": (-1, 3)}, "cells' must be the fewest"),
        ({"cells": (0, 1_001)}, "cells' must be the fewest"),
        ({"radius": 0.0}, "radius' must be above 0"),
        ({"softness": 0.0}, "softness' must be above 0"),
        ({"radius_spread": -0.1}, "radius_spread' must be 0 or above"),
        ({"elongation": float("nan")}, "elongation' must be 0 or above"),
        ({"spacing": -1}, "spacing' must be 0 or above"),
        ({"brightness": 1.1}, "brightness' must be from 0 to 1"),
        ({"brightness_spread": 2}, "brightness_spread' must be from 0 to 1"),
        ({"background": -0.1}, "background' must be from 0 to 1"),
        ({"gradient": 3}, "gradient' must be from 0 to 1"),
        ({"blur": -1}, "blur' must be 0 or above"),
        ({"noise": -1}, "noise' must be 0 or above"),
        ({"read_noise": float("inf")}, "read_noise' must be 0 or above"),
        ({"missed": 1.5}, "missed' must be from 0 to 1"),
        ({"spurious": -0.5}, "spurious' must be from 0 to 1"),
        ({"displaced": -1}, "displaced' must be 0 or above"),
    ],
)
def test_settings_of_a_site(wrong, message):
    with pytest.raises(ConfigurationError, match=r"'data.datamodule.sites.\*." + message):
        CellSite(**wrong)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"sites": {}}, "'data.datamodule.sites' must be one site or more, or null"),
        ({"image_size": 7}, "'data.datamodule.image_size' must be 8 or above"),
        ({"test_images": 0}, "'data.datamodule.test_images' must be 1 or above"),
        ({"density_sigma": 0}, "'data.datamodule.density_sigma' must be above 0 pixels"),
        ({"density_scale": 0}, "'data.datamodule.density_scale' must be above 0"),
        ({"batch_size": 0}, "'data.datamodule.batch_size' must be 1 or above"),
    ],
)
def test_settings_of_the_datamodule(wrong, message):
    with pytest.raises(ConfigurationError, match=message):
        SimulatedCellsDataModule(**wrong)


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


def test_wrong_settings_of_the_network():
    with pytest.raises(ConfigurationError, match=r"depth' 2 .* multiples of 4, but these have 30 x 32 pixels. Set"):
        UNet()(torch.rand(1, 1, 32, 30))
    for name in ("channels", "outputs", "width", "depth"):
        with pytest.raises(ConfigurationError, match=f"'model.network.{name}' must be 1 or above, but is 0"):
            UNet(**{name: 0})
    with pytest.raises(ConfigurationError, match=r"'model.readout.scale' must be above 0, as 'data.datamodule.density_scale'"):
        DensityCount(0)


def test_counts_are_sums_in_full_precision():
    images = np.random.default_rng(0).normal(size=(3, 1, 20, 30))
    np.testing.assert_allclose(DensityCount(7)(torch.from_numpy(images)).numpy(), images.sum(axis=(1, 2, 3)) / 7, rtol=1e-12)
    half = DensityCount(1.0)(torch.full((2, 1, 300, 300), 1.0, dtype=torch.float16))  # 90,000 is above what 16 bits hold
    assert half.dtype == torch.float32
    assert half.tolist() == [90_000, 90_000]
    assert not list(DensityCount().parameters())


def test_a_small_unet_learns_to_count():
    """Below a third of the error of whoever says the mean of the training images, after some seconds."""
    data = SimulatedCellsDataModule({"one": CellSite(images=160)}, image_size=48, test_images=40)
    data.setup("fit")
    torch.manual_seed(0)
    net, count = UNet(width=8), DensityCount()
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
    images, densities = data._train.tensors
    for _ in range(8):
        for chosen in torch.randperm(160).split(8):
            optimizer.zero_grad()
            nn.functional.mse_loss(net(images[chosen] / 255), densities[chosen]).backward()
            optimizer.step()
    held, true = data._test.tensors[0] / 255, count(data._test.tensors[1])
    with torch.no_grad():
        error = (count(net(held)) - true).abs().mean()
    assert error < (count(densities).mean() - true).abs().mean() / 3
