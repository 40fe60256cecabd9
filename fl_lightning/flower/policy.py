"""What a site allows, which a server cannot change."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import get_args

from lightning.pytorch import LightningModule

from fl_lightning.errors import ConfigurationError, require
from fl_lightning.flower.recipe import RefusedError, default_classes
from fl_lightning.functional.model_state import ModelState
from fl_lightning.messages import EvalOrder, Part, TrainOrder
from fl_lightning.routes.base import Route
from fl_lightning.server.checks.privacy import check_private_settings, check_private_training, check_sent_buffers
from fl_lightning.settings.client_evaluation import ClientEvaluation
from fl_lightning.settings.local_training import LocalTraining
from fl_lightning.strategies.base import Strategy
from fl_lightning.transforms.base import Transform
from fl_lightning.transforms.client_privacy import ClientPrivacy


@dataclass(frozen=True)
class Policy:
    """Limit what a server can have a site do.

    Args:
        classes: the dotted paths of classes that a model may use besides this package's, torch's losses and optimizers.
        default_classes: whether to accept those; false leaves only ``classes``.
        max_rounds: how many times the site trains for the server in one federation at most, >= 1: once per round, or once per
            period on routes that have periods. Rounds that a server repeats after a restart count again.
        min_noise: the least noise multiplier of differential privacy at the client, >= 0: of ``ClientPrivacy`` with local
            noise, or of ``federation.local.privacy``. The site then also refuses settings, modules and orders by which more
            would leave it than this noise covers. With 0, no noise is needed.
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

    def check_privacy(self, local: LocalTraining, transforms: Sequence[Transform], strategy: Strategy, route: Route) -> None:
        """Refuse settings with less noise than this site requires, or by which values without noise would leave it.

        Raises:
            RefusedError: with both values, or naming the settings.
        """
        given = [one.noise_multiplier for one in transforms if isinstance(one, ClientPrivacy) and one.noise == "local"]
        given += [] if local.privacy is None else [local.privacy.noise_multiplier]
        most = max(given, default=0.0)
        if most < self.min_noise:
            raise RefusedError(
                f"The noise multiplier at the client is {most}, but this site's policy requires {self.min_noise}."
            )
        with self._requiring_noise():
            check_private_settings(transforms, local, strategy, route)

    def check_module(
        self, transforms: Sequence[Transform], local: LocalTraining, precision: str, module: LightningModule
    ) -> None:
        """Refuse a precision or a module with which the required noise would not cover single examples or the change.

        Raises:
            RefusedError: naming them.
        """
        with self._requiring_noise():
            check_private_training(transforms, local, precision, module)

    def check_buffers(self, transforms: Sequence[Transform], local: LocalTraining, state: ModelState) -> None:
        """Refuse a model whose buffers would be sent without the required noise.

        Raises:
            RefusedError: naming the buffers.
        """
        with self._requiring_noise():
            check_sent_buffers(transforms, local, state)

    @contextmanager
    def _requiring_noise(self) -> Iterator[None]:
        """Tell the server what is wrong with its settings, if this site requires noise, and let them pass otherwise."""
        try:
            yield
        except ConfigurationError as error:
            if self.min_noise > 0:
                raise RefusedError(f"This site's policy requires noise at the client. {error}") from error

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

    def check_plan(self, rounds: int, periods: int = 1) -> None:
        """Refuse a federation in which the site would train more often than it allows.

        Args:
            rounds: the number of rounds that the server plans.
            periods: how many times a client trains in each.

        Raises:
            RefusedError: with both numbers.
        """
        if rounds * periods > self.max_rounds:
            planned = f"{rounds} rounds" if periods == 1 else f"{rounds} rounds of {periods} periods"
            raise RefusedError(f"The server plans {planned}, but this site allows {self.max_rounds}.")

    def check_turns(self, before: int, ordered: int) -> None:
        """Refuse to train more often in one federation than this site allows.

        Args:
            before: how many times the site has trained for the server in this federation.
            ordered: how many times it shall train now.

        Raises:
            RefusedError: with the limit.
        """
        if before + ordered > self.max_rounds:
            raise RefusedError(
                f"This site has trained {before} times in this federation, and its 'policy.max_rounds' is {self.max_rounds}. "
                "Periods of a round, and rounds that are repeated after a restart of the server, count as well. Only the site "
                "can raise the limit."
            )

    def check_order(self, order: TrainOrder | EvalOrder, local: LocalTraining) -> None:
        """Refuse rounds, evaluations, and models without noise that this site does not allow.

        Args:
            order: the order.
            local: the settings of local training, whose noise also covers models that pass no transforms.

        Raises:
            RefusedError: naming the limit.
        """
        if isinstance(order, TrainOrder) and not order.delivers:
            in_steps = 0.0 if local.privacy is None else local.privacy.noise_multiplier
            if in_steps < self.min_noise:
                raise RefusedError(
                    "The order asks for a model that passes no transforms, and so for one without the noise that this site's "
                    "policy requires. Use the route ServerRoute, or 'federation.local.privacy'."
                )
        for job in order.jobs:
            if not 0 <= job.round_idx < self.max_rounds:
                raise RefusedError(f"Round {job.round_idx} is beyond this site's limit of {self.max_rounds} rounds.")
        if isinstance(order, EvalOrder) and order.part not in self.evaluations:
            raise RefusedError(
                f"This site does not allow evaluation on its {order.part} examples: '{order.part}' is not in its "
                "'policy.evaluations'."
            )
