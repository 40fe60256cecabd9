"""The ends of each setting's range: allowed up to there, and refused beyond."""

from __future__ import annotations

from functools import partial

import pytest

import fl_lightning as fl

PRIVATE = partial(fl.ClientPrivacy, **{"max_norm": 1.0, "noise_multiplier": 1.0})
ENDS = [
    (PRIVATE, "noise_multiplier", [1e-9], [0]),
    (PRIVATE, "delta", [1e-9, 0.999], [0, 1]),
    (fl.CosineFilter, "threshold", [-1, 0.999], [-1.001, 1]),
    (fl.FedAvgM, "momentum", [0, 0.999], [-0.001, 1]),
    (fl.FedAvgM, "lr", [1e-9], [0]),
    (fl.FedLoss, "examples", [0], [-0.001]),
    (fl.FedStar, "periods", [1], [0]),
    (fl.Focus, "temperature", [1e-9], [0, -1]),
    (fl.GeometricMedian, "iterations", [1], [0]),
    (fl.GeometricMedian, "smoothing", [1e-300, 999_999], [0, 1e6]),
    (fl.Krum, "attackers", [0, 0.0, 0.499, 3], [-1, -0.1, 0.5]),
    (fl.Krum, "selected", [1, None], [0]),
    (fl.Mediators, "clients_per_mediator", [1], [0]),
    (fl.Mocha, "strength", [0], [-0.001]),
    (fl.Mocha, "l2", [0], [-0.001]),
    (fl.Mocha, "smoothing", [1e-9], [0]),
    (fl.Mocha, "update_every", [1], [0]),
    (fl.RingFed, "gamma", [0, 1], [-0.001, 1.001]),
    (fl.RingFed, "periods", [1], [0]),
    (fl.ShapleyValues, "exact_up_to", [0, 16], [-1, 17]),
    (fl.ShapleyValues, "orders", [1], [0]),
    (fl.ShapleyValues, "tolerance", [-1, 0], [-2, -0.5]),
    (fl.TrimmedMean, "attackers", [0, 0.0, 0.499, 3], [-1, -0.1, 0.5]),
    (fl.WarmStart, "rounds", [1], [0]),
    (fl.TopK, "share", [1e-9, 1], [0, 1.001]),
    (fl.Quantize, "bits", [2, 16], [1, 17]),
    (fl.Quantize, "block", [1], [0]),
    (fl.ClipUpdate, "max_norm", [1e-9, 9e11], [0, 1e12]),
]


@pytest.mark.parametrize(("make", "setting", "inside", "outside"), ENDS)
def test_a_range_ends_where_it_says(make, setting, inside, outside):
    if make is PRIVATE:
        pytest.importorskip("dp_accounting")
    for value in inside:
        make(**{setting: value})
    for value in outside:
        with pytest.raises(fl.ConfigurationError, match=f"{setting}' must be "):
            make(**{setting: value})
