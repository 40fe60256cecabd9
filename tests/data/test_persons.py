"""Several rows of one person: parts hold all of them, and differential privacy covers the person."""

import copy
import json
import math
from collections.abc import Iterable
from typing import Any

import dp_accounting
import numpy as np
import pytest
import shake
import torch
from against_hand import Updates
from client_sites import Visits, fitted, of_persons
from dp_accounting.pld import PLDAccountant
from federations import Blobs, Consecutive, Plain, every_round, federate, ready, trainer
from hypothesis import given
from hypothesis import strategies as st
from lazy_stores import Opened
from small_tables import write
from torch.nn import functional as F
from torch.utils.data import ConcatDataset, Subset, TensorDataset

import fl_lightning as fl
from fl_lightning import DataError, DomainPartitioner, FederatedDataModule, Partition, TableDataModule
from fl_lightning.data.labels import read_persons
from fl_lightning.data.tensor_loader import PoissonBatches
from fl_lightning.functional.splitting import count_units, hold_out

# ------ Several rows of one person


# ---------------------------------------------------------------- parts


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
    data = ready(FederatedDataModule.from_clients({"a": of_persons(3, one), "b": of_persons(3, other)}))
    here, there = data.splits.persons.split(3)
    assert [(i, k) for i in range(3) for k in range(3) if here[i] == there[k]] == shared
    assert data.client_datasets.sharing == [(0, 1)] * bool(shared)
    assert (here[0] == here[1]) == (one[0] == one[1])


class Twice(Subset[Any]):
    def __len__(self) -> int:
        return 2 * len(self.indices)


def test_persons_that_are_not_one_for_each_example_are_refused():
    """They counted as none, so that each row was a person; a number or a method names none."""
    assert {read_persons(of_persons(4, persons)) for persons in (None, 12, lambda: 12)} == {None}
    for dataset in (of_persons(4, [0, 0, 1]), of_persons(4, [])):
        with pytest.raises(DataError, match=f"names persons, but not one for each of its {len(dataset)} examples"):
            read_persons(dataset)
    with pytest.raises(DataError, match="Twice overrides how examples are read, so the 'persons' of the data inside may not"):
        read_persons(Twice(of_persons(4, [0, 0, 1, 1]), range(4)))
    with pytest.raises(DataError, match=r"names 'persons' in 1 of the 2 datasets that it joins\. Name them in all,"):
        read_persons(ConcatDataset([of_persons(6, np.arange(6) // 2), TensorDataset(*Blobs(n=6).train)]))


def test_a_table_names_its_persons_in_a_column():
    """The column is no feature, and the server's share has whole persons, too."""
    for name, rows, visits in (("a", 40, 4), ("b", 30, 3)):
        cells = (f"p{k // visits},{k},{k % 7},{'xyz'[k % 3]}" for k in range(rows))
        write(f"sites/{name}.csv", "patient,age,dose,outcome", *cells)
    settings = {"kind": "classification", "standardize": False, "person_column": "patient"}
    base = TableDataModule("sites", "outcome", test_share=0.2, **settings)
    data = ready(FederatedDataModule(base, DomainPartitioner(), client_test=0.25))
    assert base.feature_names == ("age", "dose")
    ages = {k: base.train_set.tensors[0][:, 0].long()[data.splits.training[k]] for k in range(2)}
    tests = {k: base.train_set.tensors[0][:, 0].long()[data.splits.test[k]] for k in range(2)}
    for k, visits in ((0, 4), (1, 3)):
        persons = {int(age) // visits for age in ages[k]}, {int(age) // visits for age in tests[k]}
        assert not persons[0] & persons[1]
        assert len(tests[k]) == visits * len(persons[1])
        assert len(ages[k]) + len(tests[k]) == visits * 8  # of ten persons, two are the server's
    assert len(persons[1]) == 2  # a quarter of eight


# ------ Differential privacy covers a person with several rows, also at several clients


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
    privacy = fl.ExamplePrivacy(length, 1e-9, noise_seed=4)
    data = Visits(persons, n=20)
    federate(module, 1, data=data, partitioner=Consecutive([20]), local=fl.LocalTraining(max_epochs=3, privacy=privacy))
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
    privacy = fl.LocalTraining(privacy=fl.ExamplePrivacy(1.0, 1.0))
    flags = {"default_root_dir": str(tmp_path), "enable_checkpointing": True}
    federate(Plain(), 1, every_round(tmp_path), data=Visits(np.arange(40) // 2), local=privacy, flags=flags)
    for persons in (None, np.arange(40) % 20):
        with pytest.raises(fl.CheckpointError, match=r"'data.persons' '40 examples of 20 persons \(.*, but this run has"):
            federate(Plain(), 2, data=Visits(persons), local=privacy, flags=flags, ckpt_path=str(tmp_path / "last.ckpt"))


def test_persons_of_clients_that_are_read_when_they_are_drawn():
    """Whether others hold them, too, is not known, so no epsilon is; figures count them."""

    def opened(client):
        return of_persons(12, np.arange(12) // 4)

    data = fl.FederatedDataModule(Opened(opened, [12, 12], 32))
    with pytest.raises(
        fl.ConfigurationError, match=r"persons are not known beforehand, which 'federation.local.privacy' needs"
    ):
        fitted(data, rounds=1, local=fl.LocalTraining(privacy=fl.ExamplePrivacy(1.0, 1.0)))
    assert data.evaluated_persons(1, "training").tolist() == [0] * 4 + [1] * 4 + [2] * 4


def test_persons_of_the_clients_own_test_sets():
    sets = {"a": TensorDataset(*Blobs(n=12).train)}
    data = ready(fl.FederatedDataModule.from_clients(sets, test={"a": of_persons(6, ["x", "x", "y", "y", "y", "x"])}))
    x, y = data.evaluated_persons(0, "test")[[0, 2]].tolist()
    assert data.evaluated_persons(0, "test").tolist() == [x, x, y, y, y, x]
    assert x != y
    assert len({x, y, *data.evaluated_persons(0, "training").tolist()}) == 14


def composed(releases: Iterable[tuple[float, float, int]], delta: float) -> float:
    """Epsilon of steps with several noises and rates together, by dp-accounting's own accountant."""
    accountant = PLDAccountant(value_discretization_interval=5e-3)
    for noise, rate, steps in releases:
        accountant.compose(dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(noise)), steps)
    return float(accountant.get_epsilon(delta))


def spent_by_persons(data: fl.FederatedDataModule, persons: Any, turns: Iterable[tuple[float, int]], delta: float) -> dict:
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
    local = fl.LocalTraining(max_epochs=1, privacy=fl.ExamplePrivacy(1.0, 1.2, 1e-5))
    data, updates = fl.FederatedDataModule(Visits(persons, n=300), fl.IIDPartitioner(4)), Updates()
    _, run = fitted(data, updates, rounds=3, local=local, clients_per_round=3)
    turns = [(1.2, update.client) for updates_of in updates.rounds for update in updates_of]
    each = spent_by_persons(data, persons, turns, 1e-5)
    told = float(run.logged_metrics["federation/epsilon_of_examples"])
    assert told == pytest.approx(max(each.values()), rel=0.01, abs=0.01)
    for update in updates.rounds[-1]:
        own = {persons[row] for row in data.splits.training[update.client].tolist()}
        assert update.epsilon == pytest.approx(max(each[person] for person in own), rel=0.01, abs=0.01)
    said = [str(warning.message) for warning in recwarn]
    assert sum("Some persons have examples at several clients, at up to 4." in text for text in said) == 1


@pytest.mark.slow
def test_noise_is_solved_for_the_persons_at_several_clients(tmp_path):
    """Two planned rounds that are extended to four: the ledger's steps, with both noises, end at the target."""
    persons = np.arange(40) % 9
    privacy = fl.ExamplePrivacy(1.0, delta=1e-3, target_epsilon=3.0, extend=True)
    flags = {"default_root_dir": str(tmp_path), "enable_checkpointing": True}
    for rounds, checkpoint in ((2, None), (4, str(tmp_path / "last.ckpt"))):
        federation = fl.FederatedOrchestrator(local=fl.LocalTraining(max_epochs=1, privacy=privacy))
        data = fl.FederatedDataModule(Visits(persons), Consecutive([15, 25]))
        trainer(rounds, federation, every_round(tmp_path), **flags).fit(Plain(), data, ckpt_path=checkpoint)
        ledger = [json.loads(line) for line in (tmp_path / "lightning_logs/privacy_ledger.jsonl").read_text().splitlines()]
        turns = [(line["noise"]["examples"], k) for line in ledger if "rates" in line for k in (0, 1)]
        assert len(turns) == 2 * rounds
        spent = max(spent_by_persons(data, persons, turns, 1e-3).values())
        assert 0.98 * 3 <= spent <= 3 * 1.005
    assert len({noise for noise, _ in turns}) == 2


def test_a_public_share_is_at_all_clients():
    """Of a row that every client trains on besides its own: the steps of both clients."""
    data = fl.FederatedDataModule(Blobs(n=41), fl.IIDPartitioner(2), public_share=0.2)
    _, run = fitted(data, rounds=1, local=fl.LocalTraining(max_epochs=1, privacy=fl.ExamplePrivacy(1.0, 1.2, 1e-3)))
    sizes = [len(own) + len(data.splits.public) for own in data.splits.training]
    steps = [(1.2, 5 / size, math.ceil(size / 5)) for size in sizes]
    assert float(run.logged_metrics["federation/epsilon_of_examples"]) == pytest.approx(composed(steps, 1e-3), rel=0.01)


def test_held_out_clients_share_nobody():
    """They never train, so a person of theirs and of one other client is at that one alone."""
    data = ready(fl.FederatedDataModule(Visits(np.arange(40) % 20), Consecutive([20, 20]), held_out_clients=["1"]))
    assert data.client_datasets.sharing == []


def test_privacy_of_clients_says_that_it_does_not_cover_persons_at_several(recwarn):
    federate(
        Plain(), 1, data=Visits(np.arange(40) % 20), transforms=[fl.ClientPrivacy(1.0, 1.0)], strategy=fl.FedAvg("uniform")
    )
    said = [str(warning.message) for warning in recwarn]
    assert any("Epsilon of clients covers the examples that one client has of a person, not all" in text for text in said)
