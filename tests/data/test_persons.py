"""Several rows of one person: parts hold all of them, and differential privacy covers the person."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import dp_accounting
import numpy as np
import pytest
import shake
import torch
from accountants import poisson
from against_hand import Updates
from dp_accounting.pld import PLDAccountant
from federations import SIZES, Blobs, Consecutive, Plain, every_round, federate, trainer
from hypothesis import given, settings
from hypothesis import strategies as st
from test_privacy import NO_NOISE
from test_privacy_ledger import lines
from torch.nn import functional as F
from torch.utils.data import ConcatDataset, DataLoader, Subset, TensorDataset

from fl_lightning import (
    CheckpointError,
    ClientPrivacy,
    ConfigurationError,
    DataError,
    DomainPartitioner,
    ExamplePrivacy,
    FedAvg,
    FederatedDataModule,
    FederatedOrchestrator,
    IIDPartitioner,
    LocalTraining,
    Partition,
    TableDataModule,
)
from fl_lightning.cli.privacy_table import privacy_rows
from fl_lightning.data.labels import read_persons
from fl_lightning.data.poisson_loader import PoissonBatches
from fl_lightning.functional.splitting import count_units, hold_out


class Visits(Blobs):
    """The usual blobs, whose rows belong to persons."""

    def __init__(self, persons: Any, **more: Any) -> None:
        super().__init__(**more)
        self.persons = persons

    def train_dataloader(self) -> Any:
        dataset = TensorDataset(*self.train)
        dataset.persons = self.persons
        return DataLoader(dataset, batch_size=self.batch_size, shuffle=self.shuffle)


# ---------------------------------------------------------------- parts


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 9)), min_size=1, max_size=60), st.integers(0, 99), st.booleans())
def test_all_rows_of_a_person_are_in_one_part(pairs, seed, with_labels):
    """Persons count: as many as wanted of each client; the same number at two clients is two persons."""
    owners, persons = (torch.tensor(column) for column in zip(*pairs, strict=True))
    partition = Partition.of_owners(owners, 3)
    held = [len({person for owner, person in pairs if owner == k}) for k in range(3)]
    assert count_units(partition, persons).tolist() == held
    sizes = torch.tensor([count // 2 for count in held])
    labels = owners + persons % 2 if with_labels else None
    rest, taken = hold_out(partition, sizes, labels, torch.Generator().manual_seed(seed), persons)
    for k in range(3):
        out = set(persons[taken[k]].tolist())
        assert len(out) == int(sizes[k])
        assert not out & set(persons[rest[k]].tolist())
        assert sorted([*rest[k].tolist(), *taken[k].tolist()]) == partition[k].tolist()


def test_parts_of_a_federation_keep_persons_together():
    persons = np.array([f"p{k // 3}" for k in range(sum(SIZES))])
    data = FederatedDataModule(Visits(persons), Consecutive(), client_validation=0.2, client_test=0.3)
    data.setup("fit")
    for k in range(3):
        parts = [set(persons[part[k].numpy()]) for part in (data.splits.training, data.splits.validation, data.splits.test)]
        assert all(parts)
        assert not (parts[0] & parts[1])
        assert not (parts[0] & parts[2])
        assert not (parts[1] & parts[2])


def test_persons_of_clients_with_datasets_of_their_own():
    """One names persons, one does not, and the server has a set: joined, they keep their persons."""
    one, other = TensorDataset(*Blobs(n=30).train), TensorDataset(*Blobs(n=20).train)
    one.persons = np.arange(30) // 3
    data = FederatedDataModule.from_clients({"a": one, "b": other}, val=other, client_test=0.25)
    data.setup("fit")
    tests = [part.tolist() for part in data.splits.test]
    assert len(tests[1]) == 5
    assert sorted(k // 3 for k in tests[0]) == sorted([k // 3 for k in tests[0][::3]] * 3)  # of ten persons, two or three


@pytest.mark.parametrize(
    ("one", "other", "shared"),
    [
        (["ann", "ann", "bob"], ["bob", "eve", "eve"], [(2, 0)]),
        (["b", "a", "c"], ["d", "f", "e"], []),
        ([3, 3, 7], torch.tensor([7, 1, 2]), [(2, 0)]),
        ([3, 3, 7], ["8", "7", "x"], [(2, 1)]),  # numbers here, texts there
        ([0, 1, 2], None, []),
    ],
)
def test_a_name_at_two_clients_with_datasets_of_their_own_is_one_person(one, other, shared):
    datasets = {"a": TensorDataset(torch.rand(3, 4)), "b": TensorDataset(torch.rand(3, 4))}
    for dataset, persons in zip(datasets.values(), (one, other), strict=True):
        dataset.persons = persons
    data = FederatedDataModule.from_clients(datasets)
    data.setup("fit")
    here, there = data.splits.persons.split(3)
    assert [(i, k) for i in range(3) for k in range(3) if here[i] == there[k]] == shared
    assert data.sharing == [(0, 1)] * bool(shared)
    assert (here[0] == here[1]) == (one[0] == one[1])


@pytest.mark.parametrize("persons", [None, 12, lambda: 12])
def test_a_number_or_a_method_names_no_persons(persons):
    dataset = TensorDataset(torch.rand(4, 2))
    dataset.persons = persons
    assert read_persons(dataset) is None


class Twice(Subset[Any]):
    def __len__(self) -> int:
        return 2 * len(self.indices)


@pytest.mark.parametrize(
    ("kind", "persons"), [(TensorDataset, [0, 0, 1]), (TensorDataset, []), (lambda own: Twice(own, range(4)), [0, 0, 1, 1])]
)
def test_persons_that_are_not_one_for_each_example_are_refused(kind, persons):
    """They counted as none, so that each row was a person."""
    inside = TensorDataset(torch.rand(4, 2))
    dataset = kind(inside.tensors[0]) if kind is TensorDataset else kind(inside)
    (dataset if kind is TensorDataset else inside).persons = persons
    with pytest.raises(DataError, match=f"names persons, but not one for each of its {len(dataset)} examples"):
        read_persons(dataset)


def test_tables_of_their_own_share_persons_by_name():
    """Files in which the same number of a patient in the sorted order is another patient."""
    for name, patients in (("a", "pqr"), ("b", "rst")):
        Path(f"{name}.csv").write_text("patient,age,outcome\n" + "".join(f"{p},{k},{k % 2}\n" for k, p in enumerate(patients)))
    settings = {"kind": "classification", "person_column": "patient", "test_share": 0, "standardize": False}
    sets = {name: TableDataModule(f"{name}.csv", "outcome", **settings) for name in "ab"}
    for base in sets.values():
        base.setup("fit")
    data = FederatedDataModule.from_clients({name: base.train_set for name, base in sets.items()})
    data.setup("fit")
    persons = data.splits.persons.tolist()
    assert persons[2] == persons[3]
    assert len(set(persons)) == 5


def test_a_public_share_of_persons_is_refused():
    data = FederatedDataModule(Visits(np.arange(40)), IIDPartitioner(2), public_share=0.2)
    with pytest.raises(ConfigurationError, match=r"'data.public_share' must be 0 if the data name persons"):
        data.setup("fit")


def write(path: str, rows: int, visits: int, label: str = "xyz") -> None:
    Path(path).parent.mkdir(exist_ok=True)
    lines = [f"p{k // visits},{k},{k % 7},{label[k % len(label)]}" for k in range(rows)]
    Path(path).write_text("\n".join(["patient,age,dose,outcome", *lines]) + "\n")


def table(**more: Any) -> TableDataModule:
    return TableDataModule("sites", "outcome", kind="classification", standardize=False, person_column="patient", **more)


def test_a_table_names_its_persons_in_a_column():
    """The column is no feature, and the server's share has whole persons, too."""
    write("sites/a.csv", 40, 4)
    write("sites/b.csv", 30, 3)
    base = table(test_share=0.2)
    data = FederatedDataModule(base, DomainPartitioner(), client_test=0.25)
    data.setup("fit")
    assert base.feature_names == ("age", "dose")
    ages = {k: base.train_set.tensors[0][:, 0].long()[data.splits.training[k]] for k in range(2)}
    tests = {k: base.train_set.tensors[0][:, 0].long()[data.splits.test[k]] for k in range(2)}
    for k, visits in ((0, 4), (1, 3)):
        persons = {int(age) // visits for age in ages[k]}, {int(age) // visits for age in tests[k]}
        assert not persons[0] & persons[1]
        assert len(tests[k]) == visits * len(persons[1])
        assert len(ages[k]) + len(tests[k]) == visits * 8  # of ten persons, two are the server's
    assert len(persons[1]) == 2  # a quarter of eight


def test_a_person_column_that_is_missing_or_has_gaps_is_named():
    write("sites/a.csv", 12, 2)
    with pytest.raises(DataError, match=r"has no column 'person'"):
        TableDataModule("sites", "outcome", kind="classification", person_column="person").setup("fit")
    with pytest.raises(ConfigurationError, match=r"'data.datamodule.person_column' must be a column other than 'target'"):
        TableDataModule("sites", "outcome", kind="classification", person_column="outcome")
    text = Path("sites/a.csv").read_text().replace("p1,2", ",2")
    Path("sites/a.csv").write_text(text)
    with pytest.raises(DataError, match=r"line 4: the column 'patient' is empty"):
        table().setup("fit")


# ---------------------------------------------------------------- differential privacy


@given(st.lists(st.integers(0, 5), min_size=1, max_size=30), st.integers(1, 10), st.integers(0, 9))
def test_a_person_is_in_a_batch_with_all_rows_or_none(persons, batch_size, seed):
    codes, draw = torch.tensor(persons), torch.Generator().manual_seed(seed)
    batches = PoissonBatches(len(persons), batch_size, lambda batch, count: torch.rand(count, generator=draw), codes)
    assert batches.expected_persons == pytest.approx(batches.rate * len(set(persons)))
    for batch in batches:
        drawn = batches.drawn.popleft()
        if drawn is None:
            assert batch == [0]
            continue
        there = {persons[k] for k in batch}
        assert batch == [k for k, person in enumerate(persons) if person in there]
        numbers = {person: {int(n) for k, n in zip(batch, drawn, strict=True) if persons[k] == person} for person in there}
        assert sorted(n for (n,) in map(sorted, numbers.values())) == list(range(len(there)))


@pytest.mark.parametrize("visits", [1, 3])
def test_the_gradient_of_a_person_is_clipped(visits):
    """Against a loop over persons: the mean gradient of a person's rows is clipped, so that noise covers the person."""
    rate, length, lr = 5 / 20, 0.3, 0.1
    persons = np.arange(20) // visits
    count = len(set(persons))
    torch.manual_seed(2)
    module = Plain(lr=lr)
    by_hand = copy.deepcopy(module.net)
    privacy = ExamplePrivacy(length, NO_NOISE, noise_seed=4)
    data = Visits(persons, n=20)
    federate(module, 1, data=data, partitioner=Consecutive([20]), local=LocalTraining(max_epochs=3, privacy=privacy))
    x, y = data.train
    for step in range(3 * 4):
        thrown = shake.uniforms(count, shake.key_of(4), 0, 0, step, 0, "coins of examples, period 0")
        total = [torch.zeros_like(p) for p in by_hand.parameters()]
        for person in (k for k, coin in enumerate(thrown) if coin < rate):
            rows = torch.tensor(persons == person)
            gradients = torch.autograd.grad(F.cross_entropy(by_hand(x[rows]), y[rows]), list(by_hand.parameters()))
            norm = math.sqrt(sum(float((g.double() ** 2).sum()) for g in gradients))
            for sum_, g in zip(total, gradients, strict=True):
                sum_ += g * min(1.0, length / (norm + 1e-6))
        with torch.no_grad():
            for p, g in zip(by_hand.parameters(), total, strict=True):
                p -= lr * g / (rate * count)
    for name, value in by_hand.state_dict().items():
        torch.testing.assert_close(module.net.state_dict()[name], value, rtol=1e-5, atol=1e-5)


def test_a_resumed_run_has_the_same_persons(tmp_path):
    """Otherwise no epsilon would hold: who had all rows at one client may now have them at two, or be nobody."""
    privacy = LocalTraining(privacy=ExamplePrivacy(1.0, 1.0))
    flags = {"default_root_dir": str(tmp_path), "enable_checkpointing": True}
    federate(Plain(), 1, every_round(tmp_path), data=Visits(np.arange(40) // 2), local=privacy, flags=flags)
    for persons in (None, np.arange(40) % 20):
        with pytest.raises(CheckpointError, match=r"'data.persons' '40 examples of 20 persons \(.*, but this run has"):
            federate(Plain(), 2, data=Visits(persons), local=privacy, flags=flags, ckpt_path=str(tmp_path / "last.ckpt"))


def test_persons_of_clients_that_are_read_when_they_are_drawn():
    """Whether others hold them, too, is not known, so no epsilon is; figures count them."""

    def opened(client):
        dataset = TensorDataset(*Blobs(n=12).train)
        dataset.persons = np.arange(12) // 4
        return dataset

    data = FederatedDataModule.from_clients(opened, num_clients=2, num_examples=12)
    run = trainer(1, FederatedOrchestrator(local=LocalTraining(privacy=ExamplePrivacy(1.0, 1.0))))
    with pytest.raises(ConfigurationError, match=r"persons are not known beforehand\. Remove 'federation.local.privacy', or"):
        run.fit(Plain(), data)
    assert data.evaluated_persons(1, "training").tolist() == [0] * 4 + [1] * 4 + [2] * 4


def test_persons_of_the_clients_own_test_sets():
    one, other = TensorDataset(*Blobs(n=12).train), TensorDataset(*Blobs(n=6).train)
    other.persons = ["x", "x", "y", "y", "y", "x"]
    data = FederatedDataModule.from_clients({"a": one}, test={"a": other})
    data.setup("fit")
    x, y = data.evaluated_persons(0, "test")[[0, 2]].tolist()
    assert data.evaluated_persons(0, "test").tolist() == [x, x, y, y, y, x]
    assert x != y
    assert len({x, y, *data.evaluated_persons(0, "training").tolist()}) == 14


def test_a_person_who_is_named_in_a_part_of_the_data_only_is_refused():
    one, other = TensorDataset(*Blobs(n=6).train), TensorDataset(*Blobs(n=6).train)
    one.persons = np.arange(6) // 2
    with pytest.raises(DataError, match=r"names 'persons' in 1 of the 2 datasets that it joins\. Name them in all,"):
        read_persons(ConcatDataset([one, other]))


def composed(releases: Iterable[tuple[float, float, int]], delta: float) -> float:
    """Epsilon of steps with several noises and rates together, by dp-accounting's own accountant."""
    accountant = PLDAccountant(value_discretization_interval=5e-3)
    for noise, rate, steps in releases:
        accountant.compose(dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(noise)), steps)
    return float(accountant.get_epsilon(delta))


def spent_by_persons(data: FederatedDataModule, persons: Any, turns: Iterable[tuple[float, int]], delta: float) -> dict:
    """Epsilon of each person: at each client that holds one of its rows, the epochs of its turns, in batches of 5 rows.

    Args:
        data: the clients.
        persons: the person of each row.
        turns: the noise of each turn of one epoch, and the client.
        delta: delta.
    """
    holders: dict[Any, set[int]] = {}
    for client, rows in enumerate(data.splits.training):
        for row in rows.tolist():
            holders.setdefault(persons[row], set()).add(client)
    sizes = [len(rows) for rows in data.splits.training]
    cost = {
        clients: composed([(noise, 5 / sizes[k], math.ceil(sizes[k] / 5)) for noise, k in turns if k in clients], delta)
        for clients in {frozenset(clients) for clients in holders.values()}
    }
    return {person: cost[frozenset(clients)] for person, clients in holders.items()}


def test_epsilon_of_a_person_is_composed_over_the_clients_that_hold_its_rows(recwarn):
    """60 persons with 5 rows each, of whom most are at all four clients, in cohorts of three: by two accountants."""
    persons = np.array([f"p{k % 60}" for k in range(300)])
    federation = FederatedOrchestrator(
        local=LocalTraining(max_epochs=1, privacy=ExamplePrivacy(1.0, 1.2, 1e-5)), clients_per_round=3
    )
    data = FederatedDataModule(Visits(persons, n=300), IIDPartitioner(4))
    updates = Updates()
    run = trainer(3, federation, updates)
    run.fit(Plain(), data)
    turns = [(1.2, update.client) for updates_of in updates.rounds for update in updates_of]
    each = spent_by_persons(data, persons, turns, 1e-5)
    told = float(run.logged_metrics["federation/epsilon_of_examples"])
    assert told == pytest.approx(max(each.values()), rel=0.01, abs=0.01)
    assert poisson(1.2, 5 / 75, 9 * 15, 1e-5)[0] <= told
    for update in updates.rounds[-1]:
        own = {persons[row] for row in data.splits.training[update.client].tolist()}
        assert update.epsilon == pytest.approx(max(each[person] for person in own), rel=0.01, abs=0.01)
    said = [str(warning.message) for warning in recwarn]
    assert sum("Some persons have examples at several clients, at up to 4." in text for text in said) == 1


def test_noise_is_solved_for_the_persons_at_several_clients(tmp_path):
    """Two planned rounds that are extended to four: the ledger's steps, with both noises, end at the target."""
    persons = np.arange(40) % 9
    privacy = ExamplePrivacy(1.0, delta=1e-3, target_epsilon=3.0, extend=True)
    flags = {"default_root_dir": str(tmp_path), "enable_checkpointing": True}
    for rounds, checkpoint in ((2, None), (4, str(tmp_path / "last.ckpt"))):
        federation = FederatedOrchestrator(local=LocalTraining(max_epochs=1, privacy=privacy))
        data = FederatedDataModule(Visits(persons), Consecutive([15, 25]))
        trainer(rounds, federation, every_round(tmp_path), **flags).fit(Plain(), data, ckpt_path=checkpoint)
        turns = [(line["noise"]["examples"], k) for line in lines(tmp_path) if "rates" in line for k in (0, 1)]
        assert len(turns) == 2 * rounds
        spent = max(spent_by_persons(data, persons, turns, 1e-3).values())
        assert 0.98 * 3 <= spent <= 3 * 1.005
    assert len({noise for noise, _ in turns}) == 2


def test_the_table_before_a_run_composes_over_clients_too():
    persons = np.arange(40) % 13
    federation = FederatedOrchestrator(local=LocalTraining(max_epochs=1, privacy=ExamplePrivacy(1.0, 1.5, 1e-3)))
    data = FederatedDataModule(Visits(persons), Consecutive([20, 20]))
    data.setup("fit")
    configured, *_ = privacy_rows(federation, trainer(2, federation), data)
    each = spent_by_persons(data, persons, [(1.5, 0), (1.5, 1)] * 2, 1e-3)
    assert configured[-1] == pytest.approx(max(each.values()), rel=0.01, abs=0.01)


def test_a_public_share_is_at_all_clients():
    """Of a row that every client trains on besides its own: the steps of both clients."""
    data = FederatedDataModule(Blobs(n=41), IIDPartitioner(2), public_share=0.2)
    run = trainer(1, FederatedOrchestrator(local=LocalTraining(max_epochs=1, privacy=ExamplePrivacy(1.0, 1.2, 1e-3))))
    run.fit(Plain(), data)
    sizes = [len(own) + len(data.splits.public) for own in data.splits.training]
    steps = [(1.2, 5 / size, math.ceil(size / 5)) for size in sizes]
    assert float(run.logged_metrics["federation/epsilon_of_examples"]) == pytest.approx(composed(steps, 1e-3), rel=0.01)


def test_held_out_clients_share_nobody():
    """They never train, so a person of theirs and of one other client is at that one alone."""
    data = FederatedDataModule(Visits(np.arange(40) % 20), Consecutive([20, 20]), held_out_clients=["1"])
    data.setup("fit")
    assert data.sharing == []


def test_privacy_of_clients_says_that_it_does_not_cover_persons_at_several(recwarn):
    federate(Plain(), 1, data=Visits(np.arange(40) % 20), transforms=[ClientPrivacy(1.0, 1.0)], strategy=FedAvg("uniform"))
    said = [str(warning.message) for warning in recwarn]
    assert any("Epsilon of clients covers the examples that one client has of a person, not all" in text for text in said)
