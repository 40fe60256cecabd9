"""Clients that read with loaders of their own: streams, batch samplers, subclasses of DataLoader."""

from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from client_sites import TASK, VAL, Counts, Stream, fitted, shares
from federations import Plain, blobs, same_bits, trainer, weights
from plain_training import TurnsSeed
from torch.optim import SGD
from torch.optim import lr_scheduler as schedules
from torch.utils.data import BatchSampler, DataLoader, SubsetRandomSampler, TensorDataset

from fl_lightning import FederatedDataModule, FedLoss, LocalTraining


def two() -> dict[str, TensorDataset]:
    return shares(1, (7, 20))


def streams(**more: Any) -> dict[str, Stream]:
    return {name: Stream(own, **more) for name, own in two().items()}


def fit(clients: Any, *callbacks: Any, data: Any = None, **settings: Any) -> Any:
    own = {"val": DataLoader(VAL, 16), "batch_size": 5, "shuffle": False, **(data or {})}
    return weights(fitted(FederatedDataModule.from_clients(clients, **own), *callbacks, **settings)[0])


def test_streams_are_weighed_by_the_examples_that_they_turn_out_to_have():
    """The same as datasets of the same examples, whose lengths are known."""
    sent = Counts()
    expected, found = fit(two()), fit(streams(), sent)
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
    plain.fit(module, DataLoader(Stream(two()["b"]), 5, generator=torch.Generator()))
    local = LocalTraining(max_epochs=2, optimizer_state="kept")
    found = fit({"b": Stream(two()["b"])}, rounds=3, module=Scheduled, local=local)
    assert all(torch.allclose(tensor, found[name], 0, 1e-6) for name, tensor in weights(module).items())


def test_an_endless_stream_ends_after_its_steps():
    sent = Counts()
    fit(streams(endless=True), sent, local=LocalTraining(max_epochs=-1, max_steps=3))
    assert sorted(sent.examples) == [(0, 15, 3), (0, 15, 3), (1, 15, 3), (1, 15, 3)]
    sent = Counts()
    fit(streams(endless=True), sent, rounds=1, local=LocalTraining(max_epochs=2, limit_train_batches=1))
    assert sorted(sent.examples) == [(0, 5, 2), (1, 5, 2)]


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
    own = two()
    loaders = {"a": DataLoader(own["a"], batch_sampler=Halves(7)), "b": Backwards(own["b"], 10)}
    fit(loaders, rounds=1, module=Seeing, local=LocalTraining(engine=engine))
    first, second = (own[name].tensors[0][:, 0].tolist() for name in "ab")
    assert sorted(SEEN) == sorted([first[:3], first[3:], second[10:], second[:10]])


def test_other_samplers_are_seeded_by_the_turn():
    def loaders() -> Any:
        return {name: DataLoader(own, 3, sampler=SubsetRandomSampler(range(6))) for name, own in two().items()}

    SEEN.clear()
    first = fit(loaders(), module=Seeing, local=LocalTraining())
    assert same_bits(fit(loaders(), module=Seeing, local=LocalTraining()), first)
    assert len(SEEN) == 2 * 2 * 2 * 2
    assert SEEN[:4] != SEEN[4:8]  # another round, another order


def test_own_sets_beside_streams():
    """The same as datasets of the same examples: FedLoss weighs by the loss on the clients' own sets."""
    val = {name: TensorDataset(*blobs(5, seed)) for seed, name in enumerate("ab")}
    streamed, known = (fit(clients, strategy=FedLoss(), data={"val": val}) for clients in (streams(), two()))
    assert same_bits(streamed, known)


def test_each_own_set_beside_streams_is_read_by_its_own_loader():
    sets = {name: TensorDataset(*blobs(5, seed)) for seed, name in enumerate("ab")}
    val = {
        "a": DataLoader(sets["a"], 5),
        "b": DataLoader(sets["b"], 5, collate_fn=lambda rows: torch.stack([x for x, _ in rows]) * 2),
    }
    data = FederatedDataModule.from_clients(streams(), val=val, batch_size=5)
    data.setup("fit")
    first, second = (next(iter(data.client_evaluation_view(k, "validation").val_dataloader())) for k in range(2))
    assert torch.equal(first[0], sets["a"].tensors[0])
    assert torch.equal(second, sets["b"].tensors[0] * 2)


def test_without_a_federation_the_streams_are_read_one_after_another():
    SEEN.clear()
    trainer(1).fit(Seeing(), FederatedDataModule.from_clients(streams(), batch_size=5))
    own = two()
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


WARDS = (("ward_b", 8), ("ward_a", 11))


def test_streams_in_yaml(fl):
    wards = "".join(f"    {name}: {{class_path: test_own_loaders.Site, init_args: {{size: {n}}}}}\n" for name, n in WARDS)
    Path("own.yaml").write_text(f"{TASK}data:\n  clients:\n{wards}")
    status, text = fl("fit", "--config", "own.yaml", "--trainer.logger=false")
    assert status == 0, text
    rows = Path("out/client_rounds.csv").read_text().splitlines()
    names = rows[0].split(",")
    assert {float(row.split(",")[names.index("examples")]) for row in rows[1:]} == {8.0, 11.0}
    assert Path("out/partition.csv").read_text().split() == ["client,training", "ward_a,", "ward_b,"]
    assert "2 clients, 2 with a stream of unknown length." in text
