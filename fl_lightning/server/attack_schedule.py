"""Start attackers at their round, and log their effect."""

from __future__ import annotations

from lightning.pytorch import Trainer

from fl_lightning.data.federated import FederatedDataModule
from fl_lightning.reporting.detection import detection
from fl_lightning.server.evaluators import require_server_set
from fl_lightning.server.federation import Federation
from fl_lightning.server.round_result import RoundResult
from fl_lightning.settings.attackers import Attackers


class AttackSchedule:
    """Schedule the attackers of one fit.

    Args:
        attackers: the settings of the attackers.
        data: the data that they change.
        seed: the seed of the federation.
        trainer: the outer Trainer.

    Raises:
        ConfigurationError: if attackers do not exist, or if the success of a backdoor cannot be measured.
    """

    def __init__(self, attackers: Attackers, data: FederatedDataModule, seed: int, trainer: Trainer) -> None:
        attackers.check(data.num_clients)
        if attackers.backdoor is not None:
            require_server_set("its success rate", data, trainer.limit_val_batches, "federation.attackers.backdoor")
        self._attackers, self._data, self._seed = attackers, data, seed
        self._active: bool | None = None
        self.begin_round(0)

    def begin_round(self, round_idx: int) -> frozenset[int]:
        """Let attackers change their data from their first round on.

        Returns:
            The clients that discard the global model.
        """
        attackers, who, active = self._attackers, (self._data.num_clients, self._seed), self._attackers.active(round_idx)
        if active != self._active:
            labels, backdoors = (attackers.label_attacks(*who), attackers.backdoors(*who)) if active else ({}, {})
            self._data.mislabel(labels, self._seed, backdoors)
            self._active = active
        return frozenset(attackers.discard_global if active else ())

    def end(self) -> None:
        """Restore the clients' data."""
        self._data.mislabel({}, self._seed)

    def figures(self, federation: Federation, round_idx: int, result: RoundResult) -> dict[str, float]:
        """Return the round's metrics on attackers, after the global model has been set; call it on every rank."""
        attackers, figures = self._attackers, {}
        if attackers.active(round_idx):
            figures = detection(result.updates, attackers.everyone(self._data.num_clients, self._seed))
        backdoor = attackers.backdoor
        if backdoor is not None:
            federation.publish()
            success = federation.comm.spread(1, lambda _: federation.evaluators.backdoor_success(backdoor))
            figures["backdoor_success"] = success[0]
        return figures
