"""Skewed partitions: what each partitioner promises, its distribution in theory, and flwr-datasets as an oracle of it."""

from __future__ import annotations

import re
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from sklearn.model_selection import train_test_split

from fl_lightning import (
    AdaFedSimulation1,
    ClassesPartitioner,
    ColumnPartitioner,
    ConfigurationError,
    DataError,
    DirichletPartitioner,
    DomainPartitioner,
    FlowerPartitioner,
    IIDPartitioner,
    Partition,
    QuantityPartitioner,
    ShardPartitioner,
    TablePartitioner,
)
from fl_lightning.functional.splitting import class_balanced, hold_out
from fl_lightning.partitioners.base import draw_until

SETTING = re.compile(r"'data\.partitioner\.\w+'")
MNIST = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]


def mixed(counts):
    """Labels with so many examples of each class, in an order that never changes."""
    labels = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    return labels[torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))]


few_labels = st.lists(st.sampled_from([0, 1, 2, 5, 12, 19, 30]), min_size=1, max_size=7).filter(any).map(mixed)
clients_of = st.integers(1, 8)
seeds = st.integers(0, 2**31)
betas = st.sampled_from([0.05, 0.5, 5.0])


def table_of(partition, labels, num_classes):
    return [np.bincount(labels[part].numpy(), minlength=num_classes).tolist() for part in partition]


def split(partitioner, labels):
    """The partition, or None where the partitioner refuses and names a setting; drawn twice, whatever others draw."""
    try:
        partition = partitioner.partition(len(labels), labels)
    except DataError as error:
        if not SETTING.search(str(error)):
            raise
        return None
    torch.rand(3)
    np.random.rand(3)
    again = partitioner.partition(len(labels), labels)
    assert torch.equal(partition.order, again.order)
    assert torch.equal(partition.offsets, again.offsets)
    return partition


def assert_shared_out(partition, clients, everyone):
    parts = [part.tolist() for part in partition]
    assert len(parts) == len(partition) == clients
    assert all(parts)
    assert sorted(index for part in parts for index in part) == sorted(everyone)


@given(few_labels, clients_of, betas, st.booleans(), st.integers(1, 4), seeds)
def test_dirichlet_loses_nobody(labels, clients, beta, capped, least, seed):
    partition = split(DirichletPartitioner(clients, beta, capped, least, seed), labels)
    if partition is None:
        assert clients > 1 or len(labels) < least
        return
    assert_shared_out(partition, clients, range(len(labels)))
    assert min(len(part) for part in partition) >= least


@given(few_labels, clients_of, betas, st.integers(1, 4), seeds)
def test_quantity_loses_nobody(labels, clients, beta, least, seed):
    partition = split(QuantityPartitioner(clients, beta, least, seed), labels)
    if partition is None:
        assert clients > 1 or len(labels) < least
        return
    assert_shared_out(partition, clients, range(len(labels)))
    assert min(len(part) for part in partition) >= least


@given(few_labels, clients_of, st.integers(1, 4), seeds)
def test_shards_are_equal_and_bound_the_classes_of_a_client(labels, clients, each, seed):
    partition = split(ShardPartitioner(clients, each, seed), labels)
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
    partition = split(ClassesPartitioner(clients, wanted, seed), labels)
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


@pytest.mark.parametrize("classes", [1, 2, 5, 7])
def test_every_deal_is_even(classes):
    labels = torch.arange(classes).repeat(23)
    for clients in range(1, 12):
        for wanted in range(-(-classes // clients), classes + 1):
            partition = ClassesPartitioner(clients, wanted, seed=clients).partition(len(labels), labels)
            assert len(partition) == clients
            assert_dealt(partition, labels, clients, wanted)


def test_classes_that_cannot_be_dealt_as_asked():
    with pytest.raises(
        DataError, match=r"3 clients with 2 classes .* the 7 classes .*classes_per_client' to a number from 3 to 7"
    ):
        ClassesPartitioner(3, 2).partition(70, torch.arange(7).repeat(10))
    with pytest.raises(
        DataError, match=r"4 clients with 3 classes .* the 2 classes .*classes_per_client' to a number from 1 to 2"
    ):
        ClassesPartitioner(4, 3).partition(20, torch.arange(2).repeat(10))
    with pytest.raises(
        DataError, match=r"has 3 examples, fewer than .* \(about 4\)\. Lower 'data\.partitioner\.classes_per_client'"
    ):
        ClassesPartitioner(8, 1).partition(23, torch.tensor([0] * 20 + [1] * 3))


@given(st.lists(st.integers(-3, 6), min_size=1, max_size=60).map(torch.tensor), st.integers(1, 9))
def test_a_client_for_every_value_of_a_column(column, least):
    values = [v for v in range(-3, 7) if (column == v).sum() >= least]
    partition = split(ColumnPartitioner("user", least), column)
    if partition is None:
        assert not values
        return
    assert partition.names == tuple(str(value) for value in values)
    assert [part.tolist() for part in partition] == [(column == value).nonzero().flatten().tolist() for value in values]


@given(few_labels, st.integers(1, 4), seeds)
def test_domains_are_shared_evenly_by_their_clients(domains, several, seed):
    partition = split(DomainPartitioner(several, seed), domains)
    values, counts = domains.unique(return_counts=True)
    if partition is None:
        assert counts.min() < several
        return
    assert_shared_out(partition, len(values) * several, range(len(domains)))
    for client, part in enumerate(partition):
        domain = client // several
        assert (domains[part] == values[domain]).all()
        assert len(part) in (counts[domain] // several, -(-counts[domain] // several))


@given(few_labels, st.lists(st.lists(st.integers(0, 5), min_size=7, max_size=7).filter(any), min_size=1, max_size=5), seeds)
def test_a_table_gives_nobody_to_two_clients(labels, table, seed):
    available = labels.bincount(minlength=7).tolist()
    partition = split(TablePartitioner(table, seed, scale_to_fit=True), labels)
    if partition is None:
        assert any(sum(row[c] > 0 for row in table) > available[c] for c in range(7))
        return
    assert_shared_out(partition, len(table), set(partition.order.tolist()))
    for row, asked in zip(table_of(partition, labels, 7), table, strict=True):
        assert all(0 < got <= wanted or got == wanted == 0 for got, wanted in zip(row, asked, strict=True))


@pytest.mark.parametrize(
    "partitioner",
    [
        lambda seed: IIDPartitioner(seed=seed),
        lambda seed: DirichletPartitioner(seed=seed),
        lambda seed: QuantityPartitioner(seed=seed),
        lambda seed: ShardPartitioner(seed=seed),
        lambda seed: ClassesPartitioner(seed=seed),
        lambda seed: DomainPartitioner(3, seed),
        lambda seed: AdaFedSimulation1(seed=seed),
        lambda seed: TablePartitioner([[30] * 10] * 5, seed),
    ],
)
def test_a_seed_decides(partitioner):
    labels = torch.arange(10).repeat(700)
    one, same, other = (partitioner(seed).partition(7000, labels) for seed in (1, 1, 2))
    assert torch.equal(one.order, same.order)
    assert torch.equal(one.offsets, same.offsets)
    assert not torch.equal(one.order, other.order)


@pytest.mark.parametrize("beta", [0.0, -1.0, float("nan"), float("inf")])
@pytest.mark.parametrize("partitioner", [DirichletPartitioner, QuantityPartitioner])
def test_a_concentration_that_is_none(partitioner, beta):
    with pytest.raises(ConfigurationError, match=r"'data\.partitioner\.beta'"):
        partitioner(3, beta)


@pytest.mark.parametrize(
    ("make", "setting"),
    [
        (lambda: DirichletPartitioner(0), "num_clients"),
        (lambda: DirichletPartitioner(min_examples=0), "min_examples"),
        (lambda: QuantityPartitioner(0), "num_clients"),
        (lambda: QuantityPartitioner(min_examples=0), "min_examples"),
        (lambda: ShardPartitioner(0), "num_clients"),
        (lambda: ShardPartitioner(shards_per_client=0), "shards_per_client"),
        (lambda: ClassesPartitioner(0), "num_clients"),
        (lambda: ClassesPartitioner(classes_per_client=0), "classes_per_client"),
        (lambda: ColumnPartitioner(""), "column"),
        (lambda: ColumnPartitioner("user", 0), "min_examples"),
        (lambda: DomainPartitioner(0), "clients_per_domain"),
    ],
)
def test_settings_below_their_least(make, setting):
    with pytest.raises(ConfigurationError, match=rf"'data\.partitioner\.{setting}' must be"):
        make()


@pytest.mark.parametrize(
    "partitioner",
    [DirichletPartitioner(2), ShardPartitioner(2), ClassesPartitioner(2), AdaFedSimulation1(), ColumnPartitioner("user")],
)
def test_labels_that_are_missing(partitioner):
    with pytest.raises(DataError, match=rf"{type(partitioner).__name__} .*needs the (labels|values)"):
        partitioner.partition(3, None)


@pytest.mark.parametrize(
    "partitioner", [DirichletPartitioner(2), ShardPartitioner(2), ClassesPartitioner(2), AdaFedSimulation1()]
)
def test_labels_below_zero(partitioner):
    with pytest.raises(DataError, match="labels of 0 and above, but the lowest is -1"):
        partitioner.partition(3, torch.tensor([0, -1, 1]))


@pytest.mark.parametrize(
    "partitioner",
    [
        DirichletPartitioner(2),
        QuantityPartitioner(2),
        ShardPartitioner(2),
        ClassesPartitioner(2),
        ColumnPartitioner("user"),
        DomainPartitioner(2),
        TablePartitioner([[1, 2]]),
        AdaFedSimulation1(),
    ],
)
def test_no_examples_at_all(partitioner):
    with pytest.raises(DataError):
        partitioner.partition(0, torch.zeros(0, dtype=torch.int64))


def breaches(partition, labels, clients):
    """How often a client was given some of a class although it held n / K examples before."""
    held, found = [0] * clients, 0
    for row in np.array(table_of(partition, labels, int(labels.max()) + 1)).T.tolist():
        found += sum(1 for count, before in zip(row, held, strict=True) if count and before * clients >= len(labels))
        held = [before + count for count, before in zip(row, held, strict=True)]
    return found


@given(few_labels, clients_of, betas, seeds)
def test_who_holds_enough_gets_no_more(labels, clients, beta, seed):
    partition = split(DirichletPartitioner(clients, beta, min_examples=1, seed=seed), labels)
    assert partition is None or not breaches(partition, labels, clients)


def test_the_cap_is_what_keeps_clients_from_more():
    labels = torch.arange(8).repeat(100)
    found = dict.fromkeys((True, False), 0)
    for capped in found:
        for seed in range(10):
            partition = DirichletPartitioner(5, 0.5, capped, min_examples=1, seed=seed).partition(800, labels)
            found[capped] += breaches(partition, labels, 5)
    assert found[True] == 0 < found[False]


def test_the_cap_does_not_spread_a_class_more_than_beta_does():
    """With beta near 0 one client gets all of a class; where it is full, another gets all of it."""
    labels = torch.arange(4).repeat(25)
    for seed in range(10):
        table = table_of(DirichletPartitioner(4, 1e-6, min_examples=1, seed=seed).partition(100, labels), labels, 4)
        assert sorted(zip(*table, strict=True)) == [tuple(25 * (k == c) for k in range(4)) for c in (3, 2, 1, 0)]


@pytest.mark.parametrize(("partitioner", "least"), [(DirichletPartitioner, 50), (QuantityPartitioner, 15)])
def test_draws_again_until_everybody_has_enough(partitioner, least):
    labels = torch.arange(4).repeat(100)
    again = 0
    for seed in range(20):
        first = partitioner(4, 1.0, min_examples=1, seed=seed).partition(400, labels).sizes.min()
        enough = partitioner(4, 1.0, min_examples=least, seed=seed).partition(400, labels).sizes.min()
        assert enough >= least
        again += int(first < least)
    assert again > 0


@pytest.mark.parametrize("partitioner", [DirichletPartitioner, QuantityPartitioner])
def test_gives_up_after_ten_more_draws(partitioner):
    message = r"After 11 draws .* fewer than 101 examples, at best with (\d+)\. .*'data\.partitioner\.min_examples'"
    with pytest.raises(DataError, match=message) as caught:
        partitioner(4, 0.5, min_examples=101).partition(400, torch.arange(4).repeat(100))
    assert 0 < int(re.search(message, str(caught.value))[1]) <= 100


def test_draws_eleven_times_and_reports_the_best():
    smallest = iter([3, 1, 7, 2, 0, 5, 4, 6, 2, 1, 3, 9])
    with pytest.raises(DataError, match=r"at best with 7\. Mend it\."):
        draw_until(lambda: Partition(torch.arange(20), torch.tensor([0, next(smallest), 20])), 8, "Mend it.")
    assert list(smallest) == [9]


def test_adafeds_first_simulation_on_mnist():
    """5,500 where there are as many once client 5 has its 500, otherwise the class's size less 500."""
    labels = mixed(MNIST)
    partition = AdaFedSimulation1().partition(60000, labels)
    assert table_of(partition, labels, 10) == [
        [100, 5500, 0, 0, 0, 0, 0, 0, 0, 0],
        [0, 0, 5458, 5500, 0, 0, 0, 0, 0, 0],
        [0, 0, 0, 0, 5342, 200, 0, 0, 0, 0],
        [0, 0, 0, 0, 0, 0, 5418, 5500, 0, 0],
        [0, 0, 0, 0, 0, 0, 0, 0, 5351, 5449],
        [500] * 10,
    ]
    assert len(set(partition.order.tolist())) == 100 + 5500 + 5458 + 5500 + 5342 + 200 + 5418 + 5500 + 5351 + 5449 + 5000
    assert table_of(AdaFedSimulation1(in_total=True).partition(60000, labels), labels, 10) == [
        [100, 2750, 0, 0, 0, 0, 0, 0, 0, 0],
        [0, 0, 2750, 2750, 0, 0, 0, 0, 0, 0],
        [0, 0, 0, 0, 2750, 200, 0, 0, 0, 0],
        [0, 0, 0, 0, 0, 0, 2750, 2750, 0, 0],
        [0, 0, 0, 0, 0, 0, 0, 0, 2750, 2750],
        [500] * 10,
    ]


def test_adafeds_first_simulation_on_a_stand_in():
    """400 of each class for 6,000: everything shrinks to a fifteenth, rounded down."""
    labels = torch.arange(10).repeat(400)
    assert table_of(AdaFedSimulation1().for_stand_in(labels).partition(4000, labels), labels, 10) == [
        [6, 366, 0, 0, 0, 0, 0, 0, 0, 0],
        [0, 0, 366, 366, 0, 0, 0, 0, 0, 0],
        [0, 0, 0, 0, 366, 13, 0, 0, 0, 0],
        [0, 0, 0, 0, 0, 0, 366, 366, 0, 0],
        [0, 0, 0, 0, 0, 0, 0, 0, 366, 366],
        [33] * 10,
    ]


@pytest.mark.parametrize("counts", [[501] * 9, [501] * 9 + [500], [501] * 11])
def test_adafeds_first_simulation_needs_ten_classes(counts):
    labels = mixed(counts)
    found = re.escape(str(counts if len(counts) > 9 else [*counts, 0]))
    with pytest.raises(DataError, match=rf"classes 0 to 9 with more than 500 .* {found}"):
        AdaFedSimulation1().partition(len(labels), labels)


def test_columns_name_their_clients():
    codes = torch.tensor([2, 0, 2, 3, 0, 2])
    partition = ColumnPartitioner("hospital", min_examples=2).partition_by(codes, ["Bonn", "Gent", "Lund", "Pisa"])
    assert partition.names == ("Bonn", "Lund")
    assert [part.tolist() for part in partition] == [[1, 4], [0, 2, 5]]
    with pytest.raises(DataError, match=r"'hospital' has 4 examples; the most has 3. .*'data.partitioner.min_examples'"):
        ColumnPartitioner("hospital", min_examples=4).partition_by(codes, ["Bonn", "Gent", "Lund", "Pisa"])


def test_numbers_of_a_column_are_sorted_as_numbers():
    partition = ColumnPartitioner("user").partition(4, torch.tensor([100, 9, 10, 9]))
    assert partition.names == ("9", "10", "100")
    assert [part.tolist() for part in partition] == [[1, 3], [2], [0]]


def test_domains_name_their_clients():
    codes = torch.tensor([0, 1, 0, 1, 1, 1, 1, 0])
    assert DomainPartitioner().partition_by(codes, ["photo", "sketch"]).names == ("photo", "sketch")
    partition = DomainPartitioner(2).partition_by(codes, ["photo", "sketch"])
    assert partition.names == ("photo 0", "photo 1", "sketch 0", "sketch 1")
    assert [len(part) for part in partition] == [2, 1, 3, 2]
    with pytest.raises(DataError, match=r"'photo' has 3 examples for 4 clients. .*'data.partitioner.clients_per_domain'"):
        DomainPartitioner(4).partition_by(codes, ["photo", "sketch"])


@pytest.mark.parametrize("beta", [0.5, 5.0])
def test_shares_of_a_class_are_dirichlet(beta):
    """One client's shares are Beta(beta, (K - 1) beta): mean 1 / K, variance (1 / K)(1 - 1 / K) / (K beta + 1)."""
    clients, classes, size = 10, 50, 10_000
    labels = torch.arange(classes).repeat(size)
    draws = [DirichletPartitioner(clients, beta, capped=False, seed=s).partition(len(labels), labels) for s in range(4)]
    shares = np.concatenate([np.array(table_of(draw, labels, classes)).T for draw in draws]) / size
    assert_beta(shares, clients, beta)
    near = [draw[0][labels[draw[0]] == 0].numpy() / len(labels) for draw in draws]
    assert all(stats.kstest(places, "uniform").pvalue > 0.001 for places in near)


@pytest.mark.parametrize("beta", [0.5, 5.0])
def test_sizes_are_dirichlet_and_contents_uniform(beta):
    size = 20_000
    draws = [QuantityPartitioner(10, beta, min_examples=1, seed=seed).partition(size) for seed in range(300)]
    if beta > 1:
        assert_beta(np.stack([draw.sizes.numpy() for draw in draws]) / size, 10, beta)
    first = draws[0]
    classes = np.repeat(np.arange(4), size // 4)
    table = [np.bincount(classes[part.numpy()], minlength=4) for part in first if len(part) > 50]
    assert stats.chi2_contingency(np.array(table)).pvalue > 0.001


def assert_beta(shares, clients, beta):
    for client in (0, clients // 2, clients - 1):
        assert stats.kstest(shares[:, client], stats.beta(beta, (clients - 1) * beta).cdf).pvalue > 0.001
    assert np.allclose(shares.sum(1), 1)
    squares = ((shares - 1 / clients) ** 2).mean(1)
    error = squares.std() / len(squares) ** 0.5
    assert abs(squares.mean() - (1 / clients) * (1 - 1 / clients) / (clients * beta + 1)) < 4 * error
    means = shares.mean(0)
    assert (abs(means - 1 / clients) < 4 * shares.std(0) / len(shares) ** 0.5).all()


@pytest.fixture(scope="module")
def flower():
    return pytest.importorskip("flwr_datasets.partitioner")


@pytest.fixture(scope="module")
def of_flower(flower):
    """Tables of partitioners of flwr-datasets over sorted labels, read without its slow way through Arrow."""
    from datasets import Dataset

    class Sorted(Dataset):
        def __getitem__(self, key):
            return self.data[key].to_numpy()

        def select(self, indices):
            return np.array(indices)

        def sort(self, column):
            return self

    def tables(partitioners, labels):
        rows = Sorted(Dataset.from_dict({"label": labels.numpy()}).data)
        found = []
        for partitioner in partitioners:
            partitioner.dataset = rows
            parts = [torch.from_numpy(partitioner.load_partition(k)) for k in range(partitioner.num_partitions)]
            found.append(table_of(parts, labels, int(labels.max()) + 1))
        return np.array(found)

    return tables


CLASSES, CLIENTS = [150, 40, 90, 60, 120, 80, 30, 130], 5
UNEVEN = torch.arange(8).repeat_interleave(torch.tensor(CLASSES))


def tables_of_ours(partitioners, labels):
    parts = (partitioner.partition(len(labels), labels) for partitioner in partitioners)
    return np.array([table_of(partition, labels, int(labels.max()) + 1) for partition in parts])


def statistics(tables):
    """A few numbers of each of many tables of client x class."""
    sizes = tables.sum(2)
    return {
        "first class": tables[:, 0, 0],
        "last class": tables[:, -1, -1],
        "share of the last class that one client holds": tables[:, :, -1].max(1),
        "a size": sizes[:, 2],
        "smallest": sizes.min(1),
        "largest": sizes.max(1),
        "classes": (tables > 0).sum(2)[:, 1],
    }


def assert_alike(ours, theirs):
    ours, theirs = statistics(ours), statistics(theirs)
    for name, values in ours.items():
        assert stats.ks_2samp(values, theirs[name], method="asymp").pvalue > 0.001, name


@pytest.mark.parametrize("capped", [False, True])
def test_label_skew_is_that_of_flower(flower, of_flower, capped):
    theirs = of_flower((flower.DirichletPartitioner(CLIENTS, "label", 0.5, 5, capped, seed=s) for s in range(150)), UNEVEN)
    assert_alike(tables_of_ours((DirichletPartitioner(CLIENTS, 0.5, capped, 5, s) for s in range(150)), UNEVEN), theirs)
    otherwise = tables_of_ours((DirichletPartitioner(CLIENTS, 0.5, not capped, 5, s) for s in range(150)), UNEVEN)
    assert stats.ks_2samp(statistics(otherwise)["largest"], statistics(theirs)["largest"], method="asymp").pvalue < 1e-6


@pytest.mark.parametrize("each", [1, 3])
def test_shards_are_those_of_flower(flower, of_flower, each):
    labels = UNEVEN[: len(UNEVEN) // (each * CLIENTS) * each * CLIENTS]
    theirs = of_flower((flower.ShardPartitioner(CLIENTS, "label", each, seed=s) for s in range(150)), labels)
    ours = tables_of_ours((ShardPartitioner(CLIENTS, each, s) for s in range(150)), labels)
    assert ours.sum(2).tolist() == theirs.sum(2).tolist()
    assert_alike(ours, theirs)


@pytest.mark.filterwarnings("ignore:Classes:UserWarning")
def test_classes_are_dealt_as_flower_deals_them(flower, of_flower):
    """One client's classes are any c of them alike, here and there; over all clients, only ours are even."""
    labels = torch.arange(5).repeat_interleave(40)
    theirs = of_flower((flower.PathologicalPartitioner(4, "label", 3, seed=s) for s in range(300)), labels)
    ours = tables_of_ours((ClassesPartitioner(4, 3, s) for s in range(300)), labels)
    hands = [[tuple(row) for row in (tables[:, 1] > 0).tolist()] for tables in (ours, theirs)]
    counted = np.array([[hand.count(kind) for kind in set(hands[0] + hands[1])] for hand in hands])
    assert counted.shape == (2, 10)
    assert stats.chi2_contingency(counted).pvalue > 0.001
    assert stats.chisquare(counted[0]).pvalue > 0.001


def test_an_even_deal_of_flower_has_our_counts(flower, of_flower):
    labels = torch.arange(6).repeat_interleave(torch.tensor([31, 40, 52, 60, 71, 83]))
    (theirs,) = of_flower([flower.PathologicalPartitioner(6, "label", 2, "deterministic")], labels)
    (ours,) = tables_of_ours([ClassesPartitioner(6, 2)], labels)
    assert np.sort(ours, axis=0).tolist() == np.sort(theirs, axis=0).tolist()


FLOWERS = {
    "dirichlet": lambda flower, seed: flower.DirichletPartitioner(4, "label", 0.5, seed=seed),
    "balanced": lambda flower, seed: flower.DirichletPartitioner(4, "label", 0.5, self_balancing=True, seed=seed),
    "shards": lambda flower, seed: flower.ShardPartitioner(4, "label", 2, seed=seed),
    "pathological": lambda flower, seed: flower.PathologicalPartitioner(4, "label", 3, seed=seed),
    "iid": lambda flower, seed: flower.IidPartitioner(4),
}


@pytest.mark.parametrize("name", FLOWERS)
def test_a_partitioner_of_flower_splits_as_it_does_without_us(flower, name):
    from datasets import Dataset

    labels = torch.arange(5).repeat(40)
    for seed in (1, 2):
        alone = FLOWERS[name](flower, seed)
        alone.dataset = Dataset.from_dict({"label": labels.tolist(), "row": list(range(200))})
        partition = FlowerPartitioner(FLOWERS[name](flower, seed)).partition(200, labels)
        assert isinstance(partition, Partition)
        assert [part.tolist() for part in partition] == [list(alone.load_partition(k)["row"]) for k in range(4)]


@settings(max_examples=15, deadline=None)
@given(st.lists(st.integers(0, 2), min_size=1, max_size=12).map(torch.tensor), clients_of)
def test_flower_loses_nobody(flower, labels, clients):
    partitioner = FlowerPartitioner(flower.IidPartitioner(clients))
    if len(labels) >= clients:
        assert_shared_out(partitioner.partition(len(labels), labels), clients, range(len(labels)))
        return
    with pytest.raises(DataError, match="IidPartitioner of flwr-datasets refuses: "):
        partitioner.partition(len(labels), labels)


def test_a_partitioner_of_flower_serves_other_data_too(flower):
    partitioner = FlowerPartitioner(flower.IidPartitioner(4))
    for n in (100, 40):
        assert sorted(partitioner.partition(n, None).order.tolist()) == list(range(n))


@pytest.mark.parametrize("wrong", [IIDPartitioner(3), "flwr_datasets.partitioner.IidPartitioner", None])
def test_what_is_no_partitioner_of_flower(wrong):
    with pytest.raises(ConfigurationError, match=rf"'data\.partitioner\.partitioner' .* is a {type(wrong).__name__}\. "):
        FlowerPartitioner(wrong)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda flower: flower.DirichletPartitioner(4, "label", 0.5, 100), "max number of attempts"),
        (lambda flower: flower.DirichletPartitioner(4, "digit", 0.5), "digit"),
        (lambda flower: flower.PathologicalPartitioner(4, "label", 6), "greater than the number of unique classes"),
        (lambda flower: flower.IidPartitioner(300), ""),
        (lambda flower: flower.ShardPartitioner(20, "label", 20), ""),
    ],
)
@pytest.mark.filterwarnings("ignore:The specified min_partition_size")
def test_errors_of_flower_come_back_as_ours(flower, make, message):
    partitioner = make(flower)
    with pytest.raises(DataError, match=rf"{type(partitioner).__name__} of flwr-datasets refuses: .*{message}"):
        FlowerPartitioner(partitioner).partition(200, torch.arange(5).repeat(40))


@st.composite
def holdings(draw):
    """Clients, some without any example, examples without a client, and how many of each client's to take."""
    clients = draw(clients_of)
    pairs = draw(st.lists(st.tuples(st.integers(-1, clients - 1), st.integers(0, 4)), min_size=1, max_size=80))
    parts = [torch.tensor([i for i, (o, _) in enumerate(pairs) if o == k], dtype=torch.int64) for k in range(clients)]
    sizes = [draw(st.integers(0, len(part))) for part in parts]
    return parts, torch.tensor(sizes), torch.tensor([label for _, label in pairs]), draw(seeds)


@given(holdings(), st.booleans())
def test_what_is_held_out_has_the_classes_proportions(case, with_labels):
    parts, sizes, labels, seed = case
    names = tuple(f"client {k}" for k in range(len(parts)))
    given_labels = labels if with_labels else None
    split_ = hold_out(Partition.of_parts(parts, names), sizes, given_labels, torch.Generator().manual_seed(seed))
    assert [part.names for part in split_] == [names, names]
    rest, taken = ([part.tolist() for part in half] for half in split_)
    assert [len(part) for part in taken] == sizes.tolist()
    for k, part in enumerate(parts):
        assert rest[k] == sorted(rest[k])
        assert taken[k] == sorted(taken[k])
        assert sorted(rest[k] + taken[k]) == part.tolist()
        if not with_labels or not len(part):
            continue
        up, down = [], []
        for label in set(labels[part].tolist()):
            quota = Fraction(int(sizes[k]) * int((labels[part] == label).sum()), len(part))
            extra = int((labels[taken[k]] == label).sum()) - quota.numerator // quota.denominator
            assert extra in ((0, 1) if quota.denominator > 1 else (0,))
            (up if extra else down).append(quota % 1)
        assert not up or not down or min(up) >= max(down)


@pytest.mark.parametrize("size", [200, 400, 1037])
def test_holds_out_as_many_of_each_class_as_scikit_learn(size):
    labels = mixed([523, 1187, 64, 302])
    _, taken = hold_out(Partition.of_parts([torch.arange(2076)]), torch.tensor([size]), labels, torch.Generator())
    _, theirs = train_test_split(labels.numpy(), test_size=size, stratify=labels.numpy(), random_state=0)
    assert table_of(taken, labels, 4)[0] == np.bincount(theirs).tolist()


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(2, 40), min_size=1, max_size=5), st.data())
def test_holds_out_what_scikit_learn_does_to_within_one(counts, data):
    labels = mixed(counts)
    n = len(labels)
    size = data.draw(st.integers(len(counts), n - len(counts)))
    _, taken = hold_out(Partition.of_parts([torch.arange(n)]), torch.tensor([size]), labels, torch.Generator())
    _, theirs = train_test_split(labels.numpy(), test_size=size, stratify=labels.numpy(), random_state=0)
    assert abs(np.array(table_of(taken, labels, len(counts))[0]) - np.bincount(theirs, minlength=len(counts))).max() <= 1


def test_equal_remainders_are_decided_by_chance():
    """Quotas of 1/3, 4/3 and 4/3: the third example is of any class alike."""
    labels = torch.tensor([0, 1, 1, 1, 1, 2, 2, 2, 2])
    who = Partition.of_parts([torch.arange(9)])
    rounded_up = [0, 0, 0]
    for seed in range(300):
        _, taken = hold_out(who, torch.tensor([3]), labels, torch.Generator().manual_seed(seed))
        extra = np.array(table_of(taken, labels, 3)[0]) - [0, 1, 1]
        rounded_up[int(extra.argmax())] += 1
    assert stats.chisquare(rounded_up).pvalue > 0.001


@pytest.mark.parametrize("labels", [None, torch.arange(4).repeat(5)])
def test_any_example_may_be_held_out(labels):
    who = Partition.of_parts([torch.arange(20)])
    takes = [hold_out(who, torch.tensor([8]), labels, torch.Generator().manual_seed(seed))[1].order for seed in range(400)]
    assert stats.chisquare(torch.cat(takes).bincount(minlength=20)).pvalue > 0.001


@given(few_labels, st.integers(0, 12), seeds)
def test_a_balanced_sample_has_as_many_of_each_class(labels, per_class, seed):
    chosen = class_balanced(labels, per_class, torch.Generator().manual_seed(seed))
    assert chosen.tolist() == sorted(set(chosen.tolist()))
    wanted = [min(per_class, labels.tolist().count(label)) for label in range(7)]
    assert labels[chosen].bincount(minlength=7).tolist() == wanted


def test_any_example_may_be_in_a_balanced_sample():
    labels = torch.tensor([0, 1, 1, 0, 2, 1, 1, 0])
    takes = torch.cat([class_balanced(labels, 1, torch.Generator().manual_seed(seed)) for seed in range(600)])
    counts = takes.bincount(minlength=8)
    assert counts[4] == 600
    for label in (0, 1):
        assert stats.chisquare(counts[labels == label]).pvalue > 0.001


@pytest.mark.parametrize(
    "partitioner",
    [
        IIDPartitioner(100_000),
        DirichletPartitioner(100_000, 100.0, min_examples=1),
        QuantityPartitioner(100_000, 100.0, min_examples=1),
        ShardPartitioner(100_000),
        ClassesPartitioner(100_000),
    ],
    ids=lambda partitioner: type(partitioner).__name__,
)
def test_a_hundred_thousand_clients_are_one_tensor(partitioner):
    labels = torch.arange(10).repeat(200_000)
    partition = partitioner.partition(2_000_000, labels)
    assert isinstance(partition, Partition)
    assert_one_tensor(partition, 2_000_000)


def test_a_hundred_thousand_users_and_domains_are_one_tensor():
    users = torch.arange(100_000).repeat(20)
    for partitioner, column in ((ColumnPartitioner("user"), users), (DomainPartitioner(10), users // 10)):
        partition = partitioner.partition(2_000_000, column)
        assert isinstance(partition, Partition)
        assert_one_tensor(partition, 2_000_000)


def assert_one_tensor(partition, n):
    assert len(partition) == 100_000
    assert partition.order.dtype == partition.offsets.dtype == torch.int64
    assert partition.order.bincount(minlength=n).eq(1).all()
    assert partition.offsets[[0, -1]].tolist() == [0, n]
    assert partition.sizes.min() >= 1
    held = [value for name, value in vars(partition).items() if name != "names"]
    assert [type(value) for value in held] == [torch.Tensor, torch.Tensor]
    last = partition[99_999]
    assert last.untyped_storage().data_ptr() == partition.order.untyped_storage().data_ptr()
