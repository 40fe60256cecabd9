"""Settings for measuring the clients' models on the server's set: as the module validates, or cheaper."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fl_lightning.errors import require
from fl_lightning.utilities.argument_types import checks_types

_NAME = "federation.server_evaluation."


@checks_types
@dataclass(frozen=True)
class ServerEvaluation:
    """Limit the cost of a strategy's measurements on the server's set. The aggregated model is always validated in full.

    A strategy such as AdaFed evaluates every client's model every round, which can be most of a round. The defaults measure
    exactly what the module logs in validation.

    Args:
        every_n_rounds: measure clients' models in rounds 0, n, 2n, ...; in between, a client keeps its last score, and one
            without a score is measured. Scores for Shapley values and routes are always measured.
        examples: number, or share in (0, 1], of the server's examples to use. They are drawn once by the federation's seed, in
            proportion to the classes if the dataset provides labels.
        batch_size: batch size of evaluation; null for that of the server's loader. It changes a metric by rounding if the
            module logs means over examples, and by more if it does not.
        precision: precision of evaluation; null for that of local training. If a precision is set here, local training must
            use 32-true or a mixed precision. Weights are computed from these scores, so their last digits depend on it.

    Raises:
        ConfigurationError: for a value outside its range.
    """

    every_n_rounds: int = 1
    examples: int | float = 1.0
    batch_size: int | None = None
    precision: Literal["32-true", "bf16-mixed", "16-mixed"] | None = None

    def __post_init__(self) -> None:
        require(self.every_n_rounds >= 1, _NAME + "every_n_rounds", "1 or above", self.every_n_rounds)
        whole = isinstance(self.examples, int)
        fits = self.examples >= 1 if whole else 0 < self.examples <= 1
        require(fits, _NAME + "examples", "a number of 1 or above, or a share in (0, 1]", self.examples)
        size = self.batch_size
        require(size is None or size >= 1, _NAME + "batch_size", "1 or above", size)

    def due(self, round_idx: int) -> bool:
        """Return whether clients' models are measured in this round."""
        return round_idx % self.every_n_rounds == 0
