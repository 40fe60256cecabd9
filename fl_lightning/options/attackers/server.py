"""Start attackers at their round, and log their effect."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from fl_lightning.core.hooks import ServerContext, ServerHooks
from fl_lightning.messages import ClientTask
from fl_lightning.options.attackers.detection import detection
from fl_lightning.options.attackers.examples import poisoned
from fl_lightning.options.attackers.triggered_images import Agreement, TriggeredImages
from fl_lightning.server.evaluators import require_server_set
from fl_lightning.server.federation import Federation
from fl_lightning.server.round_result import RoundResult

if TYPE_CHECKING:
    from fl_lightning.options.attackers.settings import Attackers

_BACKDOOR = "federation.attackers.backdoor"


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
            require_server_set("its success rate", context.data, context.trainer.limit_val_batches, _BACKDOOR)
        self._attackers, self._data, self._seed = attackers, context.data, context.seed
        self._metric = Agreement()
        self._active: bool | None = None
        self.begin_round(0)

    def begin_round(self, round_idx: int) -> None:
        """Let attackers change their data, if they have begun."""
        attackers, who, active = self._attackers, (self._data.num_clients, self._seed), self._attackers.active_in(round_idx)
        if active != self._active:
            labels, backdoors = (attackers.label_attacks(*who), attackers.backdoors(*who)) if active else ({}, {})
            self._data.change_examples(poisoned(labels, backdoors, self._seed))
            self._active = active

    def task(self, task: ClientTask) -> ClientTask:
        """Let attackers that discard the global model start from their own last one."""
        return replace(task, own_model=True) if self._active and task.client in self._attackers.discard_global else task

    def after_round(self, federation: Federation, round_idx: int, result: RoundResult) -> dict[str, float]:
        """Return how well the strategy's weights detect attackers, and the success rate of the backdoor."""
        attackers, figures = self._attackers, {}
        if attackers.active_in(round_idx):
            figures = detection(result.updates, attackers.everyone(self._data.num_clients, self._seed))
        if attackers.backdoor is not None:
            federation.publish()
            triggered = partial(TriggeredImages, backdoor=attackers.backdoor)
            score = federation.evaluators.score_changed
            (success,) = federation.comm.spread(1, lambda _: score(self._metric, triggered, _BACKDOOR))
            figures["backdoor_success"] = success
        return figures

    def close(self) -> None:
        """Restore the clients' data."""
        self._data.change_examples({})
