"""Group clients under Astraea's mediators so that each group is balanced (Duan et al. 2019; survey, section III-C)."""

from __future__ import annotations

import torch
from torch import Tensor

from fl_lightning.errors import require
from fl_lightning.routes.base import Cohort, Route


class Mediators(Route):
    """Train the clients of a group one after another, groups side by side; the strategy gets one model per group.

    Each round forms groups greedily, so that the labels of a group are as close to uniform as possible. Astraea also
    augments rare classes at the clients: set ``data.rebalancing: LabelAveraging`` with a transform.

    Args:
        clients_per_mediator: the size of a group, >= 1; 1 is averaging without mediators.
    """

    passes_models = True
    needs_labels = True
    reads_data = True

    def __init__(self, clients_per_mediator: int = 3) -> None:
        require(clients_per_mediator >= 1, "federation.route.clients_per_mediator", "1 or above", clients_per_mediator)
        self.clients_per_mediator = clients_per_mediator

    def side_by_side(self, clients: int) -> int:
        """Return the number of groups."""
        return -(-clients // self.clients_per_mediator)

    def run(self, cohort: Cohort) -> None:
        """Run one round; see :meth:`Route.run`."""
        groups = balanced_groups(cohort.label_counts(), self.clients_per_mediator)
        cohort.deliver([[cohort.clients[position] for position in group] for group in groups])


def divergence_from_uniform(counts: Tensor) -> Tensor:
    """Return the Kullback-Leibler divergence of label distributions from the uniform one, in nats, in [0, log C].

    Args:
        counts: the examples of each class, shape (..., C), each row with at least one.

    Returns:
        The divergences, shape (...).

    >>> divergence_from_uniform(torch.tensor([[5, 5], [10, 0]])).tolist()
    [0.0, 0.6931471805599453]
    """
    shares = counts.double() / counts.double().sum(dim=-1, keepdim=True)
    divergence: Tensor = torch.special.xlogy(shares, shares * counts.shape[-1]).sum(dim=-1)
    return divergence


def balanced_groups(counts: Tensor, size: int) -> list[list[int]]:
    """Form groups greedily: each starts empty and repeatedly adds the client that brings it nearest to uniform.

    Args:
        counts: the label counts of each client, shape (K, C).
        size: the number of clients per group, >= 1; the last group may be smaller.

    Returns:
        Groups of positions 0 .. K - 1, in the order of joining; each position occurs once. Ties go to the lower position.
    """
    left = list(range(len(counts)))
    groups: list[list[int]] = []
    while left:
        group: list[int] = []
        total = torch.zeros_like(counts[0])
        while left and len(group) < size:
            best = int(divergence_from_uniform(total + counts[left]).argmin())
            group.append(left.pop(best))
            total = total + counts[group[-1]]
        groups.append(group)
    return groups
