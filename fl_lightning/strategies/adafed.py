"""AdaFed's performance-weighted averaging (Giuseppi et al. 2022, Algorithm 1, lines 5-9)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from torchmetrics import Metric

from fl_lightning.errors import require
from fl_lightning.functional.metric_mode import higher_is_better
from fl_lightning.strategies.base import WeightedAverage
from fl_lightning.types import ClientUpdate


class AdaFed(WeightedAverage):
    """``w_{t+1} = sum_k p_k w_k / sum_k p_k``, p_k from evaluating w_k on the server's validation set.

    ``p_k = score_k ** power``, times n_k if ``examples``. The paper takes the accuracy (Simulations 2 and 3), accuracy
    times n_k (Simulation 1), and names its square and cube against stronger attackers. The adaptive loss is the other
    half of AdaFed and is a loss: :class:`~fl_lightning.F1WeightedCrossEntropy`.

    Args:
        metric: the name of a metric that the module logs in validation (``val_accuracy``), or a torchmetrics metric of
            (predictions, target), by ``class_path`` in YAML.
        power: exponent of the score, > 0.
        examples: also weigh by the number of training examples.
        mode: ``max`` where higher is better; ``min`` turns the score into 1 / (score + epsilon). By default what the
            torchmetrics metric says of itself, or its name: see
            :func:`~fl_lightning.functional.metric_mode.known_direction`.
        epsilon: added to a score of mode ``min``, > 0.

    Raises:
        ConfigurationError: for a value outside its range, or without a mode where the metric does not tell.
    """

    def __init__(
        self,
        metric: str | Metric = "val_accuracy",
        power: float = 1.0,
        examples: bool = False,
        mode: Literal["max", "min"] | None = None,
        epsilon: float = 1e-3,
    ) -> None:
        require(power > 0, "federation.strategy.power", "above 0", power)
        require(epsilon > 0, "federation.strategy.epsilon", "above 0", epsilon)
        self.metric = metric
        self.power = power
        self.examples = examples
        self.mode = "max" if higher_is_better(metric, mode, "federation.strategy.mode") else "min"
        self.epsilon = epsilon

    def largest_weight(self, examples: Sequence[int]) -> float:
        """That of a score of 1, which is the best of most metrics; of mode ``min``, that of a score of 0."""
        best = 1.0 if self.mode == "max" else 1.0 / self.epsilon
        return float(best**self.power * (max(examples) if self.examples else 1))

    def weight(self, update: ClientUpdate) -> float:
        """p_k. A negative score raises in :meth:`take_in`."""
        assert update.score is not None
        score = update.score if self.mode == "max" else 1.0 / (update.score + self.epsilon)
        if score < 0:
            return score
        return float(score**self.power * (update.num_examples if self.examples else 1))
