"""What a site allows, which a server cannot change."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, get_args

from fl_lightning.errors import require
from fl_lightning.flower.recipe import RefusedError, default_classes
from fl_lightning.messages import EvalOrder, Part, TrainOrder
from fl_lightning.settings.client_evaluation import ClientEvaluation
from fl_lightning.settings.local_training import LocalTraining
from fl_lightning.strategies.base import Strategy
from fl_lightning.transforms.client_privacy import ClientPrivacy


@dataclass(frozen=True)
class Policy:
    """Limit what a server can have a site do.

    Args:
        classes: the dotted paths of classes that a model may use besides this package's, torch's losses and optimizers.
        default_classes: whether to accept those; false leaves only ``classes``.
        max_rounds: the most rounds in which the site trains in one federation, >= 1.
        min_noise: the least noise multiplier of differential privacy at the client, >= 0: of ``ClientPrivacy`` with local
            noise, or of ``federation.local.privacy``. With 0, none is needed.
        evaluations: the parts of the site's examples on which a server may have models evaluated: training, validation, test.
        label_counts: whether to tell the server the number of examples of each class.
        largest_message: the largest accepted message in MiB, > 0.

    Raises:
        ConfigurationError: for a value outside its range.
    """

    classes: list[str] = field(default_factory=list)
    default_classes: bool = True
    max_rounds: int = 1000
    min_noise: float = 0.0
    evaluations: list[Part] = field(default_factory=lambda: list(get_args(Part)))
    label_counts: bool = False
    largest_message: float = 4096.0

    def __post_init__(self) -> None:
        require(self.max_rounds >= 1, "policy.max_rounds", "1 or above", self.max_rounds)
        require(self.min_noise >= 0, "policy.min_noise", "0 or above", self.min_noise)
        require(self.largest_message > 0, "policy.largest_message", "above 0, in MiB", self.largest_message)
        known = get_args(Part)
        require(all(p in known for p in self.evaluations), "policy.evaluations", f"parts of {known}", self.evaluations)

    @property
    def accepted_classes(self) -> frozenset[str]:
        """Return the exact list of dotted paths."""
        return frozenset(self.classes) | (default_classes() if self.default_classes else frozenset())

    def check_privacy(self, local: LocalTraining, transforms: Iterable[Any]) -> None:
        """Refuse settings with less noise than this site requires.

        Raises:
            RefusedError: with both values.
        """
        given = [one.noise_multiplier for one in transforms if isinstance(one, ClientPrivacy) and one.noise == "local"]
        given += [] if local.privacy is None else [local.privacy.noise_multiplier]
        most = max(given, default=0.0)
        if most < self.min_noise:
            raise RefusedError(
                f"The noise multiplier at the client is {most}, but this site's policy requires {self.min_noise}."
            )

    def check_evaluations(self, strategy: Strategy, evaluation: ClientEvaluation) -> None:
        """Refuse settings with which each round would evaluate models on examples that this site does not allow.

        Raises:
            RefusedError: naming the setting and the part.
        """
        needed: dict[str, tuple[bool, Part]] = {
            f"'federation.strategy' {type(strategy).__name__}": (strategy.local_metric is not None, "validation"),
            "'federation.client_evaluation'": (evaluation.active, "test"),
        }
        for setting, (used, part) in needed.items():
            if used and part not in self.evaluations:
                raise RefusedError(
                    f"{setting} evaluates models on each client's {part} examples, which this site does not allow. The site "
                    f"would have to add '{part}' to 'policy.evaluations'."
                )

    def check_order(self, order: TrainOrder | EvalOrder) -> None:
        """Refuse rounds and evaluations that this site does not allow.

        Raises:
            RefusedError: naming the limit.
        """
        for job in order.jobs:
            if not 0 <= job.round_idx < self.max_rounds:
                raise RefusedError(f"Round {job.round_idx} is beyond this site's limit of {self.max_rounds} rounds.")
        if isinstance(order, EvalOrder) and order.part not in self.evaluations:
            raise RefusedError(
                f"This site does not allow evaluation on its {order.part} examples: '{order.part}' is not in its "
                "'policy.evaluations'."
            )
