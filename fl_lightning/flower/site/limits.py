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
from fl_lightning.flower.site.policy import FACTS, LARGEST_POWER, Policy
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

    def check_settings(self, owner: Any, units: Callable[[Part], int]) -> None:
        """Refuse settings with less noise than this site requires, and those that need more than it tells.

        Args:
            owner: the federation's settings.
            units: returns the number of persons of a part, or of rows if the data name no persons.

        Raises:
            RefusedError: naming the settings.
        """
        if owner.trains and not any(option.own_pace for option in owner.active_options):
            periods, most = getattr(owner.route, "periods", 1), self._policy.machine.trainings
            if owner.rounds * periods > most:
                planned = f"{owner.rounds} rounds" if periods == 1 else f"{owner.rounds} rounds of {periods} periods"
                raise RefusedError(f"The server plans {planned}, but this site allows {most} ('policy.machine.trainings').")
        noise, least = _noise(owner.active_options), self._policy.least_noise
        sealed = any(option.seals for option in owner.active_options)
        if self._policy.update.masks is not None and owner.trains and not sealed:
            raise RefusedError(
                "This site's 'policy.update' is masks, so it sends nothing but its part of a sum. Set "
                "'federation.secure_aggregation' at the server."
            )
        if sealed and self._policy.update.masks is None:
            raise RefusedError(
                "The server asks for masks ('federation.secure_aggregation'), but this site has no keys of the others, without "
                "which the server could invent them. Its staff set 'policy.update.masks.peers'."
            )
        power = getattr(owner.strategy, "weight_power", 1.0)
        if sealed and power > LARGEST_POWER:
            raise RefusedError(
                f"{type(owner.strategy).__name__} weighs sites by the power {power:g} of a number of theirs, so that one site "
                f"could be nearly all of the sum. Sites under masks take powers up to {LARGEST_POWER:g}."
            )
        if noise < least:
            raise RefusedError(f"The noise multiplier at the client is {noise}, but this site's policy requires {least}.")
        with self._requiring_noise():
            for option in owner.active_options:
                option.check_settings(owner)
        evaluated = evaluated_parts(owner) if owner.trains else []
        needed = {f"evaluation/{part}": setting for setting, part in evaluated}
        for fact in owner.strategy.reads if owner.trains and not sealed else ():  # under masks, they are in the sum
            needed[fact] = f"federation.strategy {type(owner.strategy).__name__}"
        self._require_told(needed)
        for _, part in evaluated:
            self.check_part(part, units(part))

    def _require_told(self, needed: Mapping[str, str]) -> None:
        """Refuse settings that need a fact which the site does not tell, with the line to add."""
        told = self._policy.told
        missing = [fact for fact in needed if fact not in told and not (fact == "examples" and "examples/rounded" in told)]
        if missing:
            fix = f"If its staff agrees, add to data.yaml, under 'policy': tells: [{', '.join([*sorted(told), *missing])}]"
            if form := next(filter(None, map(self._policy.hides, missing)), ""):
                fix = f"Its 'policy.update' requires {form}, with which that never leaves. Remove the setting at the server."
            lacking = "; ".join(FACTS[fact] for fact in missing)
            raise RefusedError(f"'{needed[missing[0]]}' needs what this site does not tell: {lacking}. {fix}")

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
        if units < self._policy.min_rows:
            raise RefusedError(
                f"This site's {part} part has fewer than {self._policy.min_rows} rows or persons ('policy.min_rows'), so "
                "nothing that is computed from it leaves."
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
        size = sum(t.numel() * t.element_size() for t in (*module.parameters(), *module.buffers())) / 2**30
        most = self._policy.machine.memory
        if size > most:
            raise RefusedError(f"The model has {size:.3g} GiB, but this site allows {most:g} ('policy.machine.memory').")

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
        if self._policy.update.noise is not None:
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
            if self._policy.update.noise is not None:
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
        if passed_on and _noise(settings.active_options, delivered=False) < policy.least_noise:
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
            self._require_told({f"evaluation/{order.part}": "fl-lightning evaluate"})
            self.check_part(order.part, data.units(order.part))
            if order.question is not None:
                check_question(order, order.question, policy)

    def check_work(self, update: ClientUpdate) -> None:
        """Refuse to send an update of no step, or of fewer rows than this site requires, which a stream tells only now.

        Raises:
            RefusedError: naming the limit.
        """
        self.check_part("training", update.num_examples)
        if update.num_steps < 1:
            raise RefusedError("The turn had no steps. Let each turn have one at least.")

    def check_turn(self, task: ClientTask, settings: FederationSettings, data: SiteData, leaves: bool = True) -> None:
        """Refuse a turn that may read fewer rows, or persons, than this site allows.

        Args:
            task: the turn.
            settings: the settings of the clients.
            data: the site's data.
            leaves: whether the trained model leaves the site.

        Raises:
            RefusedError: naming the limit.
        """
        policy = self._policy
        if not 1 <= task.slowness < math.inf:
            raise RefusedError(f"The turn has a slowness of {task.slowness:g}, which is not 1 or above.")
        every, smallest = data.batches(settings.local.full_batch)
        batches = every if every == math.inf else settings.local.batches(int(every))
        plan = TurnPlan.of(task, settings.local)
        steps = plan.steps(batches, whole=False) / task.slowness
        whole = steps if math.isinf(steps) else max(1, int(steps))  # a slow client leaves out a step in part
        read = min(whole * plan.accumulate, batches)  # an epoch repeats no row, and the next one may repeat all
        noisy = policy.update.noise is not None and _noise(settings.active_options, delivered=False) >= policy.least_noise
        if leaves and not noisy and read < every and read * smallest < policy.min_rows:
            raise RefusedError(
                f"The turn may read fewer rows or persons than this site's 'policy.min_rows' of {policy.min_rows}. Train "
                "longer, or on larger batches."
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


def _noise(options: Sequence[OptionSettings], delivered: bool = True) -> float:
    """Return the largest multiplier of the noise that clients add to a model, which may pass the transforms or not."""
    return max((option.clients_noise(delivered) for option in options), default=0.0)
