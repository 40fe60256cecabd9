"""Partitions: nobody lost, nobody twice, exactly the counts that were asked for."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import ConcatDataset, Dataset, Subset, TensorDataset

from fl_lightning import DataError, IIDPartitioner, TablePartitioner
from fl_lightning.data.labels import read_labels
from fl_lightning.functional import scale_table


@given(st.integers(1, 200), st.integers(1, 200), st.integers(0, 2**31))
def test_iid_loses_nobody(n, clients, seed):
    if clients > n:
        with pytest.raises(DataError, match="every client needs at least one"):
            IIDPartitioner(clients, seed).partition(n)
        return
    parts = IIDPartitioner(clients, seed).partition(n)
    assert sorted(parts.order.tolist()) == list(range(n))
    sizes = [len(part) for part in parts]
    assert max(sizes) - min(sizes) <= 1
    assert all(torch.equal(a, b) for a, b in zip(parts, IIDPartitioner(clients, seed).partition(n), strict=True))


counts = st.lists(st.lists(st.integers(0, 6), min_size=3, max_size=3).filter(any), min_size=1, max_size=5)


@given(counts, st.integers(0, 2**31))
def test_a_table_is_met_exactly(table, seed):
    labels = torch.arange(3).repeat_interleave(30)[torch.randperm(90, generator=torch.Generator().manual_seed(seed))]
    parts = TablePartitioner(table, seed).partition(90, labels)
    assert [torch.bincount(labels[part], minlength=3).tolist() for part in parts] == table
    everyone = parts.order.tolist()
    assert len(set(everyone)) == len(everyone)


@given(counts, st.lists(st.integers(5, 12), min_size=3, max_size=3))
def test_a_scaled_table_fits_and_forgets_no_class(table, available):
    scaled = scale_table(table, available)
    for column in range(3):
        wanted = sum(row[column] for row in table)
        got = sum(row[column] for row in scaled)
        assert got == wanted if wanted <= available[column] else available[column] - len(table) < got <= available[column]
    for row, was in zip(scaled, table, strict=True):
        assert [count > 0 for count in row] == [count > 0 for count in was]
    if all(sum(row[c] for row in table) <= available[c] for c in range(3)):
        assert scaled == table


def test_adafeds_table_on_400_digits_of_each_class():
    """4510 nines are wanted: they shrink by 400 / 4510, rounded down, but never to nothing; the zeros stay."""
    table = [[10, 500], [10, 3000], [0, 1010]]
    assert scale_table(table, [400, 400]) == [[10, 44], [10, 266], [0, 89]]
    assert scale_table([[1], [997], [1], [1]], [5]) == [[1], [2], [1], [1]]


class Pairs(Dataset):
    def __init__(self, labels):
        self.pairs = [(torch.zeros(2), label) for label in labels]

    def __len__(self):
        return len(self.pairs)

    def __getitem__(self, index):
        return self.pairs[index]


class WithTargets(Pairs):
    def __getitem__(self, index):
        raise AssertionError("targets are there: nothing has to be read")

    @property
    def targets(self):
        return [label for _, label in self.pairs]


def test_labels_are_read_however_a_dataset_gives_them():
    labels = [2, 0, 1, 1]
    tensors = TensorDataset(torch.zeros(4, 2), torch.tensor(labels))
    for dataset in (Pairs(labels), WithTargets(labels), tensors, Subset(tensors, range(4))):
        assert read_labels(dataset).tolist() == labels
    assert read_labels(ConcatDataset([WithTargets(labels), Subset(tensors, [3, 0])])).tolist() == [*labels, 1, 2]
    assert read_labels(ConcatDataset([Pairs([5]), tensors])).tolist() == [5, *labels]
