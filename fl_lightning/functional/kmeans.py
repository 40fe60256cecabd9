"""Provide the pieces of K-means: nearest centroids, sums of clusters, and first centroids by k-means++."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from fl_lightning.errors import DataError
from fl_lightning.functional.exact_sum import to_float64


def nearest_centroids(points: Tensor, centroids: Tensor) -> tuple[Tensor, Tensor]:
    """Return the nearest centroid of each point, the first one in a tie.

    Args:
        points: the points, shape (n, D).
        centroids: the centroids, shape (K, D), of the same dtype.

    Returns:
        The centroid's number, int64, shape (n,), and the Euclidean distance to it, shape (n,).
    """
    # Not by |x|^2 - 2xc + |c|^2: far from the origin, the difference of the squares loses most digits.
    distances = torch.cdist(points, centroids, compute_mode="donot_use_mm_for_euclid_dist")
    nearest = distances.argmin(dim=1)
    return nearest, distances.gather(1, nearest[:, None]).squeeze(1)


def cluster_sums(points: Tensor, nearest: Tensor, num_clusters: int) -> tuple[Tensor, Tensor]:
    """Return the sum and the number of the points of each cluster.

    Args:
        points: the points, shape (n, D).
        nearest: the cluster of each point, int64, shape (n,).
        num_clusters: the number of clusters K.

    Returns:
        Sums, float64, shape (K, D), and counts, float64, shape (K,).
    """
    members = to_float64(F.one_hot(nearest, num_clusters))  # as a product: bitwise reproducible, also on a GPU
    return members.T @ to_float64(points), members.sum(dim=0)


def kmeans_plus_plus(points: Tensor, num_clusters: int, generator: torch.Generator) -> Tensor:
    """Draw the first centroids by k-means++ (Arthur and Vassilvitskii 2007, section 2.2).

    The first centroid is a random point. Each further one is a point drawn with a probability proportional to its squared
    distance from the nearest centroid so far.

    Args:
        points: the points, shape (n, D), n at least 1 and below 2**24.
        num_clusters: the number of clusters K, at least 1.
        generator: a generator on the CPU.

    Returns:
        The centroids, shape (K, D), float64, on the CPU.

    Raises:
        DataError: if fewer than K of the points differ.
    """
    points = to_float64(points.cpu())
    chosen = [int(torch.randint(len(points), (1,), generator=generator))]
    squared = (points - points[chosen[0]]).square().sum(dim=1)
    while len(chosen) < num_clusters:
        if not float(squared.max()) > 0:
            raise DataError(
                f"k-means++ found {len(chosen)} different examples among the {len(points)} of the validation set, but "
                f"'model.num_clusters' is {num_clusters}. Lower it, use a larger validation set, or set "
                "'model.init' to random."
            )
        chosen.append(int(torch.multinomial(squared, 1, generator=generator)))
        squared = torch.minimum(squared, (points - points[chosen[-1]]).square().sum(dim=1))
    return points[chosen]
