"""Missing cells of a table become the mean over all clients, which the model fills in."""

from __future__ import annotations

import csv
import math
from pathlib import Path

import lightning as L
import numpy as np
import pytest
import torch
from federations import same_bits, trainer, weights

from fl_lightning import (
    MLP,
    ClassificationTask,
    ConfigurationError,
    DataError,
    DomainPartitioner,
    FederatedDataModule,
    FederatedOrchestrator,
    LocalTraining,
    Standardized,
    TableDataModule,
)
from fl_lightning.data.ranges import ranges_of, sentinels

pytest.importorskip("pyarrow")
SCHEMA = """fields:
  - {name: age, type: number, missing: mean}
  - {name: admitted, type: date, since: 2020-01-01, missing: mean}
  - {name: outcome, type: string, constraints: {enum: [no, yes]}}
target: outcome
"""


def write(folder: Path, gaps: bool) -> None:
    draw = np.random.default_rng(0)
    folder.mkdir()
    for name in ("north", "south"):
        with (folder / f"{name}.csv").open("w", newline="") as file:
            rows = csv.writer(file)
            rows.writerow(["age", "admitted", "outcome"])
            for k in range(20):
                age, day = f"{draw.normal(60, 9):.1f}", f"2021-03-{1 + k % 28:02}"
                rows.writerow(["" if gaps and k in (3, 9) else age, "" if gaps and k == 5 else day, ("no", "yes")[k % 2]])


def tables(folder: str, **more: object) -> TableDataModule:
    Path("schema.yaml").write_text(SCHEMA.replace("[no, yes]", '["no", "yes"]'))
    settings = {"schema": "schema.yaml", "test_share": 0, "standardize": False, "batch_size": 4}
    return TableDataModule(folder, **settings | more)


def task(scaled: bool = True) -> L.LightningModule:
    L.seed_everything(0, verbose=False)
    network = MLP(2, [4], 2)
    return ClassificationTask(Standardized(network, 2) if scaled else network, num_classes=2)


def fit(module: L.LightningModule, data: TableDataModule) -> L.LightningModule:
    federation = FederatedOrchestrator(local=LocalTraining(max_epochs=2))
    trainer(2, federation, limit_val_batches=0).fit(module, FederatedDataModule(data, DomainPartitioner()))
    return module


def test_a_missing_number_stays_open_in_the_table_and_becomes_the_mean_in_the_model(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(Path("gaps"), gaps=True)
    data = tables("gaps")
    data.setup("fit")
    rows = data.train_set.tensors[0]
    assert rows.isnan().sum(0).tolist() == [4, 2]
    module = fit(task(), tables("gaps"))
    assert torch.allclose(module.network.mean, rows.nanmean(0), rtol=1e-6)
    filled = torch.where(rows.isnan(), module.network.mean, rows)
    module.eval()
    assert torch.allclose(module.network(rows), module.network(filled), atol=1e-6)
    assert all(bool(torch.isfinite(tensor).all()) for tensor in weights(module).values())


def test_without_gaps_it_is_an_ordinary_table(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(Path("whole"), gaps=False)
    one = fit(task(), tables("whole"))
    plain = SCHEMA.replace(", missing: mean", "").replace("[no, yes]", '["no", "yes"]')
    Path("plain.yaml").write_text(plain)
    assert same_bits(weights(one), weights(fit(task(), tables("whole", schema="plain.yaml"))))


def test_a_model_that_cannot_fill_them_in_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(Path("gaps"), gaps=True)
    with pytest.raises(ConfigurationError, match=r"Missing values of 'age' become the mean .* the model has no such part"):
        fit(task(scaled=False), tables("gaps"))
    with pytest.raises(ConfigurationError, match=r"'data\.datamodule\.standardize' is true, but missing values of 'age'"):
        tables("gaps", standardize=True)


@pytest.mark.parametrize(
    ("missing", "message"), [("{mean: 3}", "is not supported. Write refuse"), ("mean", "categories have no mean")]
)
def test_wrong_means(missing, message, tmp_path):
    (tmp_path / "s.yaml").write_text(
        f"fields:\n  - {{name: a, type: string, constraints: {{enum: [x, y]}}, missing: {missing}}}\n"
    )
    with pytest.raises(DataError, match=message):
        TableDataModule("t.csv", schema=str(tmp_path / "s.yaml"), standardize=False)


def test_ranges_leave_out_missing_numbers():
    rows = np.array([[1.0, math.nan, -9999.0], [3.0, math.nan, 1.0], [math.nan, math.nan, 2.0]])
    assert ranges_of(rows) == [(1.0, 3.0, 2.0, 1.0), (0.0, 0.0, 0.0, 0.0), ranges_of(rows[:, 2:])[0]]
    assert "-9999 in 1 of 3 rows" in sentinels(("a", "b", "c"), rows)[0]
