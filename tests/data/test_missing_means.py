"""Missing cells of a table become the mean over all clients, which the model fills in."""

import math

import lightning as L
import numpy as np
import pytest
import torch
from federations import same_bits, trainer, weights
from small_tables import write

import fl_lightning as fl
from fl_lightning.data.table_checks import ranges_of, sentinels

pytest.importorskip("pyarrow")
SCHEMA = """fields:
  - {name: age, type: number, missing: mean}
  - {name: admitted, type: date, since: 2020-01-01, missing: mean}
  - {name: outcome, type: string, constraints: {enum: ["no", "yes"]}}
target: outcome
"""


def tables(gaps: bool, schema: str = SCHEMA) -> fl.TableDataModule:
    """Two clients of 20 rows, some of whose numbers and dates may be missing."""
    draw = np.random.default_rng(0)
    for name in ("north", "south"):
        rows = []
        for k in range(20):
            age, day = f"{draw.normal(60, 9):.1f}", f"2021-03-{1 + k % 28:02}"
            rows.append(f"{'' if gaps and k in (3, 9) else age},{'' if gaps and k == 5 else day},{('no', 'yes')[k % 2]}")
        write(f"rows/{name}.csv", "age,admitted,outcome", *rows)
    return described(schema)


def described(schema: str) -> fl.TableDataModule:
    write("schema.yaml", schema)
    return fl.TableDataModule("rows", schema="schema.yaml", batch_size=4, test_share=0, standardize=False)


def task(scaled: bool = True) -> L.LightningModule:
    L.seed_everything(0, verbose=False)
    network = fl.MLP(2, [4], 2)
    return fl.ClassificationTask(fl.Standardized(network, 2) if scaled else network, num_classes=2)


def fit(module: L.LightningModule, data: fl.TableDataModule) -> L.LightningModule:
    federation = fl.FederatedOrchestrator(local=fl.LocalTraining(max_epochs=2))
    trainer(2, federation, limit_val_batches=0).fit(module, fl.FederatedDataModule(data, fl.DomainPartitioner()))
    return module


def test_a_missing_number_stays_open_in_the_table_and_becomes_the_mean_in_the_model():
    data = tables(gaps=True)
    data.setup("fit")
    rows = data.train_set.tensors[0]
    assert rows.isnan().sum(0).tolist() == [4, 2]
    module = fit(task(), tables(gaps=True))
    assert torch.allclose(module.network.mean, rows.nanmean(0), rtol=1e-6)
    filled = torch.where(rows.isnan(), module.network.mean, rows)
    module.eval()
    assert torch.allclose(module.network(rows), module.network(filled), atol=1e-6)
    assert all(bool(torch.isfinite(tensor).all()) for tensor in weights(module).values())


def test_without_gaps_it_is_an_ordinary_table():
    plain = SCHEMA.replace(", missing: mean", "")
    assert same_bits(*(weights(fit(task(), tables(False, schema))) for schema in (SCHEMA, plain)))


def test_a_model_that_cannot_fill_them_in_is_refused():
    with pytest.raises(
        fl.ConfigurationError, match=r"Missing values of 'age' become the mean or .* the model has no such part"
    ):
        fit(task(scaled=False), tables(gaps=True))


CATEGORIES = """fields:
  - {name: stage, type: string, constraints: {enum: [I, II, III]}, missing: most_frequent}
  - {name: smoker, type: boolean, missing: most_frequent}
  - {name: age, type: number}
  - {name: outcome, type: string, constraints: {enum: ["no", "yes"]}}
target: outcome
"""


def categorical(stages: dict[str, list[str]], smokers: dict[str, list[str]], min_count: int = 1) -> fl.Standardized:
    """Return the scale of a fit on files with these cells."""
    for name, cells in stages.items():
        pairs = enumerate(zip(cells, smokers[name], strict=True))
        rows = [f"{stage},{smoker},{60 + k},{('no', 'yes')[k % 2]}" for k, (stage, smoker) in pairs]
        write(f"rows/{name}.csv", "stage,smoker,age,outcome", *rows)
    L.seed_everything(0, verbose=False)
    module = fl.ClassificationTask(fl.Standardized(fl.MLP(5, [4], 2), 5, min_count), num_classes=2)
    fit(module, described(CATEGORIES))
    assert all(bool(torch.isfinite(tensor).all()) for tensor in weights(module).values())
    return module.network


def test_a_missing_category_becomes_the_most_frequent_one_of_all_clients():
    """It is not the most frequent one of any client."""
    stages = {"a": ["I"] * 5 + ["II"] * 4 + [""], "b": ["III"] * 5 + ["II"] * 4 + [""]}
    smokers = {"a": ["yes"] * 4 + ["no"] * 5 + [""], "b": ["yes"] * 6 + ["no"] * 3 + [""]}
    net = categorical(stages, smokers)
    assert net.fill.tolist() == [0, 1, 0, 1, pytest.approx(64.5)]
    assert net.mean.tolist() == pytest.approx([5 / 18, 8 / 18, 5 / 18, 10 / 18, 64.5])
    net.eval()
    gap, filled = torch.tensor([[math.nan] * 4 + [70.0], [0.0, 1.0, 0.0, 1.0, 70.0]])
    assert torch.equal(net(gap[None]), net(filled[None]))


def test_of_equally_frequent_categories_it_is_the_first_of_the_schema():
    net = categorical({"b": ["III", "II"] * 3 + [""], "a": ["I"] * 2}, {"b": ["yes", "no"] * 3 + [""], "a": ["yes", "no"]})
    assert net.fill.tolist()[:4] == [0, 1, 0, 0]


def test_categories_with_few_rows_do_not_count():
    stages = {"a": ["I"] * 9 + ["II"] * 3 + ["III"] * 4, "b": ["III"] * 4 + ["II"] * 9 + ["I"] * 3}
    smokers = {name: ["yes", "no"] * 8 for name in "ab"}
    with pytest.warns(UserWarning, match=r"These inputs are not scaled, because no client tells their sums: stage=III\. They"):
        net = categorical(stages | {"c": ["II", "III"] * 2}, smokers | {"c": ["yes"] * 4}, min_count=5)
    assert net.fill.tolist()[:3] == [1, 0, 0]  # 9 and 9 are told, 7 times II and 10 times III are not
    assert (net.mean[2], net.std[2]) == (0, 1)
    with pytest.raises(fl.DataError, match=r"No client tells how many rows have stage=I, stage=II, stage=III, so the most"):
        categorical(stages, smokers, min_count=17)


def test_ranges_leave_out_missing_numbers():
    rows = np.array([[1.0, math.nan, -9999.0], [3.0, math.nan, 1.0], [math.nan, math.nan, 2.0]])
    assert ranges_of(rows) == [(1.0, 3.0, 2.0, 1.0), (0.0, 0.0, 0.0, 0.0), ranges_of(rows[:, 2:])[0]]
    assert "-9999 in 1 of 3 rows" in sentinels(("a", "b", "c"), rows)[0]
