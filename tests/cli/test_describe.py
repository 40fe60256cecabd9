"""What the clients' features are like before training, against numpy on the joined rows."""

import csv
from pathlib import Path

import numpy as np
import pytest
import torch
from command_line import ADAFED, SMALL
from federations import SIZES, Blobs, Consecutive, Plain, trainer
from torch.utils.data import TensorDataset

from fl_lightning import DataError, FederatedDataModule, FederatedOrchestrator, FederationReport
from fl_lightning.callbacks.federation_report import summarize_features
from fl_lightning.functional.exact_moments import moments_of
from fl_lightning.reporting.features import FeatureSummary, draw_features

UNITS = ("age", "creatinine", "constant")


def three_clients() -> list[torch.Tensor]:
    draw = np.random.default_rng(1)
    rows = [np.c_[draw.normal(60, 9, n), draw.normal(1, 0.2, n), np.ones(n)] for n in (30, 40, 50)]
    rows[2][:, 1] *= 88.4
    rows[1][:4, 0] = np.nan
    return [torch.tensor(own, dtype=torch.float32) for own in rows]


def summary_of(rows: list[torch.Tensor]) -> FeatureSummary:
    return FeatureSummary(UNITS, ("a", "b", "c"), [len(own) for own in rows], [moments_of(own) for own in rows])


def read(path: Path) -> list[dict[str, str]]:
    with path.open() as file:
        return list(csv.DictReader(file))


def test_the_numbers_are_those_of_the_joined_rows():
    rows = three_clients()
    joined = torch.cat(rows).double().numpy()
    found = summary_of(rows).rows
    assert np.allclose([row[1] for row in found], np.nanmean(joined, 0), rtol=1e-12)
    assert np.allclose([row[2] for row in found], np.nanstd(joined, 0), rtol=1e-9)
    assert [row[3] for row in found] == pytest.approx([4 / 120, 0, 0])
    means = [np.nanmean(own.double().numpy(), 0) for own in rows]
    rest = np.concatenate([rows[0], rows[1]]).astype(float)[:, 1].mean()
    assert found[1][4:] == ["c", pytest.approx((means[2][1] - rest) / np.std(joined[:, 1]), rel=1e-6)]
    assert found[2][4:] == ["", None]  # a constant differs nowhere
    alone = FeatureSummary(("x",), ("only",), [3], [moments_of(torch.tensor([[1.0], [2.0], [3.0]]))])
    assert alone.rows[0][4:] == ["", None]
    assert "only" not in alone.text(5)


def test_the_feature_that_differs_most_comes_first_and_is_named():
    text = summary_of(three_clients()).text(2)
    assert text.splitlines()[1].split()[0] == "creatinine"
    assert "... and 1 more features" in text
    assert "The mean of 'creatinine' at client c is 2." in text
    assert "deviations above that of the others. Check its unit there" in text
    alike = [rows[:, [0, 2]] for rows in three_clients()]
    told = FeatureSummary(("age", "constant"), "abc", [30, 40, 50], [moments_of(own) for own in alike]).text(20)
    assert "Check its unit" not in told


def test_the_file_has_every_client(tmp_path):
    rows = three_clients()
    summary_of(rows).write(tmp_path / "features.csv")
    table = read(tmp_path / "features.csv")
    assert [(row["feature"], row["client"]) for row in table[:5]] == [
        *(("age", name) for name in ("all", "a", "b", "c")),
        ("creatinine", "all"),
    ]
    assert [float(row["missing"]) for row in table[:4]] == pytest.approx([4 / 120, 0, 0.1, 0])
    assert [int(row["numbers"]) for row in table[:4]] == [116, 30, 36, 50]


def binned(rows: list[torch.Tensor], least: int = 10) -> FeatureSummary:
    """Return the summary with bins, of clients named a, b and c."""
    sets = {name: TensorDataset(own, torch.zeros(len(own))) for name, own in zip("abc", rows, strict=True)}
    data = FederatedDataModule.from_clients(sets, batch_size=7)
    data.setup("fit")
    return summarize_features(data, least)


def test_bins_are_common_and_their_counts_are_numpys_and_are_drawn(tmp_path):
    rows = three_clients()
    found = binned(rows, 1)
    joined = torch.cat(rows).double().numpy()
    mean, deviation = np.nanmean(joined, 0), np.nanstd(joined, 0)
    for k in (0, 1):
        assert np.allclose(found.cuts[k], mean[k] + deviation[k] * np.linspace(-2, 2, 9), rtol=1e-6)
        for own, counts in zip(rows, found.bins, strict=True):
            numbers = own[:, k][~own[:, k].isnan()].double().numpy()
            assert list(counts[k]) == np.histogram(numbers, [-np.inf, *found.cuts[k], np.inf])[0].tolist()
    assert found.features[found.order[0]] == "channel 1"  # differs most
    assert draw_features(found, tmp_path / "features.png")
    assert (tmp_path / "features.png").stat().st_size > 5000
    assert not draw_features(summary_of(rows), tmp_path / "none.png")  # without bins


def test_no_count_of_few_rows_is_shown_nor_follows_from_the_total(tmp_path):
    rows = three_clients()
    binned(rows).write_bins(tmp_path / "histograms.csv")
    table = read(tmp_path / "histograms.csv")
    assert any(row["examples"] for row in table)
    for k in range(3):
        for client, own in zip("abc", rows, strict=True):
            mine = [row["examples"] for row in table if (row["feature"], row["client"]) == (f"channel {k}", client)]
            told = [int(count) for count in mine if count]
            rest = int((~own[:, k].isnan()).sum()) - sum(told)
            assert all(count >= 10 for count in [*told, rest or 10])


def test_zeros_and_ones_are_two_bins_and_few_ones_are_not_shown():
    rows = [torch.zeros(40, 2) for _ in range(3)]
    rows[0][:15, 0] = rows[1][:3, 0] = rows[2][:38, 0] = 1.0
    found = binned(rows)
    assert [own[0] for own in found.bins] == [(25, 15), (None, None), (None, None)]


def test_images_have_a_share_of_missing_pixels_by_colour_and_no_bins():
    images = torch.rand(5, 2, 3, 3)
    images[0, 1, 0, 0] = float("nan")
    found = FeatureSummary(("red", "blue"), ("a",), [5], [moments_of(images)]).rows
    assert [row[3] for row in found] == pytest.approx([0, 1 / 45])
    assert [list(own) for own in binned([torch.rand(20, 1, 4, 4) for _ in range(3)]).bins] == [[()], [()], [()]]


def test_a_fit_shows_it_if_asked(capsys):
    data = FederatedDataModule(Blobs(), Consecutive())
    trainer(1, FederatedOrchestrator(), FederationReport(features=True)).fit(Plain(), data)
    assert "channel 0" in capsys.readouterr().out
    assert Path("features.csv").exists()
    assert len(summarize_features(data).moments) == len(SIZES)


def test_inputs_of_different_widths_are_refused():
    def client(width: int) -> TensorDataset:
        return TensorDataset(torch.ones(10, width), torch.zeros(10, dtype=torch.int64))

    data = FederatedDataModule.from_clients({"a": client(2), "b": client(3)}, batch_size=5)
    data.setup("fit")
    with pytest.raises(DataError, match="different numbers of channels"):
        summarize_features(data)


@pytest.mark.slow
def test_the_command_shows_it_without_training(fl):
    status, text = fl("describe", "--config", ADAFED, *SMALL, "--data.partitioner=IIDPartitioner")
    assert status == 0, text
    assert "Features: runs/adafed_mnist (features.csv)" in text
    names = sorted(path.name for path in Path("runs/adafed_mnist").iterdir())
    assert names == ["features.csv", "partition.csv", "partition.png"]
