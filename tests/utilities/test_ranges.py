"""The ends of each setting's range: allowed up to there, and refused beyond."""

from __future__ import annotations

import pytest

from fl_lightning import (
    ClientPrivacy,
    ClipUpdate,
    ConfigurationError,
    CosineFilter,
    FedLoss,
    FedStar,
    Focus,
    GeometricMedian,
    Krum,
    Mediators,
    Mocha,
    Quantize,
    RingFed,
    ShapleyValues,
    TopK,
    TrimmedMean,
    WarmStart,
)

ENDS = [
    (CosineFilter, "threshold", [-1, 0.999], [-1.001, 1]),
    (FedLoss, "examples", [0], [-0.001]),
    (FedStar, "periods", [1], [0]),
    (Focus, "temperature", [1e-9], [0, -1]),
    (GeometricMedian, "iterations", [1], [0]),
    (GeometricMedian, "smoothing", [1e-300, 999_999], [0, 1e6]),
    (Krum, "attackers", [0, 0.0, 0.499, 3], [-1, -0.1, 0.5]),
    (Krum, "selected", [1, None], [0]),
    (Mediators, "clients_per_mediator", [1], [0]),
    (Mocha, "strength", [0], [-0.001]),
    (Mocha, "l2", [0], [-0.001]),
    (Mocha, "smoothing", [1e-9], [0]),
    (Mocha, "update_every", [1], [0]),
    (RingFed, "gamma", [0, 1], [-0.001, 1.001]),
    (RingFed, "periods", [1], [0]),
    (ShapleyValues, "exact_up_to", [0, 16], [-1, 17]),
    (ShapleyValues, "orders", [1], [0]),
    (ShapleyValues, "tolerance", [-1, 0], [-2, -0.5]),
    (TrimmedMean, "attackers", [0, 0.0, 0.499, 3], [-1, -0.1, 0.5]),
    (WarmStart, "rounds", [1], [0]),
    (TopK, "share", [1e-9, 1], [0, 1.001]),
    (Quantize, "bits", [2, 16], [1, 17]),
    (Quantize, "block", [1], [0]),
    (ClipUpdate, "max_norm", [1e-9, 9e11], [0, 1e12]),
]


@pytest.mark.parametrize(("make", "setting", "inside", "outside"), ENDS, ids=lambda value: getattr(value, "__name__", None))
def test_a_range_ends_where_it_says(make, setting, inside, outside):
    for value in inside:
        make(**{setting: value})
    for value in outside:
        with pytest.raises(ConfigurationError, match=f"{setting}' must be "):
            make(**{setting: value})


@pytest.mark.parametrize(
    ("setting", "inside", "outside"), [("noise_multiplier", [1e-9], [0]), ("delta", [1e-9, 0.999], [0, 1])]
)
def test_the_ranges_of_privacy(setting, inside, outside):
    pytest.importorskip("dp_accounting")
    settings = {"max_norm": 1.0, "noise_multiplier": 1.0}
    for value in inside:
        ClientPrivacy(**settings | {setting: value})
    for value in outside:
        with pytest.raises(ConfigurationError, match=f"{setting}' must be "):
            ClientPrivacy(**settings | {setting: value})
