"""Share code among strategies that weigh models by their position relative to each other."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from fl_lightning.functional.returned import require_vector
from fl_lightning.functional.robust import inner_products
from fl_lightning.strategies.base import JointStrategy, ModelScorer, average
from fl_lightning.types import ClientUpdate, RoundStart


class FilteringStrategy(JointStrategy, ABC):
    """Average with weights from the inner products of the updates ``w_k - w_t``, which exclude BatchNorm's statistics."""

    averages = True

    def start_round(self, start: RoundStart) -> None:
        """Keep w_t."""
        self._center = start.server_state[: start.num_parameters]

    @abstractmethod
    def weights(self, products: Tensor, examples: Tensor) -> Tensor:
        """Return the unnormalised weight p_k >= 0 of each model, float64, shape (m,).

        Args:
            products: the inner products of the updates, float64, shape (m, m).
            examples: n_k, float64, shape (m,).
        """

    def combine(self, updates: Sequence[ClientUpdate], scorer: ModelScorer) -> tuple[Tensor, list[float]]:
        """Return the weighted average; see :meth:`JointStrategy.combine`."""
        size = self._center.numel()
        states = [update.snapshot.vector[:size] for update in updates]
        examples = torch.tensor([update.num_examples for update in updates], dtype=torch.float64)
        found = self.weights(inner_products(states, self._center), examples)
        require_vector(found, len(updates), f"{type(self).__name__}.weights returned", "Return one weight for each update.")
        weights: list[float] = found.tolist()
        return average(updates, weights), weights
