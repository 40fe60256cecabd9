"""Partitions: nobody lost, nobody twice, and what each partitioner promises, on labels of every kind."""

from functools import partial

import numpy as np
import pytest
import torch
import yaml
from command_line import ROOT
from hypothesis import given
from hypothesis import strategies as st
from random_labels import MNIST, assert_shared_out, betas, clients_of, few_labels, mixed, seeds, split, table_of

import fl_lightning as fl
from fl_lightning.functional.partition import scale_table


@given(st.integers(1, 200), st.integers(1, 200), st.integers(0, 2**31))
def test_iid_loses_nobody(n, clients, seed):
    partition = split(fl.IIDPartitioner(clients, seed), torch.zeros(n))
    if partition is None:
        assert clients > n
        return
    assert_shared_out(partition, clients, range(n))
    assert int(partition.sizes.max() - partition.sizes.min()) <= 1


counts = st.lists(st.lists(st.integers(0, 6), min_size=3, max_size=3).filter(any), min_size=1, max_size=5)


@given(counts, st.integers(0, 2**31))
def test_a_table_is_met_exactly(table, seed):
    labels = torch.arange(3).repeat_interleave(30)[torch.randperm(90, generator=torch.Generator().manual_seed(seed))]
    parts = fl.TablePartitioner(table, seed).partition(90, labels)
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


@pytest.mark.parametrize(
    "make", [fl.DirichletPartitioner, partial(fl.DirichletPartitioner, capped=False), fl.QuantityPartitioner]
)
@given(few_labels, clients_of, betas, st.integers(1, 4), seeds)
def test_random_shares_lose_nobody(make, labels, clients, beta, least, seed):
    partition = split(make(num_clients=clients, beta=beta, min_examples=least, seed=seed), labels)
    if partition is None:
        assert clients > 1 or len(labels) < least
        return
    assert_shared_out(partition, clients, range(len(labels)))
    assert min(len(part) for part in partition) >= least


@given(few_labels, clients_of, st.integers(1, 4), seeds)
def test_shards_are_equal_and_bound_the_classes_of_a_client(labels, clients, each, seed):
    partition = split(fl.ShardPartitioner(clients, each, seed), labels)
    if partition is None:
        assert len(labels) < clients * each
        return
    assert_shared_out(partition, clients, range(len(labels)))
    sizes = [len(part) for part in partition]
    assert max(sizes) - min(sizes) <= each
    held = [len(labels[part].unique()) for part in partition]
    present, smallest = len(labels.unique()), labels.bincount()[labels.unique()].min()
    assert sum(held) <= clients * each + present - 1
    if smallest >= -(-len(labels) // (clients * each)):
        assert max(held) <= 2 * each


@given(few_labels, clients_of, st.integers(1, 4), seeds)
def test_every_client_holds_exactly_c_classes(labels, clients, wanted, seed):
    counts = [count for count in labels.bincount().tolist() if count]
    partition = split(fl.ClassesPartitioner(clients, wanted, seed), labels)
    if partition is None:
        fits = wanted <= len(counts) <= clients * wanted
        assert not fits or min(counts) < -(-clients * wanted // len(counts))
        return
    assert_dealt(partition, labels, clients, wanted)


def assert_dealt(partition, labels, clients, wanted):
    assert_shared_out(partition, clients, range(len(labels)))
    table = np.array(table_of(partition, labels, 7))[:, labels.unique().numpy()]
    assert ((table > 0).sum(1) == wanted).all()
    holders = (table > 0).sum(0)
    assert holders.max() - holders.min() <= 1
    shares = [column[column > 0] for column in table.T]
    assert all(share.max() - share.min() <= 1 for share in shares)


@given(st.lists(st.integers(-3, 6), min_size=1, max_size=60).map(torch.tensor), st.integers(1, 9))
def test_a_client_for_every_value_of_a_column(column, least):
    values = [v for v in range(-3, 7) if (column == v).sum() >= least]
    partition = split(fl.ColumnPartitioner("user", least), column)
    if partition is None:
        assert not values
        return
    assert partition.names == tuple(str(value) for value in values)
    assert [part.tolist() for part in partition] == [(column == value).nonzero().flatten().tolist() for value in values]


@given(few_labels, st.integers(1, 4), seeds)
def test_domains_are_shared_evenly_by_their_clients(domains, several, seed):
    partition = split(fl.DomainPartitioner(several, seed), domains)
    values, counts = domains.unique(return_counts=True)
    if partition is None:
        assert counts.min() < several
        return
    assert_shared_out(partition, len(values) * several, range(len(domains)))
    for client, part in enumerate(partition):
        domain = client // several
        assert (domains[part] == values[domain]).all()
        assert len(part) in (counts[domain] // several, -(-counts[domain] // several))


@pytest.mark.parametrize(
    "partitioner",
    [
        lambda seed: fl.IIDPartitioner(seed=seed),
        lambda seed: fl.DirichletPartitioner(seed=seed),
        lambda seed: fl.QuantityPartitioner(seed=seed),
        lambda seed: fl.ShardPartitioner(seed=seed),
        lambda seed: fl.ClassesPartitioner(seed=seed),
        lambda seed: fl.DomainPartitioner(3, seed),
        lambda seed: fl.AdaFedSimulation1(seed=seed),
        lambda seed: fl.TablePartitioner([[30] * 10] * 5, seed),
    ],
)
def test_a_seed_decides(partitioner):
    labels = torch.arange(10).repeat(700)
    one, same, other = (partitioner(seed).partition(7000, labels) for seed in (1, 1, 2))
    assert torch.equal(one.order, same.order)
    assert torch.equal(one.offsets, same.offsets)
    assert not torch.equal(one.order, other.order)


@pytest.mark.parametrize(("partitioner", "least"), [(fl.DirichletPartitioner, 50), (fl.QuantityPartitioner, 15)])
def test_draws_again_until_everybody_has_enough(partitioner, least):
    labels = torch.arange(4).repeat(100)
    again = 0
    for seed in range(20):
        first = partitioner(4, 1.0, min_examples=1, seed=seed).partition(400, labels).sizes.min()
        enough = partitioner(4, 1.0, min_examples=least, seed=seed).partition(400, labels).sizes.min()
        assert enough >= least
        again += int(first < least)
    assert again > 0


def test_adafeds_first_simulation_on_mnist():
    """5,500 where there are as many once client 5 has its 500, otherwise the class's size less 500."""
    labels = mixed(MNIST)
    partition = fl.AdaFedSimulation1().partition(60000, labels)
    assert table_of(partition, labels, 10) == [
        [100, 5500, 0, 0, 0, 0, 0, 0, 0, 0],
        [0, 0, 5458, 5500, 0, 0, 0, 0, 0, 0],
        [0, 0, 0, 0, 5342, 200, 0, 0, 0, 0],
        [0, 0, 0, 0, 0, 0, 5418, 5500, 0, 0],
        [0, 0, 0, 0, 0, 0, 0, 0, 5351, 5449],
        [500] * 10,
    ]
    assert len(set(partition.order.tolist())) == 100 + 5500 + 5458 + 5500 + 5342 + 200 + 5418 + 5500 + 5351 + 5449 + 5000
    assert table_of(fl.AdaFedSimulation1(in_total=True).partition(60000, labels), labels, 10) == [
        [100, 2750, 0, 0, 0, 0, 0, 0, 0, 0],
        [0, 0, 2750, 2750, 0, 0, 0, 0, 0, 0],
        [0, 0, 0, 0, 2750, 200, 0, 0, 0, 0],
        [0, 0, 0, 0, 0, 0, 2750, 2750, 0, 0],
        [0, 0, 0, 0, 0, 0, 0, 0, 2750, 2750],
        [500] * 10,
    ]


def test_adafeds_second_simulation_on_mnist():
    config = yaml.safe_load((ROOT / "configs" / "adafed_mnist.yaml").read_text())
    table, labels = config["data"]["partitioner"]["init_args"]["counts"], mixed(MNIST)
    assert table_of(fl.TablePartitioner(table).partition(60000, labels), labels, 10) == table
    assert sum(map(sum, table)) == 10_110
