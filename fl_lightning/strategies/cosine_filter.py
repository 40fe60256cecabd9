"""A filter by direction: updates that point against the others are left out (after Fung et al. 2020; Cao et al. 2021)."""

from __future__ import annotations

import torch
from torch import Tensor

from fl_lightning.errors import ClientError, require
from fl_lightning.functional.robust import mean_cosines
from fl_lightning.strategies.filtering import FilteringStrategy


class CosineFilter(FilteringStrategy):
    """The average of the models whose update ``w_k - w_t`` has a mean cosine with the others' above a threshold.

    Lengths do not count, so that nobody gains by a long update; but what passes enters the average as long as it is: clip it
    with the transform :class:`~fl_lightning.ClipUpdate`.

    Args:
        threshold: in [-1, 1).
        examples: average by the number of training examples, as FedAvg does; else every model counts alike.
    """

    def __init__(self, threshold: float = 0.0, examples: bool = True) -> None:
        require(-1 <= threshold < 1, "federation.strategy.threshold", "from -1 to below 1", threshold)
        self.threshold = threshold
        self.examples = examples

    def weights(self, products: Tensor, examples: Tensor) -> Tensor:
        """n_k or 1 for those that pass, 0 for the others; a single model always passes.

        Raises:
            ClientError: if none passes.
        """
        passes = mean_cosines(products) > self.threshold if len(products) > 1 else torch.ones(1, dtype=torch.bool)
        if not bool(passes.any()):
            raise ClientError(
                f"None of {len(products)} updates has a mean cosine with the others above {self.threshold}. Lower "
                "'federation.strategy.threshold', or use another strategy: so different clients are no majority."
            )
        return passes * (examples if self.examples else torch.ones_like(examples))
