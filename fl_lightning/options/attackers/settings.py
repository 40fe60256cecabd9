"""Clients that harm the federation."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

import torch

from fl_lightning.attacks.backdoor import Backdoor
from fl_lightning.attacks.labels import LabelAttack, RandomLabels
from fl_lightning.attacks.models import Crowd, ModelAttack
from fl_lightning.core.capabilities import Capability, Need
from fl_lightning.core.federation import Federation, ServerContext
from fl_lightning.core.option import ClientContext, ClientHooks, OptionSettings, ServerHooks, require_server_set
from fl_lightning.errors import ConfigurationError, require
from fl_lightning.functional.returned import require_vector
from fl_lightning.functional.seeding import generator
from fl_lightning.functional.sums import Sums
from fl_lightning.messages import ClientTask
from fl_lightning.options.attackers.examples import PoisonedExamples, poisoned
from fl_lightning.options.attackers.measures import Agreement, TriggeredImages, detection
from fl_lightning.types import ClientUpdate, RoundResult
from fl_lightning.utilities.argument_types import checks_types

if TYPE_CHECKING:
    from fl_lightning.clients.judging import UpdateEditor
    from fl_lightning.utilities.collectives import Collectives

_NAME = "federation.attackers."
_REMOVE = "Remove 'federation.attackers."
_REMEDY = "Return one number for each trained parameter, as in the change that the method gets."
_ORDINARY = 2.0**14
"""The largest change that attackers learn from; the squares of many such changes still add up exactly."""


@checks_types
@dataclass(frozen=True)
class Attackers(OptionSettings):
    """Choose which clients misbehave, and how. Each switch works with any strategy.

    AdaFed's Simulation 3 (section 4.0.3) adds two clients, 6 and 7. They hold the distributions of clients 2 and 3 with half
    and all of the labels wrong, and both discard the global model.

    Args:
        wrong_labels: the share in [0, 1] of wrong labels, by client; a wrong label is a different class, drawn once for all
            rounds.
        discard_global: clients that continue from their own last weights instead of the global model; in their first round
            they have no weights of their own yet and take the global model.
        clients: the clients that the following settings apply to: ids, or a share of all clients in [0, 1), drawn by the seed.
        labels: how these clients change their labels.
        backdoor: the trigger that they add to some of their images, after ``labels``.
        model: what they send instead of the model that they trained.
        from_round: the first round of the attack, counted from 0.

    Raises:
        ConfigurationError: for a value outside its range, or an attack without attackers.
    """

    wrong_labels: dict[int, float] = field(default_factory=dict)
    discard_global: list[int] = field(default_factory=list)
    clients: list[int] | float = field(default_factory=list)
    labels: LabelAttack | None = None
    backdoor: Backdoor | None = None
    model: ModelAttack | None = None
    from_round: int = 0

    setting = "attackers"
    simulated_only = True

    def __post_init__(self) -> None:
        for client, share in self.wrong_labels.items():
            require(0 <= share <= 1, f"{_NAME}wrong_labels.{client}", "a share from 0 to 1", share)
        if not isinstance(self.clients, list):
            require(0 <= self.clients < 1, _NAME + "clients", "ids, or a share from 0 to below 1", self.clients)
        attacks = {"labels": self.labels, "backdoor": self.backdoor, "model": self.model}
        given = [name for name, attack in attacks.items() if attack is not None]
        if bool(self.clients) != bool(given):
            raise ConfigurationError(
                f"'federation.attackers.clients' is {self.clients!r}, but of {', '.join(attacks)} the configuration sets "
                f"{' and '.join(given) or 'none'}. Set 'clients' (who attacks) together with at least one of the others (how "
                "they attack), or leave out all of them."
            )
        require(self.from_round >= 0, _NAME + "from_round", "0 or above", self.from_round)

    def check(self, num_clients: int) -> None:
        """Reject clients that do not exist.

        Raises:
            ConfigurationError: naming the setting.
        """
        known = f"clients from 0 to {num_clients - 1}"
        listed = self.clients if isinstance(self.clients, list) else []
        named = {"wrong_labels": self.wrong_labels, "discard_global": self.discard_global, "clients": listed}
        for setting, clients in named.items():
            strangers = [client for client in clients if not 0 <= client < num_clients]
            require(not strangers, _NAME + setting, known, strangers)

    def members(self, num_clients: int, seed: int) -> frozenset[int]:
        """Return the clients that ``labels``, ``backdoor`` and ``model`` apply to; a share of all clients is rounded up."""
        if isinstance(self.clients, list):
            return frozenset(self.clients)
        order = torch.randperm(num_clients, generator=generator(seed, "attackers")).tolist()
        return frozenset(order[: math.ceil(self.clients * num_clients - 1e-9)])

    @property
    def active(self) -> bool:
        """Return whether any client misbehaves."""
        return bool(self.wrong_labels or self.discard_global or self.clients)

    def active_in(self, round_idx: int) -> bool:
        """Return whether the attack has begun by this round."""
        return round_idx >= self.from_round

    def needs(self) -> Iterator[Need]:
        """Return what attacks on updates, on starts and by a trigger need."""
        if self.model is not None:
            name = f"'{_NAME}model' {type(self.model).__name__}"
            changes = f"{name} changes the updates that clients send to the server"
            other = "Use another attack, such as SignFlip"
            yield Need(Capability.DELIVERED_UPDATES, changes, _REMOVE + "model'")
            yield Need(Capability.FIXED_TENSORS, f"{name} does not cover such tensors", _REMOVE + "model'")
            if self.model.needs_crowd:
                yield Need(Capability.WHOLE_ROUNDS, f"{name} reads the honest changes of a whole round", other)
                yield Need(Capability.OPEN_CHANGES, f"{name} reads the honest clients' changes before they are sent", other)
        if self.discard_global:
            starts = f"'{_NAME}discard_global' gives clients complete models of their own"
            yield Need(Capability.GLOBAL_STARTS, starts, _REMOVE + "discard_global'")
        if self.backdoor is not None:
            measured = f"'{_NAME}backdoor' is measured with the global model"
            yield Need(Capability.COMPLETE_MODEL, measured, _REMOVE + "backdoor'")

    def at_server(self, context: ServerContext) -> ServerHooks:
        """Return the hooks at the server."""
        return AttackersAtServer(self, context)

    def at_clients(self, context: ClientContext) -> ClientHooks:
        """Return the hooks where clients train."""
        return AttackersAtClients(self, context)

    def poisoned(self, num_clients: int, seed: int) -> dict[int, PoisonedExamples]:
        """Return the changes of attackers' examples, by client."""
        labels: dict[int, LabelAttack] = {client: RandomLabels(share) for client, share in self.wrong_labels.items()}
        members = self.members(num_clients, seed)
        if self.labels is not None:
            labels |= dict.fromkeys(members, self.labels)
        backdoors = {} if self.backdoor is None else dict.fromkeys(members, self.backdoor)
        return poisoned(labels, backdoors, seed)


class AttackersAtServer(ServerHooks):
    """Let attackers change their data and their starts from their first round on.

    Args:
        attackers: the settings of the attackers.
        context: the fit.

    Raises:
        ConfigurationError: if attackers do not exist, or if the success of a backdoor cannot be measured.
    """

    def __init__(self, attackers: Attackers, context: ServerContext) -> None:
        attackers.check(context.data.num_clients)
        if attackers.backdoor is not None:
            require_server_set("its success rate", context.data, context.trainer.limit_val_batches, _NAME + "backdoor")
        self._attackers, self._data, self._seed = attackers, context.data, context.seed
        self._metric = Agreement()
        self._active: bool | None = None
        self.begin_round(0)

    def begin_round(self, round_idx: int) -> None:
        """Let attackers change their data, if they have begun."""
        active = self._attackers.active_in(round_idx)
        if active != self._active:
            changes = self._attackers.poisoned(self._data.num_clients, self._seed) if active else {}
            self._data.client_datasets.change_examples(changes)
            self._active = active

    def task(self, task: ClientTask) -> ClientTask:
        """Let attackers that discard the global model start from their own last one."""
        return replace(task, own_model=True) if self._active and task.client in self._attackers.discard_global else task

    def after_round(self, federation: Federation, round_idx: int, result: RoundResult) -> dict[str, float]:
        """Return how well the strategy's weights detect attackers, and the success rate of the backdoor."""
        attackers, figures = self._attackers, {}
        if attackers.active_in(round_idx):
            drawn = attackers.members(self._data.num_clients, self._seed)
            figures = detection(result.updates, drawn | attackers.wrong_labels.keys() | {*attackers.discard_global})
        if attackers.backdoor is not None:
            federation.publish()
            triggered = partial(TriggeredImages, backdoor=attackers.backdoor)
            score = federation.evaluators.score_changed
            (success,) = federation.comm.spread(1, lambda _: score(self._metric, triggered, _NAME + "backdoor"))
            figures["backdoor_success"] = success
        return figures

    def close(self) -> None:
        """Restore the clients' data."""
        self._data.client_datasets.change_examples({})


class AttackersAtClients(ClientHooks):
    """Replace the updates of attackers by forged ones.

    Args:
        attackers: the settings of the attackers.
        context: the place where the clients train.
    """

    def __init__(self, attackers: Attackers, context: ClientContext) -> None:
        self._attackers, self._seed, self._device = attackers, context.seed, context.device
        self._hostile = attackers.members(context.num_clients, context.seed)
        self._attack: ModelAttack | None = None

    def begin(self, round_idx: int, editor: UpdateEditor) -> None:
        """Prepare for the updates of a new global model."""
        self._round_idx, self._editor = round_idx, editor
        self._attack = self._attackers.model if self._attackers.active_in(round_idx) else None
        self._known, self._drained = Sums(self._device), False
        self._crowd: Crowd | None = None

    @property
    def waits(self) -> bool:
        """Return whether attackers act together, and so send last."""
        return self._attack is not None and self._attack.needs_crowd

    def send(self, update: ClientUpdate) -> ClientUpdate | None:
        """Return an honest update as it is, and an attacker's forged one as soon as the attacker knows enough.

        Raises:
            ClientError: if the forged update cannot be aggregated.
        """
        if self._attack is None:
            return update
        if update.client not in self._hostile:
            self._learn(update)
            return update
        return None if self.waits and not self._drained else self._forged(self._attack, update)

    def _learn(self, update: ClientUpdate) -> None:
        """Add an honest change to what attackers that act together know."""
        if not self.waits:
            return
        change = self._editor.change(update)
        if float(change.abs().max()) < _ORDINARY:  # false for NaN: attackers learn nothing from a broken model
            self._known.add("count", 1.0)
            self._known.add("change", change)
            self._known.add("square", change * change)

    def _forged(self, attack: ModelAttack, update: ClientUpdate) -> ClientUpdate:
        draw = generator(self._seed, self._round_idx, update.client, "attack")
        change = attack.forge(self._editor.change(update), self._crowd, draw)
        require_vector(change, self._editor.size, f"{type(attack).__name__}.forge returned", _REMEDY)
        return self._editor.replaced(update, change)

    def drained(self, comm: Collectives, waiting: int) -> None:
        """Gather what attackers know about the honest updates of all ranks."""
        if not self.waits:
            return
        self._drained = True
        comm.add_sums(self._known)
        attackers, honest = sum(comm.gather(waiting)), round(self._known.scalar("count"))
        if honest:
            mean = self._known.value("change") / honest
            spread = (self._known.value("square") - honest * mean * mean).clamp(min=0) / max(1, honest - 1)
            self._crowd = Crowd(mean, spread.sqrt() if honest > 1 else torch.zeros_like(mean), honest, attackers)
