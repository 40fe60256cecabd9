"""Evaluation at the clients: against models evaluated by hand, on files, in the log."""

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from engine_runs import variant
from federations import CLASSES, Blobs, Consecutive, Plain, client_scores, every_round, trainer
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from torch.nn import functional as F
from torchmetrics.classification import MulticlassAccuracy
from torchmetrics.functional.classification import multiclass_accuracy

import fl_lightning as fl
from fl_lightning.options.client_evaluation.tables import comparison_table, spread_of_clients

SIZES = (10, 24, 16)


def run(
    rounds: int = 3, evaluation: fl.ClientEvaluation | None = None, *more: Any, module: Any = Plain, **settings: Any
) -> Any:
    torch.manual_seed(4)
    module = module()
    data = fl.FederatedDataModule(
        Blobs(n=sum(SIZES), shuffle=False), Consecutive(SIZES), client_test=0.25, **settings.pop("data", {})
    )
    settings.setdefault("local", fl.LocalTraining(max_epochs=2))
    flags, path = settings.pop("flags", {}), settings.pop("ckpt_path", None)
    federation = fl.FederatedOrchestrator(client_evaluation=evaluation or fl.ClientEvaluation(1, "val_acc"), **settings)
    fitted = trainer(rounds, federation, *more, **flags)
    fitted.fit(module, data, ckpt_path=path)
    return module, data, fitted, client_scores(federation)


def accuracies(module: Plain, data: fl.FederatedDataModule) -> list[float]:
    x, y = data.datamodule.train
    return [float(multiclass_accuracy(module(x[own]), y[own], CLASSES, average="micro")) for own in data.splits.test]


class Watch(fl.FederationCallback):
    """The global model after each round, on each client's test part, by hand; and the steps of who took part."""

    def __init__(self) -> None:
        self.seen: list[list[float]] = []
        self.steps: dict[int, list[tuple[int, int]]] = {}

    def on_client_end(self, trainer: Any, pl_module: Any, update: Any) -> None:
        self.steps.setdefault(update.client, []).append((update.round_idx, update.num_steps))

    def on_aggregated(self, trainer: Any, pl_module: Any, updates: Any) -> None:
        self.seen.append(accuracies(pl_module, trainer.datamodule))


def test_every_client_every_round_whoever_took_part():
    """Also by a metric of one's own; the mean by size is the accuracy on the union."""
    watch, ours = Watch(), MulticlassAccuracy(CLASSES, average="micro")
    _, data, fitted, scores = run(3, fl.ClientEvaluation(1, ours), watch, clients_per_round=2, data={"server_set": "clients"})
    assert sorted(scores) == [0, 1, 2]
    for round_idx, values in scores.items():
        assert values.tolist() == pytest.approx(watch.seen[round_idx])
    sizes = np.array([2, 6, 4])
    assert data.splits.test.sizes.tolist() == sizes.tolist()
    last = np.array(watch.seen[-1])
    logged = {name: float(fitted.callback_metrics[f"federation/client_{name}"]) for name in ("mean", "worst", "p10", "std")}
    expected = {"mean": (last * sizes).sum() / 12, "worst": last.min(), "p10": np.percentile(last, 10), "std": last.std()}
    assert logged == pytest.approx(expected, abs=1e-6)
    assert logged["mean"] == pytest.approx(float(fitted.callback_metrics["val_acc"]))


def log_rank(self: Any, batch: Any, batch_idx: int) -> None:
    """Has no value at the client of 6 test examples, as rank statistics have none without both classes."""
    Plain.validation_step(self, batch, batch_idx)
    self.log("rank", float("nan") if len(batch[1]) == 6 else float(batch[1].float().mean()), batch_size=len(batch[1]))


def test_a_client_without_a_value_is_left_out_and_named():
    evaluation = fl.ClientEvaluation(1, "rank", mode="max", compare_alone=True)
    with pytest.warns(UserWarning, match=r"'rank' has no value \(NaN\) on the test examples of client 1. Means") as told:
        _, data, fitted, _ = run(2, evaluation, module=variant(validation_step=log_rank), local=fl.LocalTraining())
    assert sum("has no value" in str(one.message) for one in told) == 1
    labels = [data.datamodule.train[1][data.splits.test[k]].double().mean() for k in (0, 2)]
    assert float(fitted.callback_metrics["federation/client_mean"]) == pytest.approx(float(2 * labels[0] + 4 * labels[1]) / 6)
    assert float(fitted.callback_metrics["federation/client_worst"]) == pytest.approx(float(min(labels)))
    rows = rows_of("client_comparison.csv")
    assert [row["global"] for row in rows][1] == "nan"
    assert float(rows[3]["global"]) == pytest.approx(float(2 * labels[0] + 4 * labels[1]) / 6)


def test_evaluation_changes_nothing():
    one, *_ = run(5, fl.ClientEvaluation(0))
    other, _, _, scores = run(5, fl.ClientEvaluation(2, "val_acc", personal_epochs=1, compare_alone=True))
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))
    assert sorted(scores) == [1, 3, 4]  # every second round and the last


def by_hand(module: Plain, data: fl.FederatedDataModule, client: int, epochs: int, lr: float = 0.1) -> Plain:
    """Plain SGD in the order of the examples, batches of 5."""
    x, y = (tensor[data.indices[client]] for tensor in data.datamodule.train)
    own = Plain()
    own.load_state_dict(module.state_dict())
    optimizer = torch.optim.SGD(own.parameters(), lr=lr)
    for _ in range(epochs):
        for begin in range(0, len(y), 5):
            optimizer.zero_grad()
            F.cross_entropy(own(x[begin : begin + 5]), y[begin : begin + 5]).backward()
            optimizer.step()
    return own


def rows_of(path: str) -> list[dict[str, str]]:
    return list(csv.DictReader(Path(path).read_text().splitlines()))


def first_model() -> Plain:
    torch.manual_seed(4)
    return Plain()


def test_the_table_of_the_thesis_by_hand(capsys):
    """Local only: the first model, as many epochs; personalised: one epoch more from the last global one."""
    module, data, _, _ = run(3, fl.ClientEvaluation(0, "val_acc", personal_epochs=1, compare_alone=True))
    rows = rows_of("client_comparison.csv")
    assert list(rows[0]) == ["client", "test examples", "local only", "global", "personalised", "gain"]
    alone = [accuracies(by_hand(first_model(), data, k, 6), data)[k] for k in range(3)]
    personal = [accuracies(by_hand(module, data, k, 1), data)[k] for k in range(3)]
    gains = np.subtract(personal, alone)
    for column, values in (("local only", alone), ("global", accuracies(module, data)), ("personalised", personal)):
        assert [float(row[column]) for row in rows[:3]] == pytest.approx(values)
    assert [float(row["gain"]) for row in rows[:3]] == pytest.approx(gains)
    assert [rows[3]["client"], rows[3]["test examples"]] == ["all", "12"]
    assert float(rows[3]["gain"]) == pytest.approx(float(np.dot(gains, [2, 6, 4])) / 12)
    printed = capsys.readouterr().out
    assert "val_acc on the clients' own test examples, after round 2:" in printed
    assert "local only" in printed
    by_round = rows_of("client_evaluation.csv")
    assert [float(row["round 2"]) for row in by_round] == pytest.approx(accuracies(module, data))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "decay"),
    [
        ({"clients_per_round": 2, "local": fl.LocalTraining(max_epochs=1, lr_decay=0.5, proximal_mu=0.3)}, 0.5),
        ({"route": fl.RingFed(2, 0.8)}, 1.0),
        ({"route": fl.WarmStart(1, fl.RingFed(2, 0.8))}, 1.0),
        ({"local": fl.LocalTraining(max_epochs=4, partial_work=fl.PartialWork(0.5))}, 1.0),
    ],
    ids=["cohorts of two", "periods", "another route later", "fewer epochs"],
)
def test_alone_takes_the_steps_that_it_took_in_the_federation(settings, decay):
    """Who took part in fewer rounds trains less by itself, too; decay by the round, no proximal term."""
    watch = Watch()
    _, data, _, _ = run(4, fl.ClientEvaluation(0, "val_acc", compare_alone=True), watch, **settings)
    rows = rows_of("client_comparison.csv")
    for client in range(3):
        own = first_model()
        batches = -(-data.num_examples(client) // 5)
        for round_idx, steps in watch.steps.get(client, ()):
            assert steps % batches == 0
            own = by_hand(own, data, client, steps // batches, 0.1 * decay**round_idx)
        assert float(rows[client]["local only"]) == pytest.approx(accuracies(own, data)[client])
    turns = [[(r, steps // -(-data.num_examples(k) // 5)) for r, steps in watch.steps.get(k, ())] for k in range(3)]
    assert turns != [[(r, 2) for r in range(4)]] * 3


def test_the_gain_in_a_loss_is_above_zero_if_it_falls():
    losses = {"local only": torch.tensor([2.0]), "global": torch.tensor([0.5])}
    _, rows = comparison_table(["a"], torch.tensor([3]), losses, higher_is_better=False)
    assert rows[0] == ["a", 3, 2.0, 0.5, 1.5]


@given(arrays(np.float64, 7, elements=st.floats(-5, 5)), arrays(np.int64, 7, elements=st.integers(1, 50)), st.booleans())
def test_spread_against_numpy(values, sizes, higher):
    ours = spread_of_clients(torch.from_numpy(values), torch.from_numpy(sizes), higher)
    assert ours["client_mean"] == pytest.approx(np.average(values, weights=sizes), abs=1e-9)
    assert ours["client_worst"] == (values.min() if higher else values.max())
    assert ours["client_p10"] == pytest.approx(np.percentile(values, 10 if higher else 90), abs=1e-9)
    assert ours["client_std"] == pytest.approx(values.std(), abs=1e-9)


def test_a_run_that_is_over_makes_its_tables_again(tmp_path):
    """A kill during the last comparison must not lose it."""
    evaluation = fl.ClientEvaluation(1, "val_acc", personal_epochs=1, compare_alone=True)
    run(2, evaluation, every_round(tmp_path), flags={"enable_checkpointing": True})
    tables = {name: Path(f"client_{name}.csv").read_text() for name in ("evaluation", "comparison")}
    for name in tables:
        Path(f"client_{name}.csv").unlink()
    run(2, evaluation, ckpt_path=str(tmp_path / "last.ckpt"))
    assert {name: Path(f"client_{name}.csv").read_text() for name in tables} == tables


def test_a_comparison_needs_the_first_model(tmp_path):
    run(1, fl.ClientEvaluation(), every_round(tmp_path), flags={"enable_checkpointing": True})
    for rounds in (1, 2):
        with pytest.raises(fl.CheckpointError, match=r"needs the initial model of the federation, .* Set it to false"):
            run(rounds, fl.ClientEvaluation(0, "val_acc", compare_alone=True), ckpt_path=str(tmp_path / "last.ckpt"))


def test_a_debugging_run_leaves_nothing():
    run(3, fl.ClientEvaluation(1, "val_acc", personal_epochs=3, compare_alone=True), flags={"fast_dev_run": True})
    assert not list(Path().glob("*.csv"))
