"""Filter updates by direction: leave out those that point against the others (after Fung et al. 2020; Cao et al. 2021)."""

from __future__ import annotations

import torch
from torch import Tensor

from fl_lightning.errors import ClientError, require
from fl_lightning.functional.robust import mean_cosines
from fl_lightning.strategies.filtering import FilteringStrategy


class CosineFilter(FilteringStrategy):
    """Average the models whose update ``w_k - w_t`` has a mean cosine with the others' above a threshold.

    The filter ignores an update's length, so a long update gains no advantage. An update that passes enters the average at
    its full length; clip it with the transform :class:`~fl_lightning.ClipUpdate`.

    Args:
        threshold: the threshold, in [-1, 1).
        examples: whether to weigh by the number of training examples, as FedAvg does; otherwise all weights are equal.

    Example:
        >>> from fl_lightning import CosineFilter, FederatedOrchestrator
        >>> federation = FederatedOrchestrator(CosineFilter(threshold=-0.1))
    """

    private_with: tuple[str, ...] = ("local", "examples")

    def __init__(self, threshold: float = 0.0, examples: bool = True) -> None:
        require(-1 <= threshold < 1, "federation.strategy.threshold", "from -1 to below 1", threshold)
        self.threshold, self.examples = threshold, examples

    def weights(self, products: Tensor, examples: Tensor) -> Tensor:
        """Return n_k or 1 for models that pass, 0 for the others; a single model always passes.

        Raises:
            ClientError: if no model passes.
        """
        passes = mean_cosines(products) > self.threshold if len(products) > 1 else torch.ones(1, dtype=torch.bool)
        if not bool(passes.any()):
            raise ClientError(
                f"None of {len(products)} updates has a mean cosine with the others above {self.threshold}, so the clients "
                "have no majority. Lower 'federation.strategy.threshold', or use another strategy."
            )
        return passes * (examples if self.examples else torch.ones_like(examples))
