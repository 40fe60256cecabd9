"""One dataset for each client, by name."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from federations import SIZES, Blobs, Consecutive, Plain, blobs, every_round, same_bits, trainer, weights
from torch.utils.data import DataLoader, Dataset, TensorDataset

from fl_lightning import (
    AdaFed,
    ClientEvaluation,
    ConfigurationError,
    DataError,
    FederatedDataModule,
    FederatedOrchestrator,
    FedLoss,
    LocalTraining,
)
from fl_lightning.command import main
from fl_lightning.config_files import read

NAMES = ("a", "b", "c")


def shares(seed: int = 1, sizes: Any = SIZES) -> dict[str, TensorDataset]:
    """The clients' parts of the usual blobs, given in another order than that of their names."""
    x, y = blobs(sum(sizes), seed)
    parts = zip(NAMES, x.split(sizes), y.split(sizes), strict=True)
    return dict(reversed([(name, TensorDataset(*own)) for name, *own in parts]))


VAL = TensorDataset(*blobs(61, 2))


def fitted(data: Any, *callbacks: Any, rounds: int = 2, **parts: Any) -> Any:
    torch.manual_seed(6)
    module = Plain()
    run = trainer(rounds, FederatedOrchestrator(local=LocalTraining(max_epochs=2), **parts), *callbacks)
    run.fit(module, data)
    return module, run


class Read(Dataset[Any]):
    """Is read example by example."""

    def __init__(self, tensors: TensorDataset) -> None:
        self.of = tensors

    def __len__(self) -> int:
        return len(self.of)

    def __getitem__(self, index: int) -> Any:
        return self.of[index]


class OneByOne(Blobs):
    def train_dataloader(self) -> Any:
        return DataLoader(Read(TensorDataset(*self.train)), 5, shuffle=True)


class Site(L.LightningDataModule):
    def __init__(self, train: Any, val: Any = None, batch_size: int = 5) -> None:
        super().__init__()
        self.own, self.own_val, self.batch_size, self.calls = train, val, batch_size, []

    def setup(self, stage: str) -> None:
        self.calls.append(stage)

    def train_dataloader(self) -> Any:
        assert self.calls
        return DataLoader(self.own, self.batch_size, shuffle=True)


class SiteWithVal(Site):
    def val_dataloader(self) -> Any:
        return DataLoader(self.own_val, 16)


FORMS = {
    "datasets": lambda own: own,
    "read one by one": Read,
    "loaders": lambda own: DataLoader(own, 5, shuffle=True),
    "datamodules": Site,
}


@pytest.mark.parametrize("form", FORMS)
def test_the_same_examples_give_the_same_weights_in_every_form(form):
    """As a set that is divided, whatever the order in which clients are given."""
    divided = OneByOne() if form == "read one by one" else Blobs()  # torch's sampler shuffles in its own way
    expected, _ = fitted(FederatedDataModule(divided, Consecutive()), strategy=AdaFed("val_acc"))
    given = {name: FORMS[form](own) for name, own in shares().items()}
    data = FederatedDataModule.from_clients(given, val=DataLoader(VAL, 16), batch_size=5)
    module, run = fitted(data, strategy=AdaFed("val_acc"))
    assert same_bits(weights(module), weights(expected))
    assert [data.client_name(k) for k in range(3)] == list(NAMES)
    assert [data.num_examples(k) for k in range(3)] == list(SIZES)
    assert "val_acc" in run.callback_metrics


def test_clients_validate_and_test_on_sets_of_their_own():
    """FedLoss weighs each client by its loss on its own set; the server's set is their union."""
    val, test = shares(2, (4, 5, 6)), shares(3, (3, 8, 2))
    data = FederatedDataModule.from_clients(shares(), val=val, test=test, batch_size=5)
    evaluation = ClientEvaluation(1, "val_acc")
    _, run = fitted(data, strategy=FedLoss(), client_evaluation=evaluation)
    assert "val_acc" in run.callback_metrics
    for part, own in (("validation", val), ("test", test)):
        for client, name in enumerate(NAMES):
            seen = [x for x, _ in data.client_evaluation_view(client, part).val_dataloader()]
            assert torch.equal(torch.cat(seen), own[name].tensors[0])
    union = torch.cat([x for x, _ in data.val_dataloader()])
    assert torch.equal(union, torch.cat([val[name].tensors[0] for name in NAMES]))
    trained = torch.cat([x for x, _ in data.client(1, 0).train_dataloader()])
    assert sorted(trained.flatten().tolist()) == sorted(shares()["b"].tensors[0].flatten().tolist())


def test_the_validation_sets_of_datamodules_are_the_clients_own():
    val = shares(2, (4, 5, 6))
    sites = {name: SiteWithVal(own, val[name]) for name, own in shares().items()}
    data = FederatedDataModule.from_clients(sites)
    fitted(data, strategy=FedLoss())
    assert [data.splits.validation[k].numel() for k in range(3)] == [4, 5, 6]
    assert all(site.calls == ["fit"] for site in sites.values())


def test_without_a_federation_the_union_is_trained_on():
    """The centralized baseline has the clients' training examples, and none that they hold for validation."""
    data = FederatedDataModule.from_clients(shares(), val=shares(2, (4, 5, 6)), batch_size=5)
    run = trainer(1)
    run.fit(Plain(), data)
    assert run.num_training_batches == sum(SIZES) // 5
    assert sum(len(y) for _, y in data.train_dataloader()) == sum(SIZES)


def test_a_resumed_run_finds_the_same_clients(tmp_path):
    def data() -> Any:
        return FederatedDataModule.from_clients(shares(), val=VAL, batch_size=5)

    whole, _ = fitted(data(), rounds=3)
    torch.manual_seed(6)
    run = trainer(2, FederatedOrchestrator(local=LocalTraining(max_epochs=2)), every_round(tmp_path), enable_checkpointing=True)
    run.fit(Plain(), data())
    module = Plain()
    trainer(3, FederatedOrchestrator(local=LocalTraining(max_epochs=2))).fit(
        module, data(), ckpt_path=str(tmp_path / "last.ckpt")
    )
    assert same_bits(weights(module), weights(whole))


def test_a_failing_client_is_named():
    broken = shares()
    broken["b"].tensors[0].fill_(torch.nan)
    with pytest.raises(Exception, match=r"Client b \(of 20 examples\)"):
        fitted(FederatedDataModule.from_clients(broken, batch_size=5))


class Transfers(Site):
    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        return batch


WRONG = {
    "'data.clients' must be at least one client": lambda: FederatedDataModule.from_clients({}),
    "'data.batch_size' must be 1 or above": lambda: FederatedDataModule.from_clients(shares(), batch_size=0),
    "'val' has sets for the clients a, b, but the training sets are those of a, b, c": lambda: FederatedDataModule.from_clients(
        shares(), val={"a": VAL, "b": VAL}
    ),
    "client 'a' overrides 'on_after_batch_transfer'": lambda: FederatedDataModule.from_clients(
        {"a": Transfers(VAL), "b": Site(VAL)}
    ),
    "'data.public_share' must be 0 if each client": lambda: FederatedDataModule.from_clients(shares(), public_share=0.1),
}
UNUSABLE = {
    "'batch_size' is 5 for 'a', but 6 for 'b'": {"a": DataLoader(VAL, 5), "b": DataLoader(VAL, 6)},
    "'shuffle' is False for 'a', but True for 'b'": {"a": DataLoader(VAL, 5), "b": DataLoader(VAL, 5, shuffle=True)},
    "client 'a' are a int, but must be a dataset": {"a": 3},
    "Client 'a' has no examples": {"a": TensorDataset(torch.zeros(0, 4), torch.zeros(0))},
}


@pytest.mark.parametrize("message", WRONG)
def test_wrong_clients(message):
    with pytest.raises(ConfigurationError) as caught:
        WRONG[message]()
    assert message in str(caught.value)


@pytest.mark.parametrize("message", UNUSABLE)
def test_unusable_examples(message):
    with pytest.raises(DataError) as caught:
        FederatedDataModule.from_clients(UNUSABLE[message]).setup("fit")
    assert message in str(caught.value)


def test_a_share_and_a_set_for_the_same_part():
    data = FederatedDataModule.from_clients(shares(), val=shares(2, (4, 5, 6)), client_validation=0.2)
    with pytest.raises(ConfigurationError, match=r"'data.client_validation' is 0.2, but the clients have validation sets"):
        data.setup("fit")


class Images(L.LightningDataModule):
    """What a user names in YAML."""

    def __init__(self, seed: int = 0, size: int = 12) -> None:
        super().__init__()
        self.seed, self.size = seed, size

    def _set(self, part: int) -> TensorDataset:
        draw = torch.Generator().manual_seed(10 * self.seed + part)
        return TensorDataset(torch.randn(self.size, 1, 8, 8, generator=draw), torch.arange(self.size) % 3)

    def train_dataloader(self) -> Any:
        return DataLoader(self._set(0), 5, shuffle=True)

    def val_dataloader(self) -> Any:
        return DataLoader(self._set(1), 5)


CONFIG = """
trainer: {max_epochs: 1, accelerator: cpu, enable_progress_bar: false, default_root_dir: out}
model:
  class_path: ClassificationTask
  init_args:
    num_classes: 3
    network: {class_path: fl_lightning.MLP, init_args: {in_features: 64, num_classes: 3}}
data:
  clients:
    hospital_b: {class_path: test_client_sets.Images, init_args: {seed: 1, size: 8}}
    hospital_a: {class_path: test_client_sets.Images}
"""


def test_clients_in_yaml(monkeypatch, capsys):
    Path("own.yaml").write_text(CONFIG)
    assert read(Path("own.yaml")).is_complete
    monkeypatch.setattr("sys.argv", ["fl-lightning", "fit", "--config", "own.yaml", "--trainer.logger", "false"])
    main()
    shown = capsys.readouterr().out
    assert re.search(r"hospital_a +12 +12", shown)
    assert re.search(r"hospital_b +8 +8", shown)


def test_divided_and_own_data_exclude_each_other():
    with pytest.raises(ConfigurationError, match=r"'data.datamodule' must be null with 'data.clients'.*but is 'Blobs'"):
        FederatedDataModule(Blobs(), clients={"a": Images()})
    with pytest.raises(ConfigurationError, match=r"'data.datamodule' is missing. Set it, or give each client data"):
        FederatedDataModule()
