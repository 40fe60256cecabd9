"""Federated K-means against scikit-learn on the pooled data, and what it refuses."""

from typing import Any

import numpy as np
import pytest
import torch
from federations import Blobs, Consecutive, blobs, federate, trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from scipy.stats import chisquare
from sklearn.cluster import KMeans
from sklearn.metrics import pairwise_distances

import fl_lightning as fl
from fl_lightning.tasks.kmeans import cluster_sums, kmeans_plus_plus, nearest_centroids
from fl_lightning.types import ClientUpdate, RoundStart, Snapshot

PARTITIONERS = {"iid": fl.IIDPartitioner(4), "one class each": fl.ShardPartitioner(3, 1), "unequal": Consecutive([390, 8, 2])}


def begin_at(centroids: torch.Tensor, **more: Any) -> fl.KMeansTask:
    """A task whose first centroids are given."""
    module = fl.KMeansTask(*centroids.shape, init="random", **more).to(centroids.dtype)
    module.centroids.data.copy_(centroids)
    return module


def cluster(module: fl.KMeansTask, rounds: int = 1, *callbacks: Any, **settings: Any) -> Any:
    """A federation of it, for an epoch at each client unless more is said."""
    return federate(module, rounds, *callbacks, **{"strategy": fl.FederatedKMeans(), "local": fl.LocalTraining(), **settings})


def lloyd(points: np.ndarray, first: np.ndarray, iterations: int) -> KMeans:
    """scikit-learn's, without its early end."""
    return KMeans(len(first), init=first, n_init=1, max_iter=iterations, tol=0.0, algorithm="lloyd").fit(points)


@pytest.mark.parametrize(
    ("partitioner", "rounds", "dtype"),
    [("iid", 1, torch.float32), ("one class each", 3, torch.float64), ("unequal", 10, torch.float64)],
)
def test_rounds_are_lloyds_iterations_on_the_pooled_data(partitioner, rounds, dtype):
    data = Blobs(400, batch_size=7, dtype=dtype)
    points = data.train[0]
    module = begin_at(points[[0, 1, 2, 3, 4]])
    first = module.centroids.detach().numpy().copy()
    flags = {"precision": "64-true" if dtype == torch.float64 else "32-true"}
    run = cluster(module, rounds, data=data, partitioner=PARTITIONERS[partitioner], flags=flags)
    theirs = lloyd(points.numpy(), first, rounds)
    assert module.centroids.dtype == dtype
    np.testing.assert_allclose(module.centroids.detach(), theirs.cluster_centers_, atol=1e-5)
    before = first if rounds == 1 else lloyd(points.numpy(), first, rounds - 1).cluster_centers_
    members = pairwise_distances(points.numpy(), before).argmin(axis=1)
    assert module.counts.tolist() == np.bincount(members, minlength=5).tolist()

    held, found = data.val[0].numpy(), run.callback_metrics
    distances = theirs.transform(held)
    assert found["val_loss"].item() == pytest.approx((distances.min(axis=1) ** 2).mean(), rel=1e-4)
    assert found["val_distance"].item() == pytest.approx(distances.min(axis=1).mean(), rel=1e-4)
    assert found["val_empty"] == 5 - len(set(theirs.predict(held)))
    clusters = torch.cat(trainer(1).predict(module.to(dtype), data))
    assert clusters.tolist() == theirs.predict(held).tolist()


@pytest.mark.parametrize("federated", [False, True])
def test_without_a_federation_it_is_lloyds_on_all_data(federated, tmp_path):
    """Under a plain Trainer, which validates and saves what the pass has made."""
    data = Blobs(200, batch_size=9)
    module = begin_at(data.train[0][:4])
    first = module.centroids.detach().numpy().copy()
    saved = ModelCheckpoint(tmp_path, filename="{epoch}", save_top_k=-1)
    off = [fl.FederatedOrchestrator(enabled=False)] if federated else []
    run = trainer(3, saved, *off, enable_checkpointing=True)
    run.fit(module, fl.FederatedDataModule(data, fl.IIDPartitioner(3)) if federated else data)
    theirs = lloyd(data.train[0].numpy(), first, 3)
    np.testing.assert_allclose(module.centroids.detach(), theirs.cluster_centers_, atol=1e-5)
    assert run.callback_metrics["val_loss"].item() == pytest.approx(-theirs.score(data.val[0].numpy()) / 61, rel=1e-4)
    for epoch in range(3):
        state = torch.load(tmp_path / f"epoch={epoch}.ckpt", weights_only=True)["state_dict"]
        expected = lloyd(data.train[0].numpy(), first, epoch + 1).cluster_centers_
        np.testing.assert_allclose(state["centroids"], expected, atol=1e-5)


def test_two_local_epochs_are_two_iterations_at_the_client():
    sizes = [25, 60, 15]
    data = Blobs(100, batch_size=4)
    points = data.train[0].double().numpy()
    module = begin_at(data.train[0][:3])
    before = module.centroids.detach().double().numpy()
    cluster(module, data=data, partitioner=Consecutive(sizes), local=fl.LocalTraining(max_epochs=2))
    sums, counts = np.zeros((3, 4)), np.zeros(3)
    for mine in np.split(points, np.cumsum(sizes)[:-1]):
        centroids = before.copy()
        for _ in range(2):
            nearest = ((mine[:, None] - centroids) ** 2).sum(axis=2).argmin(axis=1)
            for j in set(nearest):
                centroids[j] = mine[nearest == j].mean(axis=0)
        size = np.bincount(nearest, minlength=3)
        sums, counts = sums + size[:, None] * centroids, counts + size
    np.testing.assert_allclose(module.centroids.detach(), sums / counts[:, None], atol=1e-5)
    assert module.counts.tolist() == counts.tolist()


def far_away(points: torch.Tensor) -> torch.Tensor:
    """Two centroids among the points, and two that nobody is near to."""
    return torch.cat([points[:2], torch.full((1, 4), 1e3), torch.full((1, 4), -1e3)])


def test_an_empty_cluster_keeps_its_place():
    data = Blobs(60)
    module = begin_at(far_away(data.train[0]))
    first = module.centroids.detach().clone()
    run = cluster(module, 4, data=data, partitioner=fl.IIDPartitioner(3))
    assert torch.equal(module.centroids[2:], first[2:])
    assert module.counts[2:].tolist() == [0, 0]
    assert module.counts.sum() == 60
    theirs = lloyd(data.train[0].numpy(), first[:2].numpy(), 4)
    np.testing.assert_allclose(module.centroids[:2].detach(), theirs.cluster_centers_, atol=1e-5)
    assert run.callback_metrics["val_empty"] == 2


def test_an_empty_cluster_splits_the_largest():
    data = Blobs(60)
    first = far_away(data.train[0])
    ends = []
    for _ in range(2):
        module = begin_at(first)
        cluster(module, data=data, partitioner=fl.IIDPartitioner(3), strategy=fl.FederatedKMeans("split", seed=5))
        ends.append(module.centroids.detach().clone())
    assert torch.equal(*ends)
    whole = lloyd(data.train[0].numpy(), first[:2].numpy(), 1).cluster_centers_
    members = pairwise_distances(data.train[0].numpy(), first.numpy()).argmin(axis=1)
    largest = whole[np.bincount(members).argmax()]
    all_four = np.concatenate([whole, first[2:]])
    deviation = 0.01 * np.sqrt(((all_four - all_four.mean(axis=0)) ** 2).sum(axis=1).mean())
    offsets = (ends[0][2:].numpy() - largest) / deviation
    assert 0.1 < np.abs(offsets).mean() < 3
    assert not np.allclose(offsets[0], offsets[1])
    cluster(module, 3, data=data, partitioner=fl.IIDPartitioner(3), strategy=fl.FederatedKMeans("split"))
    assert (module.counts > 0).sum() > 2


def test_equal_centroids_split_too():
    strategy = fl.FederatedKMeans("split")
    strategy.start_round(RoundStart(0, (0,), 1, torch.tensor([2.0, 2.0, 0.0, 0.0]), 2))
    sums = fl.Sums()
    strategy.accumulate(ClientUpdate(0, 0, 3, 1, model=Snapshot(torch.tensor([2.0, 2.0, 3.0, 0.0]), torch.zeros(0))), sums)
    one, other = strategy.aggregate(sums)[:2].tolist()
    assert one == 2
    assert 0 < abs(other - 2) < 0.05


def test_first_centroids_are_drawn_once_from_the_servers_set(monkeypatch):
    drawn = []

    def draw(points, *rest):
        drawn.append((points.clone(), kmeans_plus_plus(points, *rest)))
        return drawn[-1][1]

    monkeypatch.setattr("fl_lightning.tasks.kmeans.kmeans_plus_plus", draw)
    state = torch.get_rng_state()
    firsts = []
    for seed in (0, 0, 1):
        module = fl.KMeansTask(3, 4, seed=seed)
        cluster(module, 2)
        assert bool(module.started)
        firsts.append(drawn[-1][1])
    assert len(drawn) == 3
    data = Blobs()
    assert all(torch.equal(points, data.val[0]) for points, _ in drawn)
    assert torch.equal(firsts[0], firsts[1])
    assert not torch.equal(firsts[0], firsts[2])
    assert torch.equal(torch.get_rng_state(), state)
    held = {tuple(point) for point in data.val[0].double().tolist()}
    assert {tuple(point) for point in firsts[0].tolist()} <= held


def test_the_second_centroid_is_drawn_by_squared_distance():
    """Arthur and Vassilvitskii: the first uniformly, the next with probability D^2 / sum D^2."""
    points = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 2.0], [-3.0, 1.0]])
    squared = ((points[:, None] - points) ** 2).sum(dim=2).numpy()
    expected = squared / squared.sum(axis=1, keepdims=True) / 4
    draws, counts = 4000, np.zeros((4, 4))
    generator = torch.Generator().manual_seed(0)
    for _ in range(draws):
        pair = kmeans_plus_plus(points, 2, generator)
        counts[tuple((points == point).all(dim=1).nonzero().item() for point in pair)] += 1
    assert counts[np.eye(4, dtype=bool)].sum() == 0
    apart = ~np.eye(4, dtype=bool)
    assert chisquare(counts[apart], draws * expected[apart]).pvalue > 0.01


def test_nearest_and_sums_far_from_the_origin():
    points, centroids = torch.randn(50, 3) + 1e4, torch.randn(4, 3) + 1e4
    nearest, distances = nearest_centroids(points, centroids)
    exact = pairwise_distances(points.double().numpy(), centroids.double().numpy(), metric="minkowski", p=2)
    assert nearest.tolist() == exact.argmin(axis=1).tolist()
    np.testing.assert_allclose(distances, exact.min(axis=1), rtol=1e-5)
    sums, counts = cluster_sums(points, nearest, 4)
    for j in range(4):
        np.testing.assert_allclose(sums[j], points[nearest == j].double().sum(dim=0), rtol=1e-12)
        assert counts[j] == (nearest == j).sum()


@pytest.mark.parametrize(
    ("settings", "least", "most"),
    [
        ({"local": fl.LocalTraining(max_steps=2, max_epochs=-1)}, 20, 20),  # two clients, two batches of five each
        ({"local": fl.LocalTraining(limit_train_batches=1)}, 10, 10),
        ({"availability": fl.Availability(slow=1.0, slowness=2.0)}, 10, 39),
    ],
)
def test_a_pass_that_is_cut_short_counts_what_it_saw(settings, least, most):
    module = begin_at(blobs(40, 1)[0][:3])
    cluster(module, partitioner=Consecutive([30, 10]), **settings)
    assert least <= module.counts.sum() <= most
