"""Clients that read with loaders of their own: streams, batch samplers, subclasses of DataLoader."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from federations import Plain, blobs, every_round, same_bits, trainer, weights
from plain_training import TurnsSeed
from torch.optim import SGD
from torch.optim import lr_scheduler as schedules
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, SubsetRandomSampler, TensorDataset

from fl_lightning import (
    Attackers,
    ConfigurationError,
    DataError,
    FederatedDataModule,
    FederatedOrchestrator,
    FederationCallback,
    FedLoss,
    FedSGD,
    LabelAveraging,
    LocalTraining,
)

SIZES = {"a": 7, "b": 20}
VAL = TensorDataset(*blobs(61, 2))


def shares() -> dict[str, TensorDataset]:
    x, y = blobs(27, 1)
    return {"b": TensorDataset(x[7:], y[7:]), "a": TensorDataset(x[:7], y[:7])}


class Stream(IterableDataset[Any]):
    """Yields examples, and does not know how many."""

    def __init__(self, examples: TensorDataset, endless: bool = False) -> None:
        self.examples, self.endless = examples, endless

    def __iter__(self) -> Any:
        own = (self.examples[k] for k in range(len(self.examples)))
        return itertools.cycle(list(own)) if self.endless else own


def streams(**more: Any) -> dict[str, Stream]:
    return {name: Stream(own, **more) for name, own in shares().items()}


class Sent(FederationCallback):
    def __init__(self) -> None:
        self.examples: list[Any] = []

    def on_client_end(self, trainer: Any, pl_module: Any, update: Any) -> None:
        self.examples.append((update.client, update.num_examples, update.num_steps))


def fitted(
    clients: Any, *callbacks: Any, rounds: int = 2, make: Any = Plain, ckpt: Any = None, data: Any = None, **parts: Any
) -> Any:
    torch.manual_seed(6)
    module = make()
    parts.setdefault("local", LocalTraining(max_epochs=2))
    settings = {"val": DataLoader(VAL, 16), "batch_size": 5, "shuffle": False, **(data or {})}
    run = trainer(rounds, FederatedOrchestrator(**parts), *callbacks, enable_checkpointing=bool(callbacks))
    run.fit(module, FederatedDataModule.from_clients(clients, **settings), ckpt_path=ckpt)
    return weights(module)


def test_streams_are_weighed_by_the_examples_that_they_turn_out_to_have():
    """The same as datasets of the same examples, whose lengths are known."""
    sent = Sent()
    expected, found = fitted(shares()), fitted(streams(), sent)
    assert all(torch.allclose(expected[name], found[name], 0, 1e-6) for name in expected)
    assert sorted(sent.examples[:2]) == [(0, 7, 4), (1, 20, 8)]


def adapted(self: Any) -> Any:
    optimizer = SGD(self.parameters(), lr=0.2, momentum=0.9)
    by_step = {"scheduler": schedules.ExponentialLR(optimizer, 0.9), "interval": "step"}
    return [optimizer], [by_step, schedules.StepLR(optimizer, 3, 0.5)]


Scheduled: Any = type("Scheduled", (Plain,), {"configure_optimizers": adapted})


def test_one_stream_is_plain_training():
    """Steps and schedules cannot be computed for a stream, so its client counts them."""
    torch.manual_seed(6)
    module = Scheduled()
    plain = trainer(6, TurnsSeed(2))
    plain.fit(module, DataLoader(Stream(shares()["b"]), 5, generator=torch.Generator()))
    local = LocalTraining(max_epochs=2, optimizer_state="kept")
    found = fitted({"b": Stream(shares()["b"])}, rounds=3, make=Scheduled, local=local)
    assert all(torch.allclose(tensor, found[name], 0, 1e-6) for name, tensor in weights(module).items())


def test_an_endless_stream_ends_after_its_steps():
    sent = Sent()
    fitted(streams(endless=True), sent, local=LocalTraining(max_epochs=-1, max_steps=3))
    assert sorted(sent.examples) == [(0, 15, 3), (0, 15, 3), (1, 15, 3), (1, 15, 3)]
    sent = Sent()
    fitted(streams(endless=True), sent, rounds=1, local=LocalTraining(max_epochs=2, limit_train_batches=1))
    assert sorted(sent.examples) == [(0, 5, 2), (1, 5, 2)]


def test_a_resumed_run_counts_on(tmp_path):
    parts = {"make": Scheduled, "local": LocalTraining(max_epochs=2, optimizer_state="kept")}
    whole = fitted(streams(), rounds=3, **parts)
    fitted(streams(), every_round(tmp_path), rounds=2, **parts)
    assert same_bits(fitted(streams(), rounds=3, ckpt=str(tmp_path / "last.ckpt"), **parts), whole)


class Halves(BatchSampler):
    """The first half of the examples in one batch, then the other."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return 2

    def __iter__(self) -> Any:
        return iter([list(range(self.size // 2)), list(range(self.size // 2, self.size))])


class Backwards(DataLoader[Any]):
    """Serves its batches in reverse."""

    def __iter__(self) -> Any:
        return iter(list(super().__iter__())[::-1])


SEEN: list[Any] = []


class Seeing(Plain):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        SEEN.append(batch[0][:, 0].tolist())
        return super().training_step(batch, batch_idx)


@pytest.mark.parametrize("engine", ["trainer", "fabric"])
def test_samplers_of_batches_and_subclasses_read_in_their_own_way(engine):
    SEEN.clear()
    own = shares()
    loaders = {"a": DataLoader(own["a"], batch_sampler=Halves(7)), "b": Backwards(own["b"], 10)}
    fitted(loaders, rounds=1, make=Seeing, local=LocalTraining(engine=engine))
    first, second = (own[name].tensors[0][:, 0].tolist() for name in "ab")
    assert sorted(SEEN) == sorted([first[:3], first[3:], second[10:], second[:10]])


def test_other_samplers_are_seeded_by_the_turn():
    def loaders() -> Any:
        return {name: DataLoader(own, 3, sampler=SubsetRandomSampler(range(6))) for name, own in shares().items()}

    SEEN.clear()
    first = fitted(loaders(), make=Seeing, local=LocalTraining())
    assert same_bits(fitted(loaders(), make=Seeing, local=LocalTraining()), first)
    assert len(SEEN) == 2 * 2 * 2 * 2
    assert SEEN[:4] != SEEN[4:8]  # another round, another order


def test_own_sets_beside_streams():
    """The same as datasets of the same examples: FedLoss weighs by the loss on the clients' own sets."""
    val = {name: TensorDataset(*blobs(5, seed)) for seed, name in enumerate("ab")}
    streamed, known = (fitted(clients, strategy=FedLoss(), data={"val": val}) for clients in (streams(), shares()))
    assert same_bits(streamed, known)


def test_without_a_federation_the_streams_are_read_one_after_another():
    SEEN.clear()
    trainer(1).fit(Seeing(), FederatedDataModule.from_clients(streams(), batch_size=5))
    own = shares()
    in_order = torch.cat([own["a"].tensors[0], own["b"].tensors[0]])[:, 0].tolist()
    assert [number for batch in SEEN for number in batch] == in_order


class Site(L.LightningDataModule):
    """What a user names in YAML."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def train_dataloader(self) -> Any:
        draw = torch.Generator().manual_seed(self.size)
        return DataLoader(
            Stream(TensorDataset(torch.randn(self.size, 1, 8, 8, generator=draw), torch.arange(self.size) % 3)), 5
        )


CONFIG = """
trainer: {max_epochs: 1, accelerator: cpu, enable_progress_bar: false, default_root_dir: out}
model:
  class_path: ClassificationTask
  init_args:
    num_classes: 3
    network: {class_path: fl_lightning.MLP, init_args: {in_features: 64, num_classes: 3}}
data:
  clients:
    ward_b: {class_path: test_own_loaders.Site, init_args: {size: 8}}
    ward_a: {class_path: test_own_loaders.Site, init_args: {size: 11}}
"""


def test_streams_in_yaml(fl):
    Path("own.yaml").write_text(CONFIG)
    status, text = fl("fit", "--config", "own.yaml", "--trainer.logger=false")
    assert status == 0, text
    rows = Path("out/client_rounds.csv").read_text().splitlines()
    names = rows[0].split(",")
    assert {float(row.split(",")[names.index("examples")]) for row in rows[1:]} == {8.0, 11.0}
    assert Path("out/partition.csv").read_text().split() == ["client,training", "ward_a,", "ward_b,"]
    assert "2 clients, 2 with a stream of unknown length." in text


REFUSED: dict[str, Any] = {
    "'data.client_test' must be off if clients read with loaders of their own": {"data": {"client_test": 0.2}},
    "'data.rebalancing' must be off": {"data": {"rebalancing": LabelAveraging()}},
    "so 'federation.local.full_batch' cannot change its examples": {
        "strategy": FedSGD(),
        "local": LocalTraining(full_batch=True),
    },
    "so 'federation.attackers' cannot change its examples": {"attackers": Attackers({0: 0.5})},
    "but the engine 'fabric' needs it": {"local": LocalTraining(engine="fabric")},
    "but the engine 'stacked' needs it": {"local": LocalTraining(engine="stacked")},
}


@pytest.mark.parametrize("message", REFUSED)
def test_settings_that_would_change_what_a_client_reads(message):
    with pytest.raises(ConfigurationError) as caught:
        fitted(streams(), **REFUSED[message])
    assert message in str(caught.value)


def test_a_stream_without_examples_is_named():
    with pytest.raises(Exception, match=r"The stream of client a has no examples.*\n.*client a"):
        fitted({"a": Stream(TensorDataset(torch.zeros(0, 4), torch.zeros(0)))})


def test_labels_of_streams_are_unknown():
    data = FederatedDataModule.from_clients(streams())
    data.setup("fit")
    with pytest.raises(DataError, match="labels of clients that read with loaders of their own are not known"):
        data.label_counts()
