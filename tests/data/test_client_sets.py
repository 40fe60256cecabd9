"""One dataset for each client, by name, and what a module sees of it."""

from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import pytest
import torch
from client_sites import NAMES, TASK, VAL, Counts, Own, Read, fitted, numbers, shares
from federations import SIZES, Blobs, Consecutive, Plain, every_round, ready, same_bits, trainer, weights
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset

import fl_lightning as fl
from fl_lightning import ConfigurationError, FederatedDataModule, FederatedOrchestrator, LocalTraining
from fl_lightning.clients.evaluate import ModelEvaluation

# ------ One dataset for each client, by name


class Site(L.LightningDataModule):
    """Remembers what its client has seen, as one that draws new examples in each round."""

    def __init__(self, train: Any) -> None:
        super().__init__()
        self.own, self.calls, self.seen = train, [], 0

    def setup(self, stage: str) -> None:
        self.calls.append(stage)

    def train_dataloader(self) -> Any:
        assert self.calls
        return DataLoader(self.own, 5, shuffle=True)

    def state_dict(self) -> dict[str, Any]:
        return {"seen": self.seen, "last": self.own.tensors[1][: self.seen]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.seen = state_dict["seen"]
        assert torch.equal(state_dict["last"], self.state_dict()["last"])

    def on_exception(self, exception: BaseException) -> None:
        self.calls.append("clean up")


def test_clients_in_any_form_are_as_parts_of_a_set_that_is_divided():
    """A datamodule, a loader and a dataset that is read one by one, whatever the order in which they are given."""
    expected, _ = fitted(fl.FederatedDataModule(Blobs(), Consecutive()), strategy=fl.AdaFed("val_acc"))
    own = shares()
    given = {"c": Site(own["c"]), "b": DataLoader(own["b"], 5, shuffle=True), "a": Read(own["a"])}
    data = fl.FederatedDataModule.from_clients(given, val=DataLoader(VAL, 16), batch_size=5)
    module, run = fitted(data, strategy=fl.AdaFed("val_acc"))
    assert same_bits(weights(module), weights(expected))
    assert [data.client_name(k) for k in range(3)] == list(NAMES)
    assert [data.num_examples(k) for k in range(3)] == list(SIZES)
    assert "val_acc" in run.callback_metrics


def test_clients_validate_and_test_on_sets_of_their_own():
    """FedLoss weighs each client by its loss on its own set; the server's set is their union."""
    val, test = shares(2, (4, 5, 6)), shares(3, (3, 8, 2))
    data = fl.FederatedDataModule.from_clients(shares(), val=val, test=test, batch_size=5)
    _, run = fitted(data, strategy=fl.FedLoss(), client_evaluation=fl.ClientEvaluation(1, "val_acc"))
    assert "val_acc" in run.callback_metrics
    for part, own in (("validation", val), ("test", test)):
        for client, name in enumerate(NAMES):
            seen = [x for x, _ in data.client_evaluation_view(client, part).val_dataloader()]
            assert torch.equal(torch.cat(seen), own[name].tensors[0])
    union = torch.cat([x for x, _ in data.val_dataloader()])
    assert torch.equal(union, torch.cat([val[name].tensors[0] for name in NAMES]))
    trained = torch.cat([x for x, _ in data.client(1, 0).train_dataloader()])
    assert sorted(trained.flatten().tolist()) == sorted(shares()["b"].tensors[0].flatten().tolist())


class Sees(L.Callback):
    """Lets the clients' datamodules see as many examples in each round as their place says."""

    def __init__(self, sites: Any) -> None:
        self.sites = sites

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        for place, site in enumerate(self.sites, 1):
            site.seen += place


def test_the_state_of_datamodules_is_in_a_checkpoint_and_restored(tmp_path):
    finals = []
    for rounds, resumes in ((2, False), (4, True)):
        own = shares()
        sites = [Site(own["a"]), Site(own["b"])]
        data = fl.FederatedDataModule.from_clients({"a": sites[0], "b": sites[1], "c": own["c"]}, batch_size=5)
        run = trainer(rounds, fl.FederatedOrchestrator(), Sees(sites), every_round(tmp_path), enable_checkpointing=True)
        run.fit(Plain(), data, ckpt_path=str(tmp_path / "last.ckpt") if resumes else None)
        finals.append([site.seen for site in sites])
    assert finals == [[2, 4], [4, 8]]


def test_a_failing_client_is_named_and_each_clients_datamodule_cleans_up():
    sites = {name: Site(own) for name, own in shares().items()}
    sites["b"].own.tensors[0].fill_(torch.nan)
    with pytest.raises(fl.ClientError, match=r"Client b \(of 20 examples\)"):
        fitted(fl.FederatedDataModule.from_clients(sites))
    assert [site.calls for site in sites.values()] == [["fit", "clean up"]] * 3


def test_data_are_prepared_on_every_node_if_a_client_asks_for_it():
    for each in ((True, True, True), (True, False, True), (False, False, False)):
        sites = {name: Site(own) for name, own in shares().items()}
        for site, per_node in zip(sites.values(), each, strict=True):
            site.prepare_data_per_node = per_node
        assert fl.FederatedDataModule.from_clients(sites).prepare_data_per_node == any(each)


@pytest.mark.parametrize(
    "settings", [{"route": fl.FedStar(1, "val_acc")}, {"client_evaluation": fl.ClientEvaluation(1, "val_acc")}]
)
def test_a_file_that_is_missing_only_in_an_evaluation_is_told_with_the_clients_name(settings, monkeypatch):
    def score(*args: Any) -> float:
        raise FileNotFoundError(2, "No such file", "scan_7.png")

    monkeypatch.setattr(ModelEvaluation, "score", score)
    with pytest.raises(FileNotFoundError, match=r"\(in the evaluation on the (training|test) examples of client a\)"):
        fitted(fl.FederatedDataModule.from_clients(shares(), client_test=0.3), **settings)


def test_an_error_of_a_strategy_names_the_client_by_its_name():
    class Negative(fl.WeightedAverage):
        def weight(self, update):
            return -1.0 if update.client == 1 else 1.0

    with pytest.raises(fl.ClientError, match=r"gave client 1 the weight -1\.0") as told:
        fitted(fl.FederatedDataModule.from_clients(shares()), strategy=Negative())
    assert "Client 1 is 'b'." in vars(told.value)["__notes__"]


@pytest.mark.parametrize("fails", ["init", "train"])
def test_the_command_line_tells_a_clients_missing_file_in_one_line(fails, fl):
    clients = "".join(
        f"    {name}: {{class_path: client_sites.Hospital, init_args: {{fails: '{where}'}}}}\n"
        for name, where in (("north", ""), ("south", fails))
    )
    Path("own.yaml").write_text(f"{TASK}data:\n  clients:\n{clients}")
    status, text = fl("fit", "--config", "own.yaml", "--trainer.logger=false")
    assert status in (1, 2)
    assert "Traceback" not in text
    assert "south" in text
    assert "index.csv" in text


# ------ The user's dataset as a module sees it, and what is no DataLoader


class Listed(Dataset[Any]):
    """A dataset with attributes and methods that a module may use."""

    def __init__(self) -> None:
        self.targets = [k % 3 for k in range(20)]
        self.names = np.array([f"row {k}" for k in range(20)])
        self.shift = 0.0

    def describe(self) -> str:
        return f"shifted by {self.shift}"

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> Any:
        return torch.full((4,), float(index)) + self.shift, self.targets[index]


FOUND: list[tuple[list[int], str]] = []


class Asks(Plain):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        dataset = self.trainer.train_dataloader.dataset
        FOUND.append((list(dataset.targets), dataset.describe()))
        return super().training_step((batch[0] / 1e4, batch[1]), batch_idx)


class SetsShift(Plain):
    def on_train_epoch_start(self) -> None:
        self.trainer.train_dataloader.dataset.shift = 1000.0


@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_module_reads_its_clients_dataset_and_sets_nothing_in_it(workers):
    FOUND.clear()
    loader, halves = DataLoader(Listed(), 5, num_workers=workers), Consecutive([10, 10])
    trainer(1, FederatedOrchestrator()).fit(Asks(), FederatedDataModule.from_loaders(loader, partitioner=halves))
    parts = ([k % 3 for k in range(10)], [k % 3 for k in range(10, 20)])
    assert [(part, "shifted by 0.0") for part in parts for _ in range(2)] == FOUND
    with pytest.raises(ConfigurationError, match=r"'shift' of the training set cannot be set .*, because clients sh.* Keep"):
        trainer(1, FederatedOrchestrator()).fit(SetsShift(), FederatedDataModule.from_loaders(loader, partitioner=halves))
    assert loader.dataset.shift == 0.0


def test_a_part_has_the_columns_of_its_examples():
    data = ready(FederatedDataModule(Own(DataLoader(Listed(), 5)), Consecutive([12, 8])))
    part = data.client(1, 1).train_dataloader().dataset
    assert part.names.tolist() == [f"row {k}" for k in range(12, 20)]
    assert part.targets == [k % 3 for k in range(12, 20)]
    with pytest.raises(AttributeError, match="no_such"):
        part.no_such  # noqa: B018
    assert isinstance(part, Subset)
    data = ready(FederatedDataModule(Own(DataLoader(numbers(), 5)), Consecutive([30, 10])))
    x, y = data.client(1, 1).train_dataloader().dataset.tensors
    assert x[:, 0].tolist() == list(range(30, 40))
    assert y.tolist() == [k % 3 for k in range(30, 40)]


# ---------------------------------------------------------------- what is no DataLoader


class Overstates(IterableDataset[Any]):
    """Says that it has 100 examples, and yields 20."""

    def __init__(self, size: int = 20, says: int = 100) -> None:
        self.size, self.says = size, says

    def __len__(self) -> int:
        return self.says

    def __iter__(self) -> Any:
        return iter([numbers()[k] for k in range(self.size)])


@pytest.mark.parametrize("engine", ["trainer", "fabric"])
def test_a_stream_counts_with_what_it_yields(engine):
    counts = Counts()
    clients = {"a": Overstates(), "b": Overstates(15, 15)}
    data = FederatedDataModule.from_clients(clients, batch_size=5)
    local = LocalTraining(engine=engine, max_epochs=2)
    with pytest.warns(UserWarning, match=r"The stream of client a has a length of 100, but yielded 20 examples in an epoch"):
        fitted(data, counts, rounds=1, local=local)
    assert sorted(counts.examples) == [(0, 20, 8), (1, 15, 6)]


def test_a_stream_that_is_cut_off_counts_with_its_length():
    counts = Counts()
    data = FederatedDataModule.from_clients({"a": Overstates(20, 20)}, batch_size=5)
    for local in (LocalTraining(limit_train_batches=2), LocalTraining(max_steps=3, max_epochs=-1)):
        fitted(data, counts, rounds=1, local=local)
    assert [count for _, count, _ in counts.examples] == [20, 20]
