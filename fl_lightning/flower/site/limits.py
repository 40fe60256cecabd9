"""Hold what a server asks for, and what leaves a site, within the site's policy."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from lightning.pytorch import LightningModule

from fl_lightning.clients.turn import TurnPlan
from fl_lightning.core.option import OptionSettings
from fl_lightning.errors import ConfigurationError
from fl_lightning.flower.checks import evaluated_parts
from fl_lightning.flower.site.policy import LARGEST_POWER, Policy
from fl_lightning.flower.site.questions import check_question
from fl_lightning.flower.site.recipe import RefusedError
from fl_lightning.functional.model_state import ModelState
from fl_lightning.messages import ClientTask, EvalOrder, Part, ServerModel
from fl_lightning.settings.local_training import FederationSettings
from fl_lightning.types import ClientUpdate

if TYPE_CHECKING:
    from fl_lightning.flower.site.data import SiteData


class SiteLimits:
    """Refuse what a site's policy does not allow.

    Args:
        policy: the site's policy.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy = policy

    # ---------------------------------------------------------------- settings

    def check_values(self, contract: Mapping[str, Any]) -> None:
        """Refuse threads, settings of training and engines beyond the policy, before anything is imported.

        Raises:
            RefusedError: naming the setting.
        """
        policy, local = self._policy, contract["federation"]["local"]
        if not 1 <= contract["threads"] <= policy.most_threads:
            raise RefusedError(
                f"The server's 'threads' is {contract['threads']}, but this site allows 1 to {policy.most_threads} "
                "('policy.max_threads')."
            )
        if not isinstance(local, Mapping):
            raise RefusedError("The server's 'federation.local' must be a mapping.")
        local = local.get("init_args", local)  # a Python script sends the class by name
        if local.get("engine", "auto") not in ("auto", "trainer", "fabric") or local.get("compile"):
            raise RefusedError("Sites train with the engines auto, trainer and fabric, and do not compile.")
        if local.get("callbacks"):
            raise RefusedError("'federation.local.callbacks' is code of the server's, which sites do not run.")

    def check_plan(self, rounds: int, periods: int = 1) -> None:
        """Refuse a federation in which the site would train more often than it allows.

        Args:
            rounds: the number of rounds that the server plans.
            periods: how many times a client trains in each.

        Raises:
            RefusedError: with both numbers.
        """
        if rounds * periods > self._policy.max_rounds:
            planned = f"{rounds} rounds" if periods == 1 else f"{rounds} rounds of {periods} periods"
            raise RefusedError(f"The server plans {planned}, but this site allows {self._policy.max_rounds}.")

    def check_settings(self, owner: Any, units: Callable[[Part], int]) -> None:
        """Refuse settings with less noise than this site requires, and evaluations that it does not allow.

        Args:
            owner: the federation's settings.
            units: returns the number of persons of a part, or of rows if the data name no persons.

        Raises:
            RefusedError: naming the settings.
        """
        if not _at_own_pace(owner.active_options):
            self.check_plan(owner.rounds, getattr(owner.route, "periods", 1))
        most, least = _noise(owner.active_options), self._policy.min_noise
        sealed = any(option.seals for option in owner.active_options)
        if self._policy.secure_aggregation == "required" and owner.trains and not sealed:
            raise RefusedError(
                "This site's 'policy.secure_aggregation' is 'required', so it sends nothing but its part of a sum. Set "
                "'federation.secure_aggregation' at the server."
            )
        power = getattr(owner.strategy, "weight_power", 1.0)
        if sealed and power > LARGEST_POWER:
            raise RefusedError(
                f"{type(owner.strategy).__name__} weighs sites by the power {power:g} of a number of theirs, so that one site "
                f"could be nearly all of the sum. Sites under masks take powers up to {LARGEST_POWER:g}."
            )
        if most < least:
            raise RefusedError(f"The noise multiplier at the client is {most}, but this site's policy requires {least}.")
        with self._requiring_noise():
            for option in owner.active_options:
                option.check_settings(owner)
        for setting, part in evaluated_parts(owner):
            if least > 0:
                raise RefusedError(
                    f"'{setting}' evaluates models on each client's {part} examples, and this site's 'policy.min_noise' is "
                    f"{least}, so no figure without noise leaves it. Use FedAvg, and measure nothing else at the clients."
                )
            if part not in self._policy.evaluations:
                raise RefusedError(
                    f"'{setting}' evaluates models on each client's {part} examples, which this site does not allow. The site "
                    f"would have to add '{part}' to 'policy.evaluations'."
                )
            self.check_part(part, units(part))

    def check_training(self, data: SiteData) -> None:
        """Refuse a training part with fewer persons or rows than this site requires; a stream tells its size only later.

        Raises:
            RefusedError: naming the limit.
        """
        if not data.streams:
            self.check_part("training", data.units("training"))

    def check_part(self, part: Part, units: int) -> None:
        """Refuse to compute a figure or an update from fewer persons or rows than this site requires behind one.

        Raises:
            RefusedError: naming the limit, without the number.
        """
        if units < self._policy.min_examples:
            raise RefusedError(
                f"This site's {part} part has fewer than {self._policy.min_examples} examples or persons "
                "('policy.min_examples'), so nothing that is computed from it leaves."
            )

    def check_module(self, options: Sequence[OptionSettings], precision: str, module: LightningModule) -> None:
        """Refuse a precision or a module with which the required noise would not cover single examples or the change.

        Raises:
            RefusedError: naming them.
        """
        with self._requiring_noise():
            for option in options:
                option.check_module(precision, module)

    def check_size(self, module: LightningModule) -> None:
        """Refuse a model that is larger than this site allows.

        Raises:
            RefusedError: with its size.
        """
        size = sum(t.numel() * t.element_size() for t in (*module.parameters(), *module.buffers())) / 2**20
        if size > self._policy.max_model:
            raise RefusedError(f"The model has {size:.0f} MiB, but this site allows {self._policy.max_model:g} MiB.")

    def check_buffers(self, options: Sequence[OptionSettings], state: ModelState) -> None:
        """Refuse a model whose buffers would be sent without the required noise.

        Raises:
            RefusedError: naming the buffers.
        """
        with self._requiring_noise(any(option.seals for option in options)):
            for option in options:
                option.check_sent(state)

    def without_checks(self, model: ServerModel, options: Sequence[OptionSettings]) -> ServerModel:
        """Return a model without limits that tell of this site's exact numbers whether they are within.

        A check before the noise would; so would one of an update that leaves masked, and a server could choose the limit.
        """
        if self._policy.min_noise > 0:
            return replace(model, tolerates_broken=True, max_abs_weight=math.inf)
        sealed = any(option.seals for option in options)
        return replace(model, max_abs_weight=math.inf) if sealed else model

    @contextmanager
    def _requiring_noise(self, sealed: bool = False) -> Iterator[None]:
        """Tell the server what is wrong with its settings, if this site requires noise or gets masks; let others pass."""
        try:
            yield
        except ConfigurationError as error:
            if sealed:
                raise RefusedError(str(error)) from error
            if self._policy.min_noise > 0:
                raise RefusedError(f"This site's policy requires noise at the client. {error}") from error

    # ---------------------------------------------------------------- orders

    def check_order(self, order: ClientTask | EvalOrder, settings: FederationSettings, data: SiteData) -> None:
        """Refuse rounds, evaluations, turns, and models without noise that this site does not allow.

        Args:
            order: the order.
            settings: the settings, some of whose options cover also models that pass no transforms.
            data: the site's data.

        Raises:
            RefusedError: naming the limit.
        """
        policy = self._policy
        passed_on = isinstance(order, ClientTask) and not order.delivers
        if passed_on and _noise(settings.active_options, delivered=False) < policy.min_noise:
            raise RefusedError(
                "The order asks for a model that passes no transforms, and so for one without the noise that its policy "
                "requires. Use the route ServerRoute, or noise in every step of the clients' training."
            )
        if any(option.seals for option in settings.active_options):
            _require_sealed(order)
        own = order.epochs if isinstance(order, EvalOrder) else None
        for task in (order,) if isinstance(order, ClientTask) else order.tasks:
            turn = copy.copy(settings)
            turn.local = settings.local if own is None else replace(settings.local, max_epochs=own, max_steps=-1)
            self.check_turn(task, turn, data, leaves=isinstance(order, ClientTask))
        if isinstance(order, EvalOrder):
            allowed = () if policy.min_noise > 0 else policy.evaluations
            if order.part not in allowed:
                raise RefusedError(
                    f"This site does not allow evaluation on its {order.part} examples: '{order.part}' is not in its "
                    "'policy.evaluations', or its 'policy.min_noise' is above 0."
                )
            self.check_part(order.part, data.units(order.part))
            if order.question is not None:
                check_question(order, order.question, policy)

    def check_own_model(self, settings: FederationSettings, data: SiteData) -> None:
        """Refuse to send the model that the site keeps for itself, unless the policy lets it travel.

        Raises:
            RefusedError: naming the limit.
        """
        if self._policy.own_model != "travels":
            raise RefusedError("The model of this site stays here ('policy.own_model').")
        sealed = self._policy.secure_aggregation == "required" or any(option.seals for option in settings.active_options)
        if self._policy.min_noise > 0 or sealed:
            raise RefusedError("The model of this site would leave without the noise or the masks that this federation has.")
        self.check_training(data)

    def check_work(self, update: ClientUpdate) -> None:
        """Refuse to send an update of fewer rows or steps than this site requires, however few it has done.

        Raises:
            RefusedError: naming the limit.
        """
        self.check_part("training", update.num_examples)  # which a stream tells only now
        steps, least = update.num_steps, self._policy.min_steps
        if steps < least:
            raise RefusedError(f"The turn had {steps} steps, but this site's 'policy.min_steps' is {least}.")

    def check_turn(self, task: ClientTask, settings: FederationSettings, data: SiteData, leaves: bool = True) -> None:
        """Refuse a turn with more epochs, fewer steps, or smaller batches than this site allows.

        Args:
            task: the turn.
            settings: the settings of the clients.
            data: the site's data.
            leaves: whether the trained model leaves the site.

        Raises:
            RefusedError: naming the limit.
        """
        policy = self._policy
        most = math.inf if _at_own_pace(settings.active_options) else policy.max_rounds
        if not 0 <= task.round_idx < most:
            raise RefusedError(f"Round {task.round_idx} is beyond this site's limit of {policy.max_rounds} rounds.")
        if not 1 <= task.slowness < math.inf:
            raise RefusedError(f"The turn has a slowness of {task.slowness:g}, which is not 1 or above.")
        every, smallest = data.batches(settings.local.full_batch)
        batches = every if every == math.inf else settings.local.batches(int(every))
        plan = TurnPlan.of(task, settings.local)
        steps = plan.steps(batches, whole=False) / task.slowness
        epochs = float(plan.epochs)
        if plan.epochs == -1:  # the number of steps ends the turn
            epochs = math.inf if batches == math.inf else plan.max_steps / math.ceil(batches / plan.accumulate)
        if not epochs <= policy.max_epochs:
            raise RefusedError(f"The turn has {epochs:g} epochs, but this site's 'policy.max_epochs' is {policy.max_epochs}.")
        if leaves and steps < policy.min_steps:
            raise RefusedError(f"The turn has {steps:g} steps, but this site's 'policy.min_steps' is {policy.min_steps}.")
        whole = steps if math.isinf(steps) else max(1, int(steps))  # a slow client leaves out a step in part
        read = min(whole * plan.accumulate, batches)  # an epoch repeats no row, and the next one may repeat all
        noisy = policy.min_noise > 0 and _noise(settings.active_options, delivered=False) >= policy.min_noise
        if leaves and not noisy:
            self._check_rows(math.inf if read >= every else read * smallest, smallest)

    def _check_rows(self, read: float, smallest: int) -> None:
        """Refuse a turn that may read too few rows (or persons), in all or in its smallest batch."""
        policy = self._policy
        if read < policy.min_examples:
            raise RefusedError(
                f"The turn may read fewer rows or persons than this site's 'policy.min_examples' of {policy.min_examples}. "
                "Train longer, or on larger batches."
            )
        if smallest < policy.min_batch:
            raise RefusedError(
                f"A batch may have fewer rows or persons than this site's 'policy.min_batch' of {policy.min_batch}. The "
                "site's staff can choose a 'batch_size' that leaves no small rest."
            )


def _require_sealed(order: ClientTask | EvalOrder) -> None:
    """Refuse an order whose result would leave unmasked, or that gives this site a model that no other site sees.

    Raises:
        RefusedError: saying what is wrong.
    """
    if isinstance(order, EvalOrder) or not order.delivers:
        raise RefusedError("The order asks for a figure or a model of this site alone, but only sums over sites leave it.")
    if order.start is not None or order.pull is not None:
        raise RefusedError("The order has a model for this site alone, so the server could tell the sites' updates apart.")


def _at_own_pace(options: Sequence[OptionSettings]) -> bool:
    """Return whether the site may train in few of the rounds, so that only its trainings are counted against the limit."""
    return any(option.own_pace for option in options)


def _noise(options: Sequence[OptionSettings], delivered: bool = True) -> float:
    """Return the largest multiplier of the noise that clients add to a model, which may pass the transforms or not."""
    return max((option.clients_noise(delivered) for option in options), default=0.0)
