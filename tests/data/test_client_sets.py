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
    ClientError,
    ClientEvaluation,
    ConfigurationError,
    DataError,
    FederatedDataModule,
    FederatedOrchestrator,
    FedLoss,
    FedStar,
    LocalTraining,
    MNISTDataModule,
    WeightedAverage,
)
from fl_lightning.cli.command import main
from fl_lightning.clients.model_evaluation import ModelEvaluation
from fl_lightning.config.files import read

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


class Counts(Site):
    """Remembers what its client has seen, as one that draws new examples in each round."""

    def __init__(self, train: Any) -> None:
        super().__init__(train)
        self.seen, self.cleaned = 0, 0

    def state_dict(self) -> dict[str, Any]:
        return {"seen": self.seen, "last": self.own.tensors[1][: self.seen]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.seen = state_dict["seen"]
        assert torch.equal(state_dict["last"], self.state_dict()["last"])

    def on_exception(self, exception: BaseException) -> None:
        self.cleaned += 1


class Sees(L.Callback):
    """Lets the clients' datamodules see as many examples in each round as their place says."""

    def __init__(self, sites: Any) -> None:
        self.sites = sites

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        for place, site in enumerate(self.sites, 1):
            site.seen += place


def divided_among_three() -> tuple[list[Counts], Any]:
    site = Counts(TensorDataset(*blobs(sum(SIZES), 1)))
    return [site], FederatedDataModule(site, Consecutive())


def clients_of_whom_one_is_a_dataset() -> tuple[list[Counts], Any]:
    sites = {name: Counts(own) for name, own in shares().items() if name != "c"}
    return [sites["a"], sites["b"]], FederatedDataModule.from_clients({**sites, "c": shares()["c"]}, batch_size=5)


@pytest.mark.parametrize("data", [divided_among_three, clients_of_whom_one_is_a_dataset])
def test_the_state_of_datamodules_is_in_a_checkpoint_and_restored(data, tmp_path):
    finals = []
    for rounds, resumes in ((4, False), (2, False), (4, True)):
        sites, federated = data()
        saves = [Sees(sites), every_round(tmp_path)]
        run = trainer(rounds, FederatedOrchestrator(), *saves, enable_checkpointing=True)
        run.fit(Plain(), federated, ckpt_path=str(tmp_path / "last.ckpt") if resumes else None)
        finals.append([site.seen for site in sites])
    assert finals[2] == finals[0] == [4 * place for place in range(1, len(sites) + 1)]
    assert finals[1] == [2 * place for place in range(1, len(sites) + 1)]


def test_each_clients_datamodule_cleans_up_after_an_error():
    sites = {name: Counts(own) for name, own in shares().items()}
    sites["b"].own.tensors[0].fill_(torch.nan)
    with pytest.raises(ClientError, match="Client b"):
        fitted(FederatedDataModule.from_clients(sites))
    assert [site.cleaned for site in sites.values()] == [1, 1, 1]


@pytest.mark.parametrize("each", [(True, True, True), (True, False, True), (False, False, False)])
def test_data_are_prepared_on_every_node_if_a_client_asks_for_it(each):
    sites = {name: Counts(own) for name, own in shares().items()}
    for site, per_node in zip(sites.values(), each, strict=True):
        site.prepare_data_per_node = per_node
    assert FederatedDataModule.from_clients(sites).prepare_data_per_node == any(each)


def test_a_failing_client_is_named():
    broken = shares()
    broken["b"].tensors[0].fill_(torch.nan)
    with pytest.raises(Exception, match=r"Client b \(of 20 examples\)"):
        fitted(FederatedDataModule.from_clients(broken, batch_size=5))


class Transfers(Site):
    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        return batch


class Blackened(MNISTDataModule):
    """One of the package's, whose clients share how images are changed, with a change of its own."""

    def on_before_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
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
    "client 'b' overrides 'on_before_batch_transfer'": lambda: FederatedDataModule.from_clients({"a": VAL, "b": Blackened()}),
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


# ------------------------------------------------------------------ data that cannot be read


class Missing(Read):
    """Names a file that does not exist, in one of its methods."""

    def __init__(self, tensors: TensorDataset, where: str = "item") -> None:
        super().__init__(tensors)
        self.where = where

    def __len__(self) -> int:
        return len(Path("scan_7.png").read_text()) if self.where == "len" else super().__len__()

    def __getitem__(self, index: int) -> Any:
        return Path("scan_7.png").read_text() if self.where == "item" and index == 2 else super().__getitem__(index)


class Hospital(L.LightningDataModule):
    """A client's own datamodule; the one that is named in ``fails`` has no such file."""

    def __init__(self, fails: str = "", seed: int = 1) -> None:
        super().__init__()
        self.fails, self.seed = fails, seed
        self.read("init")

    def read(self, where: str) -> None:
        if where == self.fails:
            Path("index.csv").read_text()

    def prepare_data(self) -> None:
        self.read("prepare")

    def setup(self, stage: str) -> None:
        self.read("setup")

    def train_dataloader(self) -> Any:
        self.read("train")
        return DataLoader(TensorDataset(*blobs(12, self.seed)), 5)

    def val_dataloader(self) -> Any:
        self.read("val")
        return DataLoader(TensorDataset(*blobs(12, self.seed)), 5)


@pytest.mark.parametrize("engine", ["trainer", "fabric", "stacked", "auto"])
def test_a_file_that_a_client_lacks_is_told_with_the_clients_name(engine):
    sets = {name: (Missing if name == "b" else Read)(own) for name, own in shares().items()}
    with pytest.raises(FileNotFoundError, match=r"No such file .*\(in round 0, client b\): 'scan_7.png'"):
        trainer(1, FederatedOrchestrator(local=LocalTraining(engine=engine))).fit(
            Plain(), FederatedDataModule.from_clients(sets, batch_size=5)
        )


@pytest.mark.parametrize("where", ["prepare", "setup", "train", "val"])
def test_a_datamodule_that_cannot_load_its_data_is_told_with_the_clients_name(where):
    data = FederatedDataModule.from_clients({"north": Hospital(), "south": Hospital(where)})
    with pytest.raises(FileNotFoundError, match=r"No such file .*\(in the data of client 'south'\): 'index.csv'"):
        fitted(data)


def test_every_other_reading_of_a_clients_data_names_the_client():
    sets = {"north": Read(TensorDataset(*blobs(9, 1))), "south": Missing(TensorDataset(*blobs(9, 2)), "len")}
    with pytest.raises(FileNotFoundError, match=r"\(in the data of client 'south'\)"):
        FederatedDataModule.from_clients(sets).setup("fit")
    data = FederatedDataModule.from_clients(sets | {"south": Missing(TensorDataset(*blobs(9, 2)))})
    data.setup("fit")
    with pytest.raises(FileNotFoundError, match=r"\(in example 11 of client south, whose label is read\)"):
        data.label_counts()


@pytest.mark.parametrize("settings", [{"route": FedStar(1, "val_acc")}, {"client_evaluation": ClientEvaluation(1, "val_acc")}])
def test_a_file_that_is_missing_only_in_an_evaluation_is_told_with_the_clients_name(settings, monkeypatch):
    def score(*args: Any) -> float:
        raise FileNotFoundError(2, "No such file", "scan_7.png")

    monkeypatch.setattr(ModelEvaluation, "score", score)
    with pytest.raises(FileNotFoundError, match=r"\(in the evaluation on the (training|test) examples of client a\)"):
        fitted(FederatedDataModule.from_clients(shares(), client_test=0.3), **settings)


def test_an_error_of_a_strategy_names_the_client_by_its_name():
    class Negative(WeightedAverage):
        def weight(self, update):
            return -1.0 if update.client == 1 else 1.0

    with pytest.raises(ClientError, match=r"gave client 1 the weight -1\.0") as told:
        fitted(FederatedDataModule.from_clients(shares()), strategy=Negative())
    assert "Client 1 is 'b'." in vars(told.value)["__notes__"]


@pytest.mark.parametrize("fails", ["init", "setup", "train"])
def test_the_command_line_tells_a_clients_missing_file_in_one_line(fails, fl):
    network = "{class_path: fl_lightning.MLP, init_args: {in_features: 64, num_classes: 3}}"
    model = f"{{class_path: ClassificationTask, init_args: {{num_classes: 3, network: {network}}}}}"
    hospital = "{class_path: test_client_sets.Hospital, init_args: {fails: '%s'}}"
    Path("own.yaml").write_text(
        "trainer: {max_epochs: 1, accelerator: cpu, enable_progress_bar: false, default_root_dir: out, logger: false}\n"
        f"model: {model}\ndata:\n  clients:\n    north: {hospital % ''}\n    south: {hospital % fails}\n"
    )
    status, text = fl("fit", "--config", "own.yaml")
    assert status in (1, 2)
    assert "Traceback" not in text
    assert "south" in text
    assert "index.csv" in text
