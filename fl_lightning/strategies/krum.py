"""Select models by Krum and multi-Krum: those closest to their neighbours (Blanchard et al. 2017)."""

from __future__ import annotations

import torch
from torch import Tensor

from fl_lightning.errors import ConfigurationError, require
from fl_lightning.functional.robust import check_attackers, expected_attackers, krum_scores
from fl_lightning.strategies.filtering import FilteringStrategy


class Krum(FilteringStrategy):
    """Average the models with the least sum of squared distances to their m - f - 2 nearest neighbours.

    Krum ignores the numbers of examples. Skewed clients lie far apart without being hostile; Krum then keeps only models
    like the majority's.

    Args:
        attackers: f as a number, or as a share of the round's models in [0, 0.5), rounded up. A round needs 2 f + 3 models;
            if it has fewer, an f given as a share is lowered.
        selected: the number of models to average: 1 is Krum, more is multi-Krum, null is m - f.

    Example:
        >>> from fl_lightning import FederatedOrchestrator, Krum
        >>> federation = FederatedOrchestrator(Krum(attackers=2, selected=3))
    """

    private_with: tuple[str, ...] = ("local", "examples")

    def __init__(self, attackers: int | float = 0.25, selected: int | None = 1) -> None:
        check_attackers(attackers)
        require(selected is None or selected >= 1, "federation.strategy.selected", "at least 1, or null", selected)
        self.attackers, self.selected = attackers, selected

    def weights(self, products: Tensor, examples: Tensor) -> Tensor:
        """Return 1 for the selected models, 0 for the others.

        Raises:
            ConfigurationError: if the round has too few models.
        """
        size = len(products)
        attackers = expected_attackers(self.attackers, size)
        if isinstance(self.attackers, float):  # in a small round, at most as many as the rule tolerates
            attackers = max(0, min(attackers, (size - 3) // 2))
        selected = size - attackers if self.selected is None else self.selected
        if size < 2 * attackers + 3 or selected > size:
            raise ConfigurationError(
                f"Krum against {attackers} attackers needs {max(2 * attackers + 3, selected)} models, but a round has {size}. "
                "Lower 'federation.strategy.attackers' or 'selected', or raise 'federation.clients_per_round'."
            )
        weights = torch.zeros(size, dtype=torch.float64)
        weights[krum_scores(products, attackers).argsort(stable=True)[:selected]] = 1.0
        return weights
