"""The ends of each setting's range: allowed up to there, and refused beyond."""

from __future__ import annotations

from functools import partial

import pytest

from fl_lightning import (
    ClientPrivacy,
    ClipUpdate,
    ConfigurationError,
    CosineFilter,
    FedAvgM,
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

PRIVATE = partial(ClientPrivacy, **{"max_norm": 1.0, "noise_multiplier": 1.0})
ENDS = [
    (PRIVATE, "noise_multiplier", [1e-9], [0]),
    (PRIVATE, "delta", [1e-9, 0.999], [0, 1]),
    (CosineFilter, "threshold", [-1, 0.999], [-1.001, 1]),
    (FedAvgM, "momentum", [0, 0.999], [-0.001, 1]),
    (FedAvgM, "lr", [1e-9], [0]),
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


@pytest.mark.parametrize(("make", "setting", "inside", "outside"), ENDS)
def test_a_range_ends_where_it_says(make, setting, inside, outside):
    if make is PRIVATE:
        pytest.importorskip("dp_accounting")
    for value in inside:
        make(**{setting: value})
    for value in outside:
        with pytest.raises(ConfigurationError, match=f"{setting}' must be "):
            make(**{setting: value})
