"""Simulated cells, their density, annotators and clients, and the network that counts them."""

from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
import torch
from federations import ready
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import ndimage, stats
from scipy.spatial.distance import pdist

from fl_lightning import DensityCount, DomainPartitioner, FederatedDataModule, IIDPartitioner, SimulatedCellsDataModule, UNet
from fl_lightning.cells.drawing import CellSite, annotate, density_image, draw_cells, place_cells
from fl_lightning.cells.simulated import simulate
from fl_lightning.functional.seeding import generator


class Round(CellSite):
    """Of one size."""

    radius_spread = elongation = 0


class Mixed(CellSite):
    elongation, radius_spread = 1, 0.2


DARK = dict.fromkeys(("brightness_spread", "background", "gradient", "blur", "noise", "read_noise"), 0)
PLAIN = Round(**DARK)
"""Round cells of one size and brightness on black, in focus, without noise."""

# ------------------------------------------------------------------ density


@given(st.integers(1, 40), st.integers(1, 40), st.integers(0, 30), st.floats(0.05, 50), st.integers(0, 10**6))
def test_a_dot_is_a_gaussian_of_mass_one_within_the_image(height, width, count, sigma, seed):
    dots = (torch.rand(count, 2, generator=generator(seed)) * torch.tensor([width, height]) - 0.5).double()
    columns, rows, wanted = np.arange(width), np.arange(height)[:, None], np.zeros((height, width))
    for x, y in dots.tolist():
        bell = np.exp(-((columns - x) ** 2 + (rows - y) ** 2) / (2 * sigma**2))
        wanted += bell / bell.sum()
    density = density_image(dots, height, width, sigma)
    assert density.dtype == torch.float32
    np.testing.assert_allclose(density.numpy(), wanted, rtol=1e-5, atol=1e-7)
    assert float(density.double().sum()) == pytest.approx(count, abs=1e-5 * (count + 1))


# ------------------------------------------------------------------ where cells are


@given(count=st.integers(0, 20), distance=st.floats(0, 12), seed=st.integers(0, 10**6))
def test_cells_lie_in_the_image_and_apart(count, distance, seed):
    """20 cells forbid at most 20 pi 12^2 = 9,048 of 199 x 299 pixels: 30 draws all in there have a probability of 1e-24.

    A crowded image has no fewer cells.
    """
    dots = place_cells(count, 200, 300, distance, generator(seed)).numpy()
    assert dots.shape == (count, 2)
    assert ((dots >= 0) & (dots <= [299, 199])).all()
    assert pdist(dots).min(initial=np.inf) >= distance
    assert 0 < pdist(place_cells(200, 20, 20, 5.0, generator(seed)).numpy()).min() < 5


# ------------------------------------------------------------------ how cells look


def covariance(image: np.ndarray) -> np.ndarray:
    """Of the places of the light."""
    places = np.indices(image.shape).reshape(2, -1)
    return np.cov(places, aweights=image.ravel(), bias=True)


def test_sizes_and_brightness_are_spread_as_they_say():
    """Light of many cells: pi r^2 times brightness, r lognormal, brightness uniform; half-axes one to between one and two."""
    look = Mixed(**{**DARK, "radius": 6.0, "brightness_spread": 0.5, "blur": 0.5})
    masses, tops, ratios = [], [], []
    for seed in range(300):
        image, dots = draw_cells(1, 60, 60, look, generator(seed, "spread"))
        if dots.min() > 20 and dots.max() < 39:
            masses.append(float(image.sum()))
            tops.append(float(image.max()))
            long, short = np.linalg.eigvalsh(covariance(image.double().numpy()))[::-1] - 0.5**2
            ratios.append(np.sqrt(long / short))
    assert len(tops) > 20
    assert min(tops) >= 0.6 * 0.5 * 0.99
    assert max(tops) <= 0.6 * 1.5
    assert stats.kstest(tops, stats.uniform(0.3, 0.6).cdf).pvalue > 1e-3
    radii = np.sqrt(np.array(masses) / np.array(tops) / np.pi / (1 + np.pi**2 * 0.1**2 / 3))
    assert stats.kstest(np.log(radii / 6) / 0.2, stats.norm.cdf).pvalue > 1e-3
    assert stats.kstest(ratios, stats.uniform(1, 1).cdf).pvalue > 1e-3


def test_light_comes_in_from_cells_at_the_border():
    """Blurring what is cut off, too: scipy's filter on a larger image of the same cells, whatever torch has drawn."""
    state = torch.get_rng_state()
    sharp = replace(PLAIN, radius=5.0)
    dots = draw_cells(12, 40, 50, sharp, generator(3))[1]
    y, x = np.mgrid[-40:80, -40:90]
    light = sum(0.6 / (1 + np.exp((np.hypot(x - a, y - b) / 5 - 1) / 0.1)) for a, b in dots.tolist())
    wanted = ndimage.gaussian_filter(light, 3.0, truncate=8)[40:80, 40:90]
    image, same = draw_cells(12, 40, 50, replace(sharp, blur=3.0), generator(3))
    assert torch.equal(dots, same)
    np.testing.assert_allclose(image.numpy(), wanted.clip(0, 1), atol=1e-3)
    assert torch.equal(state, torch.get_rng_state())
    bright = draw_cells(12, 40, 50, CellSite(brightness=1.0, background=0.9, noise=0.5, read_noise=0.5), generator(0))[0]
    assert (float(bright.min()), float(bright.max())) == (0, 1)


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


# ------------------------------------------------------------------ clients

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
