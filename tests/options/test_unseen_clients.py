"""Clients that never train: evaluated by hand, without influence, and left out of everything that counts clients."""

import csv
from pathlib import Path
from typing import Any

import pytest
import torch
from federations import CLASSES, Blobs, Cohorts, Consecutive, Plain, blobs, ready, same_bits, trainer, weights
from torch.utils.data import Subset, TensorDataset
from torchmetrics.functional.classification import multiclass_accuracy

import fl_lightning as fl
from fl_lightning.data.client_splits import chosen
from fl_lightning.options.client_evaluation.tables import spread_of_clients

MORE = (7, 20, 13, 9, 15)
"""Clients of which two are held out."""


def sites(**changed: Any) -> dict[str, TensorDataset]:
    own = {name: blobs(n, seed) for name, n, seed in zip("abcde", MORE, range(10, 15), strict=True)}
    return {name: TensorDataset(*data) for name, data in (own | changed).items()}


def data_of(clients: dict[str, TensorDataset], **settings: Any) -> fl.FederatedDataModule:
    return fl.FederatedDataModule.from_clients(clients, val=TensorDataset(*blobs(61, 2)), batch_size=5, **settings)


def fit(data: fl.FederatedDataModule, rounds: int = 2, *more: Any, ckpt_path: str | None = None, **settings: Any) -> Any:
    torch.manual_seed(4)
    module = Plain()
    settings.setdefault("client_evaluation", fl.ClientEvaluation(1, "val_acc"))
    settings.setdefault("local", fl.LocalTraining(max_epochs=2))
    flags = settings.pop("flags", {})
    fitted = trainer(rounds, fl.FederatedOrchestrator(**settings), *more, **flags)
    fitted.fit(module, data, ckpt_path=ckpt_path)
    return module, fitted


def accuracy(module: Plain, dataset: TensorDataset) -> float:
    x, y = dataset.tensors
    return float(multiclass_accuracy(module(x), y, CLASSES, average="micro"))


@pytest.mark.parametrize("share", [0.0, 0.25])
def test_held_out_clients_are_evaluated_on_all_their_examples_by_hand(share, capsys):
    """Without test parts also on those that they would have held back for validation."""
    module, fitted = fit(data_of(sites(), held_out_clients=["b", "d"], client_validation=share))
    values = torch.tensor([accuracy(module, sites()[name]) for name in "bd"], dtype=torch.float64)
    expected = spread_of_clients(values, torch.tensor([20, 9]), True, "unseen")
    found = {name: float(fitted.callback_metrics[f"federation/{name}"]) for name in expected}
    assert found == pytest.approx(expected)
    assert expected["unseen_mean"] == pytest.approx((20 * values[0] + 9 * values[1]) / 29)
    assert expected["unseen_worst"] == pytest.approx(float(values.min()))
    assert "federation/client_mean" not in fitted.callback_metrics  # they have no test parts
    rows = list(csv.DictReader(Path("unseen_clients.csv").read_text().splitlines()))
    assert [row["client"] for row in rows] == ["b", "d"]
    assert [float(row["round 1"]) for row in rows] == pytest.approx(values.tolist())
    assert "clients that never trained" in capsys.readouterr().out


def test_with_test_parts_they_are_tested_like_the_others_and_beside_them():
    data = fl.FederatedDataModule(
        Blobs(sum(MORE), shuffle=False), Consecutive(MORE), client_test=0.25, held_out_clients=["1", "4"]
    )
    module, fitted = fit(data)
    # the same division without held-out clients
    whole = ready(fl.FederatedDataModule(Blobs(sum(MORE), shuffle=False), Consecutive(MORE), client_test=0.25))
    x, y = whole.datamodule.train

    def spread(clients: list[int], whose: str) -> dict[str, float]:
        tests = [whole.splits.test[k] for k in clients]
        values = [accuracy(module, TensorDataset(x[own], y[own])) for own in tests]
        sizes = torch.tensor([len(own) for own in tests])
        return spread_of_clients(torch.tensor(values, dtype=torch.float64), sizes, True, whose)

    expected = spread([0, 2, 3], "client") | spread([1, 4], "unseen")
    assert {name: float(fitted.callback_metrics[f"federation/{name}"]) for name in expected} == pytest.approx(expected)
    assert [data.client_name(k) for k in range(5)] == ["0", "2", "3", "1", "4"]
    assert data.num_clients == 3


def test_own_test_sets_of_held_out_clients_are_used_and_the_server_does_not_get_them():
    tests = {name: TensorDataset(*blobs(n, 30 + n)) for name, n in zip("abcde", (4, 5, 6, 7, 8), strict=True)}
    data = fl.FederatedDataModule.from_clients(sites(), val=tests, test=tests, batch_size=5, held_out_clients=["a", "c"])
    module, fitted = fit(data)
    values = {name: accuracy(module, tests[name]) for name in "abcde"}
    assert float(fitted.callback_metrics["federation/unseen_mean"]) == pytest.approx((4 * values["a"] + 6 * values["c"]) / 10)
    assert float(fitted.callback_metrics["federation/client_worst"]) == pytest.approx(min(values[name] for name in "bde"))
    server = (5 * values["b"] + 7 * values["d"] + 8 * values["e"]) / 20
    assert float(fitted.callback_metrics["val_acc"]) == pytest.approx(server)


SETTINGS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "parts": ({"client_validation": 0.25}, {}),
    "parts and scaffold": ({"client_validation": 0.25}, {"strategy": fl.Scaffold()}),
    "parts and fedloss": ({"client_validation": 0.25}, {"strategy": fl.FedLoss("val_loss")}),
    "none": ({}, {}),
    "rebalancing": ({"rebalancing": fl.LabelAveraging()}, {}),
    "attackers": ({}, {"attackers": fl.Attackers(wrong_labels={1: 0.5}, clients=0.4, labels=fl.RandomLabels())}),
    "availability": ({}, {"availability": fl.Availability(drop_out=0.3, slow=0.4, slowness=3)}),
    "partial work": ({}, {"local": fl.LocalTraining(max_epochs=3, partial_work=fl.PartialWork(0.6))}),
    "private steps": ({}, {"local": fl.LocalTraining(privacy=fl.ExamplePrivacy(1.0, 1.0, noise_seed=2))}),
}
"""Settings of the data and of the federation that draw for each client, or depend on the number of clients."""


class Read(Subset[Any]):
    """Is read example by example."""

    def __init__(self, of: TensorDataset) -> None:
        super().__init__(of, range(len(of)))


@pytest.mark.parametrize(
    "name", ["parts", "parts and scaffold", *(pytest.param(n, marks=pytest.mark.slow) for n in [*SETTINGS][2:])]
)
def test_the_model_is_that_of_a_run_without_these_clients(name):
    """Each client's own parts are drawn with its number, which the others keep if the last ones are held out."""
    of_data, federation = SETTINGS[name]
    clients = {site: Read(own) if name == "rebalancing" else own for site, own in sites().items()}
    held_out = "de" if name.startswith("parts") else "bd"
    few = {site: own for site, own in clients.items() if site not in held_out}
    one, _ = fit(data_of(clients, held_out_clients=[*held_out], **of_data), clients_per_round=0.67, **federation)
    other, _ = fit(data_of(few, **of_data), clients_per_round=0.67, client_evaluation=fl.ClientEvaluation(), **federation)
    assert same_bits(weights(one), weights(other))


def test_a_class_that_only_a_held_out_client_has_is_no_class():
    more = sites(b=(blobs(20, 9)[0], torch.arange(20) % 5))
    data = ready(data_of(more, held_out_clients=["b"], rebalancing=fl.LabelAveraging()))
    assert data.client_datasets.num_classes() == CLASSES
    rows = torch.stack([torch.bincount(more[name].tensors[1], minlength=CLASSES) for name in "acde"])
    assert torch.equal(data.label_counts(), rows)


def test_the_examples_of_a_held_out_client_have_no_influence():
    """Nor on the statistics that scale the inputs."""
    x, y = blobs(20, 99)
    ends = []
    for more in ({}, {"b": (x * 50, y.flip(0))}):
        torch.manual_seed(4)
        module = Plain()
        module.net = fl.Standardized(module.net, 4)
        data = data_of(sites(**more), held_out_clients=["b"], client_test=0.25)
        trainer(2, fl.FederatedOrchestrator()).fit(module, data)
        ends.append(weights(module))
    assert same_bits(*ends)


def test_the_centralized_baseline_does_not_read_them():
    data = ready(data_of(sites(), held_out_clients=["b", "d"]))
    read = torch.cat([batch[0] for batch in data.train_dataloader()])
    expected = torch.cat([sites()[name].tensors[0] for name in "ace"])
    assert torch.equal(read.sort(0).values, expected.sort(0).values)


def test_a_share_of_the_clients_per_round_is_one_of_the_others():
    cohorts = Cohorts()
    data = fl.FederatedDataModule(Blobs(60), fl.IIDPartitioner(10, seed=3), held_out_clients=0.2)
    fit(data, 3, cohorts, clients_per_round=0.5)
    assert data.num_clients == 8
    assert [len(cohort) for cohort in cohorts.seen] == [4, 4, 4]
    assert set().union(*cohorts.seen) <= set(range(8))


def test_epsilon_is_that_of_the_clients_that_train():
    few = {name: data for name, data in sites().items() if name not in "bd"}
    privacy = fl.ClientPrivacy(max_norm=1.0, noise_multiplier=1.0, noise_seed=1)
    settings = {"strategy": fl.FedAvg("uniform"), "transforms": [privacy], "client_evaluation": fl.ClientEvaluation()}
    both = data_of(sites(), held_out_clients=["b", "d"]), data_of(few)
    runs = [fit(data, clients_per_round=2, **settings)[1] for data in both]
    one, other = (float(run.callback_metrics["federation/epsilon_of_clients"]) for run in runs)
    assert one == other


def test_a_share_and_a_number_are_drawn_with_the_seed_and_leave_the_data_divided_as_they_were():
    names = list("abcdefghij")
    assert len(chosen(0.2, names, 0)) == len(chosen(2, names, 0)) == 2
    assert len(chosen(0.01, names, 0)) == 1
    assert chosen(3, names, 0) == chosen(3, names, 0)
    assert len({tuple(chosen(3, names, seed)) for seed in range(20)}) > 5


@pytest.mark.parametrize("settings", [{"personal": [fl.PersonalPart(names="net.2.*")]}, {"route": fl.LocalOnly("val_acc")}])
def test_where_clients_keep_parts_or_models_they_get_the_servers_model(settings):
    """A part of their own is that of a client that has not trained."""
    data = data_of(sites(), held_out_clients=["b"], client_test=0.25)
    torch.manual_seed(4)
    first = {name: value for name, value in weights(Plain()).items() if name.startswith("net.2.")}
    with pytest.warns(UserWarning, match=r"no parts or models of their own: they are evaluated with the server's model"):
        module, fitted = fit(data, **settings)
    module.load_state_dict(first if "personal" in settings else {}, strict=False)
    rows = [data.client_datasets.source.dataset[int(k)] for k in data.splits.unseen[0]]
    examples = TensorDataset(*(torch.stack(column) for column in zip(*rows, strict=True)))
    assert float(fitted.callback_metrics["federation/unseen_mean"]) == pytest.approx(accuracy(module, examples))
