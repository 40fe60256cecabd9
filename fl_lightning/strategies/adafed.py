"""Average models weighted by performance, as AdaFed does (Giuseppi et al. 2022, Algorithm 1, lines 5-9)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from torchmetrics import Metric

from fl_lightning.errors import require
from fl_lightning.functional.metric_mode import higher_is_better
from fl_lightning.strategies.base import WeightedAverage
from fl_lightning.types import ClientUpdate


class AdaFed(WeightedAverage):
    """Average models weighted by their score on the server's validation set: ``w_{t+1} = sum_k p_k w_k / sum_k p_k``.

    The weight is ``p_k = score_k ** power``, times n_k if ``examples``. The paper uses the accuracy (Simulations 2 and 3) and
    the accuracy times n_k (Simulation 1), and suggests its square and cube against stronger attackers. The other half of
    AdaFed is the adaptive loss :class:`~fl_lightning.F1WeightedCrossEntropy`.

    Args:
        metric: the name of a metric that the module logs in validation (``val_accuracy``), or a torchmetrics metric of
            (predictions, target), by ``class_path`` in YAML.
        power: the exponent of the score, > 0.
        examples: whether to also multiply the weight by the number of training examples.
        mode: ``max`` if higher is better; ``min`` turns the score into 1 / (score + epsilon). The default follows the
            torchmetrics metric's own direction, or the metric's name; see
            :func:`~fl_lightning.functional.metric_mode.known_direction`.
        epsilon: the number added to a score in mode ``min``, > 0.
        scored_by: ``server`` scores every model on the server's validation set, as the paper does; ``clients`` lets each client
            score the model that it sends on its own validation part (``data.client_validation``), so its weight depends on
            the client's honesty. With ``federation.personal``, ``clients`` is required.

    Raises:
        ConfigurationError: if a value is outside its range, or if no mode is given and the metric's direction is unknown.

    Example:
        >>> from fl_lightning import AdaFed, FederatedOrchestrator
        >>> federation = FederatedOrchestrator(AdaFed(metric="val_accuracy", power=3))
    """

    private_with: tuple[str, ...] = ("local", "examples")

    def __init__(
        self,
        metric: str | Metric = "val_accuracy",
        power: float = 1.0,
        examples: bool = False,
        mode: Literal["max", "min"] | None = None,
        epsilon: float = 1e-3,
        scored_by: Literal["server", "clients"] = "server",
    ) -> None:
        require(power > 0, "federation.strategy.power", "above 0", power)
        require(epsilon > 0, "federation.strategy.epsilon", "above 0", epsilon)
        if scored_by == "server":
            self.metric = metric
        else:
            self.local_metric = self._metric = metric
        self.scored_by, self.power, self.examples = scored_by, power, examples
        self.reads = ("examples",) if examples else ()
        self.mode = "max" if higher_is_better(metric, mode, "federation.strategy.mode") else "min"
        self.epsilon = epsilon

    @property
    def weight_power(self) -> float:
        """See :attr:`RunningStrategy.weight_power`."""
        return self.power

    def largest_weight(self, examples: Sequence[int]) -> float:
        """Return the weight of a score of 1, the best value of most metrics; in mode ``min``, of a score of 0."""
        best = 1.0 if self.mode == "max" else 1.0 / self.epsilon
        return float(best**self.power * (max(examples) if self.examples else 1))

    def weight(self, update: ClientUpdate) -> float:
        """Return p_k. A negative score is returned unchanged, and ``accumulate`` rejects it."""
        found = update.score if self.scored_by == "server" else update.local_score
        assert found is not None
        score = found if self.mode == "max" else 1.0 / (found + self.epsilon)
        if score < 0:
            return score
        return float(score**self.power * (update.num_examples if self.examples else 1))
