"""Barron's robust loss against its special cases, 50-digit arithmetic, and scipy's likelihood."""

import math
from decimal import Decimal, getcontext

import numpy as np
import pytest
import torch
from federations import Plain, federate
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate, optimize, special, stats

from fl_lightning import AdaFed, RobustLoss
from fl_lightning.losses.robust import log_partition, most_likely, residual_counts, robust_loss

X = torch.tensor([-300.0, -2.5, -1e-3, 0.0, 1e-6, 0.7, 3.0, 40.0], dtype=torch.float64)
C = 1.7
SPECIAL = {
    2.0: lambda z: z / 2,
    1.0: lambda z: torch.sqrt(z + 1) - 1,
    0.0: lambda z: torch.log(z / 2 + 1),
    -2.0: lambda z: 2 * z / (z + 4),
    -math.inf: lambda z: 1 - torch.exp(-z / 2),
}


def exact(x: float, a: float, c: float) -> float:
    """Equation 8 in 50 digits."""
    getcontext().prec = 50
    z, shape = (Decimal(x) / Decimal(c)) ** 2, Decimal(a)
    b = abs(shape - 2)
    return float(b / shape * ((z / b + 1) ** (shape / 2) - 1))


@pytest.mark.parametrize("shape", SPECIAL)
@pytest.mark.parametrize(("dtype", "rel"), [(torch.float32, 3e-5), (torch.float64, 3e-5)])
def test_special_cases(shape, dtype, rel):
    """Within what keeping 1e-6 away from the singularities costs."""
    found = robust_loss(X.to(dtype), torch.tensor(shape), torch.tensor(C))
    expected = SPECIAL[shape]((X.to(dtype).double() / C) ** 2)
    torch.testing.assert_close(found.double(), expected, rtol=rel, atol=1e-12)


@pytest.mark.parametrize("shape", [1.9999, 1.5, 1.0, 0.3, 1e-3, -1e-3, -0.5, -7.0, -5000.0])
@pytest.mark.parametrize(("dtype", "rel"), [(torch.float32, 2e-5), (torch.float64, 1e-10)])
def test_between_the_special_cases_as_in_fifty_digits(shape, dtype, rel):
    a = torch.tensor(shape, dtype=dtype)
    found = robust_loss(X.to(dtype), a, torch.tensor(C, dtype=dtype))
    expected = [exact(float(x), float(a), float(torch.tensor(C, dtype=dtype))) for x in X.to(dtype)]
    assert found.tolist() == pytest.approx(expected, rel=rel, abs=1e-300)


@given(
    st.floats(-1e-4, 1e-4), st.sampled_from([0.0, 2.0]), st.floats(-1e3, 1e3), st.sampled_from([torch.float32, torch.float64])
)
def test_nothing_jumps_at_the_removable_singularities(offset, shape, x, dtype):
    here, there = (
        robust_loss(torch.tensor(x, dtype=dtype), torch.tensor(a), torch.tensor(1.0)) for a in (shape, shape + offset)
    )
    assert torch.isfinite(here)
    assert float(there) == pytest.approx(float(here), rel=2e-3, abs=1e-12)


@pytest.mark.parametrize("shape", [2.0, 1.0, 0.0, 1e-7, -2.0, -math.inf])
def test_gradients_are_finite_and_those_of_the_closed_forms(shape):
    x = torch.tensor([-1e4, -2.0, 0.0, 1e-8, 5.0], requires_grad=True)
    robust_loss(x, torch.tensor(shape), torch.tensor(C)).sum().backward()
    z = x.detach().double() / C
    slope = {2.0: 1 + 0 * z, 1.0: (z**2 + 1) ** -0.5, 0.0: 2 / (z**2 + 2), -2.0: 16 / (z**2 + 4) ** 2}
    expected = z / C * slope.get(shape, slope[0.0] if abs(shape) < 1 else torch.exp(-(z**2) / 2))
    torch.testing.assert_close(x.grad.double(), expected, rtol=3e-5, atol=1e-12)


@pytest.mark.parametrize("half", [torch.float16, torch.bfloat16])
def test_under_amp_it_is_computed_in_float32(half):
    """The square of 300 is beyond float16."""
    outputs = torch.tensor([300.0, -1.5, 0.25], dtype=half, requires_grad=True)
    loss = RobustLoss(1.0, C)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        value = loss(outputs, torch.zeros(3))
    value.backward()
    expected = (torch.sqrt((outputs.detach().double() / C) ** 2 + 1) - 1).mean()
    assert value.dtype == torch.float32
    assert value.item() == pytest.approx(expected.item(), rel=1e-5)
    assert torch.isfinite(outputs.grad).all()


@pytest.mark.parametrize(
    ("shape", "expected"),
    [(0.0, math.pi * math.sqrt(2)), (1.0, 2 * math.e * special.k1(1)), (2.0, math.sqrt(2 * math.pi))],
)
def test_the_partition_function_in_closed_form(shape, expected):
    """Cauchy, Charbonnier (a modified Bessel function) and the normal distribution."""
    assert log_partition(shape) == pytest.approx(math.log(expected), rel=2e-5)


def test_counts_of_residuals_by_hand():
    counts = residual_counts(torch.tensor([0.0, 0.75, -0.75, 1.5, torch.nan, torch.inf, 1e-30, 1e30]))
    assert counts.sum() == 6
    assert counts[0] == 2  # zero and what is too small
    assert counts[40 * 32 + 16] == 2  # 0.75 = 2^0 * (0.5 + 16 / 64)
    assert counts[41 * 32 + 16] == 1
    assert counts[-1] == 1


@pytest.mark.parametrize(("distribution", "low", "high"), [(stats.norm, 1.9, 2.0), (stats.cauchy, 0.0, 0.1)])
def test_the_likeliest_shape_of_known_distributions(distribution, low, high):
    """The normal distribution is shape 2; Cauchy's, of scale 1, is shape 0 with c = 1 / sqrt(2)."""
    draws = distribution.rvs(size=20_000, random_state=3)
    scale = 1.0 if distribution is stats.norm else math.sqrt(0.5)
    shape, _ = most_likely(residual_counts(torch.from_numpy(draws)), scale, 0.0, 2.0, fit_scale=False)
    assert low <= shape <= high


def test_shape_and_scale_are_where_scipy_finds_the_minimum():
    """The likelihood over the residuals themselves, minimised by Nelder and Mead; the grids' steps are the tolerance."""
    draws = np.random.default_rng(0).standard_t(3, 4000) * 0.4

    def cost(place: np.ndarray) -> float:
        a, c = 2 / (1 + math.exp(-place[0])), math.exp(place[1])
        z = (draws / c) ** 2
        rho = (2 - a) / a * ((z / (2 - a) + 1) ** (a / 2) - 1)
        integral, _ = integrate.quad(lambda x: math.exp(-(2 - a) / a * ((x * x / (2 - a) + 1) ** (a / 2) - 1)), 0, math.inf)
        return float(rho.mean()) + math.log(c) + math.log(2 * integral)

    best = optimize.minimize(cost, [0.0, -1.0], method="Nelder-Mead")
    shape, scale = most_likely(residual_counts(torch.from_numpy(draws)), 1.0, 0.0, 2.0, fit_scale=True)
    assert shape == pytest.approx(2 / (1 + math.exp(-best.x[0])), abs=0.1)
    assert math.log(scale) == pytest.approx(best.x[1], abs=0.12)


class Numbers(Plain):
    """A user's own regression, which knows nothing of adaptive losses but calls one."""

    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Linear(4, 1)
        self.loss = RobustLoss(2.0, 0.3)

    def training_step(self, batch, batch_idx):
        x, y = batch
        return self.loss(self(x)[:, 0], y.float())

    def validation_step(self, batch, batch_idx):
        x, y = batch
        loss = self.loss(self(x)[:, 0], y.float())
        self.log("val_loss", loss, batch_size=len(y), sync_dist=True)


def test_in_a_module_of_ones_own_the_shape_follows_the_servers_residuals():
    """The last shape is the likeliest of the final model's residuals, found here without counting them."""
    torch.manual_seed(2)
    module = Numbers()
    run = federate(module, 3, strategy=AdaFed("val_loss", mode="min"))
    x, y = run.datamodule.datamodule.val
    with torch.no_grad():
        residuals = (module.cpu()(x)[:, 0] - y).double().numpy()

    def cost(a: float) -> float:
        z = (residuals / 0.3) ** 2
        b = max(abs(a - 2), 1e-6)
        safe = a if a else 1e-6
        return float((b / safe * ((z / b + 1) ** (safe / 2) - 1)).mean()) + log_partition(a)

    grid = [round(0.05 * k, 2) for k in range(41)]
    assert float(module.loss.shape) == pytest.approx(min(grid, key=cost), abs=0.051)
    assert float(module.loss.shape) < 2.0
    assert float(run.callback_metrics["robust_loss/shape"]) == pytest.approx(float(module.loss.shape))
