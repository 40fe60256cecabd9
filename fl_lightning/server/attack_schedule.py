"""Attackers at work: when they begin, and what it shows."""

from __future__ import annotations

from lightning.pytorch import Trainer

from fl_lightning.data.federated import FederatedDataModule
from fl_lightning.reporting.detection import detection
from fl_lightning.server.evaluators import require_server_set
from fl_lightning.server.federation import Federation
from fl_lightning.server.round_result import RoundResult
from fl_lightning.settings.attackers import Attackers


class AttackSchedule:
    """The attackers of one fit.

    Args:
        attackers: who they are and what they do.
        data: which they change.
        seed: of the federation.
        trainer: the outer one.

    Raises:
        ConfigurationError: for attackers that do not exist, or a backdoor whose success cannot be measured.
    """

    def __init__(self, attackers: Attackers, data: FederatedDataModule, seed: int, trainer: Trainer) -> None:
        attackers.check(data.num_clients)
        if attackers.backdoor is not None:
            require_server_set("its success rate", data, trainer.limit_val_batches, "federation.attackers.backdoor")
        self._attackers, self._data, self._seed = attackers, data, seed
        self._active: bool | None = None
        self.begin_round(0)

    def begin_round(self, round_idx: int) -> frozenset[int]:
        """Let attackers change their data when it is time.

        Returns:
            Clients that discard the global model.
        """
        attackers, who, active = self._attackers, (self._data.num_clients, self._seed), self._attackers.active(round_idx)
        if active != self._active:
            labels, backdoors = (attackers.label_attacks(*who), attackers.backdoors(*who)) if active else ({}, {})
            self._data.mislabel(labels, self._seed, backdoors)
            self._active = active
        return frozenset(attackers.discard_global if active else ())

    def end(self) -> None:
        """Give the clients their data back."""
        self._data.mislabel({}, self._seed)

    def figures(self, federation: Federation, round_idx: int, result: RoundResult) -> dict[str, float]:
        """Return the round's figures on attackers, once the global model has been set; call it on every rank."""
        attackers, figures = self._attackers, {}
        if attackers.active(round_idx):
            figures = detection(result.updates, attackers.everyone(self._data.num_clients, self._seed))
        backdoor = attackers.backdoor
        if backdoor is not None:
            federation.publish()
            success = federation.comm.spread(1, lambda _: federation.evaluators.backdoor_success(backdoor))
            figures["backdoor_success"] = success[0]
        return figures
