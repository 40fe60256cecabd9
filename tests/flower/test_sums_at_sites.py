"""What hospitals tell of their inputs before a fit: sums and bins, none of which is about few patients."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from asked_site import opened, told
from hospitals_over_bytes import asking, checked, config, over_bytes, start_again, start_hospitals, write_site
from sites_over_bytes import POOL, SERVERS, TOLD, refused, same_bits, simulate, start_site
from small_images import paint
from three_hospitals import NAMES, SCHEMA, clean, expected

from fl_lightning.cli.federation_cli import main
from fl_lightning.data.schema_file import read_schema
from fl_lightning.flower.site.data import SiteData
from fl_lightning.flower.site.policy import Policy
from fl_lightning.flower.site.settings import read_settings
from fl_lightning.functional.exact_moments import Moments, moments_of

TELLING = {"statistics": True, "histograms": True, "min_count": 5}
FEATURES = {"partition_report": {"features": True, "min_count": 5}}


@pytest.fixture
def hospitals() -> dict[str, str]:
    return start_hospitals()


def test_counts_of_few_patients_do_not_leave_a_site_and_the_rest_fills_in_what_is_missing(hospitals):
    """West has two diverse patients, and hospitals of 30 rows have rare stages."""
    schema = SCHEMA.replace("missing: indicator}", "missing: most_frequent}")
    Path("schema.yaml").write_text(schema)
    start_again(hospitals, schema, statistics=True, min_rows=5)
    found, simulated = config(None, 13, scaled=True), config(hospitals, 13, scaled=True)
    for one in (found, simulated):
        one["model"]["init_args"]["network"]["init_args"]["min_count"] = 5
    real = over_bytes(found)
    assert same_bits(simulate(simulated), real)
    frame = expected(clean())[0]
    stages = [f"stage={stage}" for stage in ("I", "II", "III", "IV")]
    known = dict.fromkeys(stages, 0)
    for k, name in enumerate(NAMES):
        rows, sums = frame[30 * k : 30 * k + 30], Moments.of_texts(TOLD[name].moments)
        for place, column in enumerate(read_schema("schema.yaml").feature_names):
            ones = rows[column].sum()
            if set(rows[column]) <= {0.0, 1.0} and sums.counts[place]:
                assert 5 <= ones == sums.totals[place] / 2**172
            if column in stages and sums.counts[place]:
                known[column] += int(ones)
    assert Moments.of_texts(TOLD["west"].moments).counts[4:7].count(0) >= 2  # one gap would follow from the total
    fill = next(tensor for name, tensor in real.items() if name.endswith("network.fill"))
    assert fill[7:11].tolist() == [float(stage == max(stages, key=known.__getitem__)) for stage in stages]


def test_sums_over_few_images_do_not_leave_a_site():
    """An image has more numbers than 'min_count'."""
    for label in ("cat", "dog"):
        paint(Path("few") / label, 4)
    Path("data.yaml").write_text("datamodule: {class_path: ImageFolderDataModule, init_args: {root: few}}\ndevice: cpu\n")
    data = SiteData(read_settings(Path("data.yaml")))
    assert data.info("few", Policy(statistics=True), statistics=True).moments is None
    assert data.info("few", Policy(statistics=True, min_rows=8), statistics=True).moments is not None


def test_the_check_names_the_columns_whose_sums_stay(hospitals):
    passed, text = checked(write_site("west", hospitals["west"], limits={"statistics": True, "min_count": 3}))
    assert passed, text
    assert re.search(r"and of their squares, but not those of [^;]*sex=male, sex=diverse[^;]*, which would tell of few", text)


def bins_in(folder: str) -> list[str]:
    rows = Path(folder, "histograms.csv").read_text().splitlines()
    return [row for row in rows if not row.startswith("admitted")]  # it has no range, and so no common bins at sites


@pytest.mark.slow
def test_sites_that_consent_tell_the_bins_of_the_simulation_once(hospitals):
    """A server could move the borders of the bins, or see which of them a new row is in."""
    start_again(hospitals, **TELLING)
    over_bytes(config(**FEATURES))
    simulate(config(hospitals, **FEATURES))
    assert bins_in("real") == bins_in("simulated")
    ages = expected(clean())[0]["age"].to_numpy().reshape(3, 30)
    for own, name in zip(ages, NAMES, strict=True):
        counts = np.histogram(own.astype(np.float32), np.linspace(0, 120, 11))[0]
        bins = TOLD[name].histograms[0]
        assert all(n in (-1, count) for n, count in zip(bins, counts, strict=True))
        assert all(n == -1 or n >= 5 for n in bins)
        assert sum(count for n, count in zip(bins, counts, strict=True) if n == -1) not in range(1, 5)
    assert Path("real/features.png").exists()


def test_bins_are_told_once(hospitals):
    start_again(hospitals, **TELLING)
    assert not told(opened(SERVERS["north"].answer(asking("", histograms=True))))
    write_site("north", hospitals["north"], SCHEMA.replace("maximum: 120", "maximum: 121"), limits={"histograms": True})
    start_site(Path(), "north")
    reply = opened(SERVERS["north"].answer(asking("", histograms=True)))
    assert "have changed since it told the counts of its bins" in told(reply)


@pytest.mark.slow
def test_sites_tell_no_bins_unless_their_policy_says_so(hospitals):
    start_again(hospitals, **TELLING | {"histograms": False})
    over_bytes(config(**FEATURES))
    assert all(info.histograms is None and info.moments is not None for info in TOLD.values())
    assert not any(row.startswith("age,") for row in bins_in("real"))
    start_again(hospitals, **TELLING)
    over_bytes(config(), "again")  # a server that does not ask learns nothing
    assert all(info.histograms is None and info.moments is None for info in TOLD.values())
    data = SiteData(read_settings(Path("north/data.yaml")))
    assert data.info("north", Policy(histograms=True, update={"noise": {"least": 1.0}}), histograms=True).histograms is None
    assert data.info("north", Policy(histograms=True, min_rows=31), histograms=True).histograms is None


def test_persons_count_and_not_their_rows(hospitals, monkeypatch):
    """Ten rows of a category may be those of one patient."""
    rows = Path("exports/north.csv").read_text().splitlines()
    visits = [f"{row},p{k // 3}" for k, row in enumerate(rows[1:])]
    Path("visits.csv").write_text("\n".join([rows[0] + ",patient", *visits]) + "\n")
    data = SiteData(read_settings(write_site("north", "visits.csv", own={"person_column": "patient"})))
    names = read_schema("schema.yaml").feature_names
    for least in (2, 4):
        sums = data.info("north", Policy(statistics=True, min_rows=least), statistics=True).moments
        for k, column in enumerate(names):
            ones = expected(clean())[0][column][:30].sum()
            assert column[:3] not in ("sex", "sta") or sums[0][k] == "0" or ones >= 3 * least
    assert data.info("north", Policy(statistics=True, min_rows=11), statistics=True).moments is None
    assert data.info("north", Policy(histograms=True, min_rows=11), histograms=True).histograms is None
    seen = []
    noisy = lambda data, client, epsilon, draw: seen.append(epsilon) or moments_of(torch.ones(1, 1))  # noqa: E731
    monkeypatch.setattr("fl_lightning.flower.site.data.noisy_moments", noisy)
    data.info("north", Policy(statistics=True, statistics_epsilon=6.0), statistics=True)
    assert seen == [2.0]


@pytest.mark.slow
def test_a_site_that_demands_noise_tells_the_same_noisy_sums_to_everyone(hospitals):
    """The mean of several answers would have less noise."""
    start_again(hospitals, statistics=True, min_rows=5, statistics_epsilon=20.0)
    over_bytes(config(scaled=True))
    first = {name: TOLD[name].moments for name in NAMES}
    start_site(Path(), "north")
    over_bytes(config(scaled=True), "again")
    assert {name: TOLD[name].moments for name in NAMES} == first
    assert SERVERS["north"]._description.summand(SERVERS["north"]._data).texts() == first["north"]  # its part under masks
    exact = expected(clean())[0].to_numpy().reshape(3, 30, -1)
    for own, name in zip(exact, NAMES, strict=True):
        sums = Moments.of_texts(first[name])
        assert sums.counts == (30,) * 13 + (0,)
        assert not np.isclose(sums.means()[:4], own.mean(0)[:4]).all()
        assert np.all(np.abs(np.array(sums.means())[[0, 1, 3]] - own.mean(0)[[0, 1, 3]]) < [60, 2, 1000])
    passed, text = checked(Path("north/data.yaml"))
    assert passed, text
    assert "sums with noise (epsilon 20) of its inputs and of their squares, but not those of admitted, which have no" in text
    rows = Path("exports/north.csv").read_text().splitlines()
    Path("exports/north.csv").write_text("\n".join(rows[:-1]) + "\n")
    start_site(Path(), "north")
    said = refused(config(scaled=True), "changed", fit=over_bytes)
    assert "have changed since it told the sums of its inputs" in said


def test_a_report_about_inputs_is_refused_beside_privacy(hospitals):
    found = config(**FEATURES)
    privacy = {"max_norm": 1.0, "noise_multiplier": 1.0, "noise": "local"}
    found["federation"]["transforms"] = [{"class_path": "ClientPrivacy", "init_args": privacy}]
    said = refused(found, fit=over_bytes)
    assert "'partition_report.features' reads sums over the clients' inputs, which get no noise, but ClientPrivacy" in said
    assert not TOLD


def test_describe_says_how_to_ask_sites(hospitals, capsys):
    Path("config.yaml").write_text(yaml.safe_dump(config()))
    with pytest.raises(SystemExit):
        main(["describe", "--config", "config.yaml", *POOL])
    assert "To see what they tell, set 'partition_report.features' to true" in " ".join(capsys.readouterr().err.split())
