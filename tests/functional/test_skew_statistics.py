"""Skewed partitions: their distribution in theory, and flwr-datasets as an oracle of it."""

import numpy as np
import pytest
import torch
from random_labels import table_of
from scipy import stats

import fl_lightning as fl


@pytest.mark.parametrize("beta", [0.5, 5.0])
def test_sizes_are_dirichlet_and_contents_uniform(beta):
    size = 20_000
    draws = [fl.QuantityPartitioner(10, beta, min_examples=1, seed=seed).partition(size) for seed in range(300)]
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


@pytest.mark.slow
@pytest.mark.parametrize("capped", [False, True])
def test_label_skew_is_that_of_flower(flower, of_flower, capped):
    theirs = of_flower((flower.DirichletPartitioner(CLIENTS, "label", 0.5, 5, capped, seed=s) for s in range(150)), UNEVEN)
    assert_alike(tables_of_ours((fl.DirichletPartitioner(CLIENTS, 0.5, capped, 5, s) for s in range(150)), UNEVEN), theirs)
    otherwise = tables_of_ours((fl.DirichletPartitioner(CLIENTS, 0.5, not capped, 5, s) for s in range(150)), UNEVEN)
    assert stats.ks_2samp(statistics(otherwise)["largest"], statistics(theirs)["largest"], method="asymp").pvalue < 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("each", [1, 3])
def test_shards_are_those_of_flower(flower, of_flower, each):
    labels = UNEVEN[: len(UNEVEN) // (each * CLIENTS) * each * CLIENTS]
    theirs = of_flower((flower.ShardPartitioner(CLIENTS, "label", each, seed=s) for s in range(150)), labels)
    ours = tables_of_ours((fl.ShardPartitioner(CLIENTS, each, s) for s in range(150)), labels)
    assert ours.sum(2).tolist() == theirs.sum(2).tolist()
    assert_alike(ours, theirs)


def test_an_even_deal_of_flower_has_our_counts(flower, of_flower):
    labels = torch.arange(6).repeat_interleave(torch.tensor([31, 40, 52, 60, 71, 83]))
    (theirs,) = of_flower([flower.PathologicalPartitioner(6, "label", 2, "deterministic")], labels)
    (ours,) = tables_of_ours([fl.ClassesPartitioner(6, 2)], labels)
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
        partition = fl.FlowerPartitioner(FLOWERS[name](flower, seed)).partition(200, labels)
        assert isinstance(partition, fl.Partition)
        assert [part.tolist() for part in partition] == [list(alone.load_partition(k)["row"]) for k in range(4)]


def test_errors_of_flower_come_back_as_ours(flower):
    said = "PathologicalPartitioner of flwr-datasets rejects the data: .*greater than the number of unique classes"
    with pytest.raises(fl.DataError, match=said):
        fl.FlowerPartitioner(flower.PathologicalPartitioner(4, "label", 6)).partition(200, torch.arange(5).repeat(40))
