"""Fit one linear model per client and learn how the clients are related (MOCHA, Smith et al. 2017)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fl_lightning.errors import require
from fl_lightning.routes.base import Cohort, Route
from fl_lightning.types import Pull


class Mocha(Route):
    """Train one model per client, each pulled towards the models of related clients: federated multi-task learning.

    MOCHA minimises ``sum_k n_k / n * F_k(w_k) + 1/2 tr(W^T M W)`` over the clients' models W and relationships S in turn;
    n is the mean of the n_k, and ``M = strength * S^-1 + l2 * I`` (eq. 1 of the paper, with Zhang and Yeung's regularizer). A
    round solves for W side by side: client k trains on its own loss plus a pull, a bound given by
    ``pulls`` of this module. Better local training converges faster, but partial work
    helps too, and absent clients keep their models. Every ``update_every`` rounds the server sets S in closed form.

    A client that has not trained yet counts with the server's model, the mean of all; in the paper its weights are 0. The paper
    solves the dual with SDCA; this route solves the primal with the optimizer of the clients' module, to the same
    optimum. It supports only linear models with convex losses: :class:`~fl_lightning.HalfSquaredError` or
    ``torch.nn.MSELoss`` with RegressionTask, :class:`~fl_lightning.Hinge` or cross-entropy with ClassificationTask. Biases
    are treated like other weights.

    ``federation.client_evaluation`` measures each client's own model. The server's module holds their mean, for clients
    without a model. The correlations of S are saved as ``relationships.csv`` next to the CSV logger's file.

    Args:
        strength: lambda_1 >= 0, of the relationships.
        l2: lambda_2 >= 0, of the weights themselves; at least one of the two must be above 0.
        smoothing: how far S stays from treating clients as identical, > 0, in units of squared weights.
        update_every: the number of rounds between updates of S, >= 1.

    Raises:
        ConfigurationError: if a value is outside its range; at the start of ``fit``, if the model is not linear or the
            loss not convex.
    """

    single_model = True
    keeps_models = True
    needs_convex = True

    def __init__(self, strength: float = 0.1, l2: float = 1e-3, smoothing: float = 0.1, update_every: int = 1) -> None:
        require(strength >= 0, "federation.route.strength", "0 or above", strength)
        require(l2 >= 0, "federation.route.l2", "0 or above", l2)
        require(strength + l2 > 0, "federation.route.l2", "above 0 if 'strength' is 0", l2)
        require(smoothing > 0, "federation.route.smoothing", "above 0, in units of squared weights", smoothing)
        require(update_every >= 1, "federation.route.update_every", "1 or above", update_every)
        self.strength, self.l2, self.smoothing = strength, l2, smoothing
        self.update_every = update_every
        self._relationships: Tensor | None = None

    def reset(self) -> None:
        """Forget S; see :meth:`Route.reset`."""
        self._relationships = None

    def run(self, cohort: Cohort) -> None:
        """Run one round; see :meth:`Route.run`."""
        weights, sizes = cohort.own_models().cpu(), cohort.num_examples  # like S: small, and bitwise equal on any device
        if self._relationships is None:  # nothing is known yet: each client is related only to itself
            self._relationships = torch.eye(len(weights), dtype=torch.float64)
        anchors, strengths = pulls(weights, coupling(self._relationships, self.strength, self.l2))
        mean = sum(sizes) / len(sizes)
        pulled = {k: Pull(anchors[k].to(weights), float(strengths[k]) * mean / sizes[k]) for k in cohort.clients}
        updates = cohort.train([[client] for client in cohort.clients], pulled=pulled)
        for update in updates:
            weights[update.client] = update.snapshot.vector.cpu()
        if (cohort.round_idx + 1) % self.update_every == 0:
            self._relationships = learn_relationships(weights, self.smoothing)
        if updates:
            cohort.conclude(updates, updates[0].with_state(weights.mean(dim=0).to(updates[0].snapshot.vector)))

    def matrices(self) -> dict[str, Tensor]:
        """Return the correlations of the clients' models."""
        return {} if self._relationships is None else {"relationships": similarity(self._relationships)}

    def state_dict(self) -> dict[str, Any]:
        """Return S."""
        return {} if self._relationships is None else {"relationships": self._relationships}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore S."""
        self._relationships = state.get("relationships")


def learn_relationships(weights: Tensor, smoothing: float) -> Tensor:
    """Return ``S = K * (W W^T + eps I)^(1/2) / trace``, the minimiser of ``tr(S^-1 (W W^T + eps I))`` with trace K.

    Args:
        weights: W, a row for each client, shape (K, p).
        smoothing: eps > 0, in units of squared weights, keeps S invertible.

    Returns:
        Symmetric, positive definite, trace K, float64, shape (K, K); S_ij is large if clients' weights have one direction.
    """
    gram = weights.double() @ weights.double().T
    values, vectors = torch.linalg.eigh(gram + smoothing * torch.eye(len(gram), dtype=torch.float64))
    root = vectors * values.clamp(min=smoothing).sqrt() @ vectors.T
    related: Tensor = root * (len(gram) / root.trace())
    return related


def coupling(relationships: Tensor, strength: float, l2: float) -> Tensor:
    """Return ``M = strength * S^-1 + l2 * I``, float64, shape (K, K); the regularizer is ``1/2 tr(W^T M W)``.

    Args:
        relationships: S, shape (K, K).
        strength: lambda_1 >= 0.
        l2: lambda_2 >= 0.
    """
    identity = torch.eye(len(relationships), dtype=torch.float64)
    inverse = torch.linalg.inv(relationships)
    matrix: Tensor = strength * (inverse + inverse.T) / 2 + l2 * identity
    return matrix


def pulls(weights: Tensor, matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Return each client's part of the regularizer: a pull of strength D_k towards an anchor.

    ``1/2 tr(W^T M W) <= const + sum_k D_k / 2 * |w_k - a_k|^2`` with ``D_k = sum_j |M_kj|`` and ``a_k = w_k - (M W)_k / D_k``,
    equal at the present W, since ``diag(D) - M`` is diagonally dominant. Clients that lower their parts of the bound, however
    roughly and side by side, therefore lower the whole.

    Args:
        weights: the present W, shape (K, p).
        matrix: M, symmetric, shape (K, K).

    Returns:
        Anchors, float64, shape (K, p), and strengths, shape (K,).
    """
    w = weights.double()
    strengths = matrix.abs().sum(dim=1)
    return w - (matrix @ w) / strengths[:, None], strengths


def similarity(relationships: Tensor) -> Tensor:
    """Return correlations ``S_ij / sqrt(S_ii S_jj)`` in [-1, 1], shape (K, K)."""
    scale = relationships.diagonal().sqrt()
    return relationships / scale[:, None] / scale
