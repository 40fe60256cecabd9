"""Simulated cells, their density, annotators, and the network that draws it."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import ndimage, stats
from scipy.spatial.distance import pdist

from fl_lightning.cells.drawing import CellSite, annotate, density_image, draw_cells, place_cells
from fl_lightning.functional.seeding import generator


class Cells(CellSite):
    """Of one size."""

    radius_spread = 0


class Round(Cells):
    elongation = 0


class Long(Cells):
    elongation = 1


class Mixed(Long):
    radius_spread = 0.2


DARK = dict.fromkeys(("brightness_spread", "background", "gradient", "blur", "noise", "read_noise"), 0)
PLAIN = Round(**DARK)
"""Round cells of one size and brightness on black, in focus, without noise."""

# ------------------------------------------------------------------ density


@given(st.integers(1, 40), st.integers(1, 40), st.integers(0, 30), st.floats(0.05, 50), st.integers(0, 10**6))
def test_the_density_sums_to_the_number_of_dots(height, width, count, sigma, seed):
    dots = torch.rand(count, 2, generator=generator(seed)) * torch.tensor([width, height]) - 0.5
    density = density_image(dots, height, width, sigma)
    assert density.shape == (height, width)
    assert density.dtype == torch.float32
    assert float(density.double().sum()) == pytest.approx(count, abs=1e-5 * (count + 1))
    assert float(density.min()) >= 0


def test_the_density_between_pixels_by_hand():
    columns, rows = np.arange(12), np.arange(9)
    wanted = np.zeros((9, 12))
    for x, y in ((3.25, 7.9), (10.6, 0.1)):
        bell = np.exp(-((columns - x) ** 2 + (rows[:, None] - y) ** 2) / (2 * 1.3**2))
        wanted += bell / bell.sum()
    density = density_image(torch.tensor([[3.25, 7.9], [10.6, 0.1]], dtype=torch.float64), 9, 12, 1.3)
    np.testing.assert_allclose(density.numpy(), wanted, rtol=1e-5)


# ------------------------------------------------------------------ where cells are


@given(count=st.integers(0, 20), distance=st.floats(0, 12), seed=st.integers(0, 10**6))
def test_cells_lie_in_the_image_and_apart(count, distance, seed):
    """20 cells forbid at most 20 pi 12^2 = 9,048 of 199 x 299 pixels: 30 draws all in there have a probability of 1e-24."""
    dots = place_cells(count, 200, 300, distance, generator(seed)).numpy()
    assert dots.shape == (count, 2)
    assert ((dots >= 0) & (dots <= [299, 199])).all()
    assert pdist(dots).min(initial=np.inf) >= distance


def test_a_crowded_image_has_no_fewer_cells_but_more_overlap():
    dots = place_cells(200, 20, 20, 5.0, generator(0)).numpy()
    free = place_cells(200, 20, 20, 0.0, generator(0)).numpy()
    assert len(dots) == 200
    assert 0 < pdist(dots).min() < 5
    nearest, nearest_free = (np.sort(pdist(d))[:100].mean() for d in (dots, free))
    assert nearest > 2 * nearest_free


# ------------------------------------------------------------------ how cells look


def moments(image: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
    """Mass, centre (x, y) and covariance of the light."""
    y, x = np.mgrid[: image.shape[0], : image.shape[1]]
    mass = image.sum()
    centre = np.array([(image * x).sum(), (image * y).sum()]) / mass
    away = np.stack([x - centre[0], y - centre[1]])
    return mass, centre, np.einsum("hw,ahw,bhw->ab", image, away, away) / mass


def lone_cell(look: CellSite) -> tuple[np.ndarray, np.ndarray]:
    """A cell away from the border of its image."""
    for seed in range(100):
        image, dots = draw_cells(1, 120, 120, look, generator(seed))
        if dots.min() > 40 and dots.max() < 79:
            return image.double().numpy(), dots[0].numpy()
    raise AssertionError("none in the middle")


@pytest.mark.parametrize("kind", [Round, Long])
@pytest.mark.parametrize("blur", [0.0, 2.0])
def test_a_cell_shines_as_its_integral_says(kind, blur):
    """Fermi's integrals, up to terms of exp(-1 / s): of rho sigmoid((1 - rho) / s) (1 + pi^2 s^2 / 3) / 2, of rho^3 sigmoid
    (1 + 2 pi^2 s^2 + 7 pi^4 s^4 / 15) / 4."""
    p = (np.pi * 0.1) ** 2
    look = kind(**{**DARK, "radius": 8.0, "blur": blur})
    image, dot = lone_cell(look)
    mass, centre, covariance = moments(image)
    assert mass == pytest.approx(0.6 * np.pi * 8**2 * (1 + p / 3), rel=1e-3)
    np.testing.assert_allclose(centre, dot, atol=0.01)
    assert 0.99 * 0.6 < image.max() <= 0.6
    long, short = np.linalg.eigvalsh(covariance)[::-1] - blur**2  # the point spread function adds its variance
    assert np.sqrt(long * short) == pytest.approx(8**2 / 4 * (1 + 2 * p + 7 * p**2 / 15) / (1 + p / 3), rel=1e-3)
    assert np.sqrt(long / short) < 1.01 if kind is Round else 1.05 < np.sqrt(long / short) < 2


def test_sizes_and_brightness_are_spread_as_they_say():
    """Light of many cells: pi r^2 times brightness, r lognormal, brightness uniform; half-axes one to between one and two."""
    look = Mixed(**{**DARK, "radius": 6.0, "brightness_spread": 0.5, "blur": 0.5})
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
    look = CellSite(brightness=1.0, background=0.9, noise=0.5, read_noise=0.5)
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
