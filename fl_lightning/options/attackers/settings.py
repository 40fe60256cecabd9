"""Clients that harm the federation."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import torch

from fl_lightning.attacks.backdoor import Backdoor
from fl_lightning.attacks.labels import LabelAttack, RandomLabels
from fl_lightning.attacks.models import ModelAttack
from fl_lightning.core.capabilities import Capability, Need
from fl_lightning.core.hooks import ClientContext, ClientHooks, ServerContext, ServerHooks
from fl_lightning.core.option import OptionSettings
from fl_lightning.errors import ConfigurationError, require
from fl_lightning.functional.seeding import generator
from fl_lightning.utilities.argument_types import checks_types

_NAME = "federation.attackers."
_REMOVE = "Remove 'federation.attackers."


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
        for setting, clients in (
            ("wrong_labels", self.wrong_labels),
            ("discard_global", self.discard_global),
            ("clients", listed),
        ):
            strangers = [client for client in clients if not 0 <= client < num_clients]
            require(not strangers, _NAME + setting, known, strangers)

    def members(self, num_clients: int, seed: int) -> frozenset[int]:
        """Return the clients that ``labels``, ``backdoor`` and ``model`` apply to; a share of all clients is rounded up."""
        if isinstance(self.clients, list):
            return frozenset(self.clients)
        order = torch.randperm(num_clients, generator=generator(seed, "attackers")).tolist()
        return frozenset(order[: math.ceil(self.clients * num_clients - 1e-9)])

    def everyone(self, num_clients: int, seed: int) -> frozenset[int]:
        """Return all clients that misbehave in any way."""
        return self.members(num_clients, seed) | self.wrong_labels.keys() | set(self.discard_global)

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
        from fl_lightning.options.attackers.server import AttackersAtServer

        return AttackersAtServer(self, context)

    def at_clients(self, context: ClientContext) -> ClientHooks:
        """Return the hooks where clients train."""
        from fl_lightning.options.attackers.clients import AttackersAtClients

        return AttackersAtClients(self, context)

    def label_attacks(self, num_clients: int, seed: int) -> Mapping[int, LabelAttack]:
        """Return the attacks by client."""
        found: dict[int, LabelAttack] = {client: RandomLabels(share) for client, share in self.wrong_labels.items()}
        if self.labels is not None:
            found |= dict.fromkeys(self.members(num_clients, seed), self.labels)
        return found

    def backdoors(self, num_clients: int, seed: int) -> Mapping[int, Backdoor]:
        """Return the backdoors by client."""
        return {} if self.backdoor is None else dict.fromkeys(self.members(num_clients, seed), self.backdoor)
