"""Several rows of one person: parts hold all of them, and differential privacy covers the person."""

from typing import Any

import numpy as np
import pytest
import torch
from client_sites import Visits, of_persons
from federations import SIZES, Blobs, Consecutive, ready
from hypothesis import given
from hypothesis import strategies as st
from small_tables import write
from torch.utils.data import ConcatDataset, Subset, TensorDataset

from fl_lightning import DataError, DomainPartitioner, FederatedDataModule, Partition, TableDataModule
from fl_lightning.data.labels import read_persons
from fl_lightning.functional.splitting import count_units, hold_out

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


def test_parts_of_a_federation_keep_persons_together():
    persons = np.array([f"p{k // 3}" for k in range(sum(SIZES))])
    data = ready(FederatedDataModule(Visits(persons), Consecutive(), client_validation=0.2, client_test=0.3))
    for k in range(3):
        parts = [set(persons[part[k].numpy()]) for part in (data.splits.training, data.splits.validation, data.splits.test)]
        assert all(parts)
        assert not (parts[0] & parts[1])
        assert not (parts[0] & parts[2])
        assert not (parts[1] & parts[2])


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


def test_a_number_or_a_method_names_no_persons():
    for persons in (None, 12, lambda: 12):
        assert read_persons(of_persons(4, persons)) is None


class Twice(Subset[Any]):
    def __len__(self) -> int:
        return 2 * len(self.indices)


def test_persons_that_are_not_one_for_each_example_are_refused():
    """They counted as none, so that each row was a person."""
    for dataset in (of_persons(4, [0, 0, 1]), of_persons(4, [])):
        with pytest.raises(DataError, match=f"names persons, but not one for each of its {len(dataset)} examples"):
            read_persons(dataset)
    with pytest.raises(DataError, match="Twice overrides how examples are read, so the 'persons' of the data inside may not"):
        read_persons(Twice(of_persons(4, [0, 0, 1, 1]), range(4)))
    with pytest.raises(DataError, match=r"names 'persons' in 1 of the 2 datasets that it joins\. Name them in all,"):
        read_persons(ConcatDataset([of_persons(6, np.arange(6) // 2), TensorDataset(*Blobs(n=6).train)]))


def test_tables_of_their_own_share_persons_by_name():
    """Files in which the same number of a patient in the sorted order is another patient."""
    for name, patients in (("a", "pqr"), ("b", "rst")):
        write(f"{name}.csv", "patient,age,outcome", *(f"{p},{k},{k % 2}" for k, p in enumerate(patients)))
    settings = {"kind": "classification", "person_column": "patient", "test_share": 0, "standardize": False}
    sets = {name: TableDataModule(f"{name}.csv", "outcome", **settings) for name in "ab"}
    for base in sets.values():
        base.setup("fit")
    data = ready(FederatedDataModule.from_clients({name: base.train_set for name, base in sets.items()}))
    persons = data.splits.persons.tolist()
    assert persons[2] == persons[3]
    assert len(set(persons)) == 5


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
