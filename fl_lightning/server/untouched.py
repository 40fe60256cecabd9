"""Refuse callbacks and hooks that change the server's optimizer, as if it trained on batches."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import Checkpoint, ModelSummary, ProgressBar
from torch.optim import Optimizer

from fl_lightning.clients.attribute_values import PLAIN, equal, is_kept
from fl_lightning.errors import ConfigurationError

_BESIDE = (Checkpoint, ModelSummary, ProgressBar)
"""Lightning's own callbacks of every Trainer, which leave optimizers alone."""


class Untouched:
    """Compare the server's optimizer with what its last step left."""

    def note(self, optimizer: Optimizer, groups: Sequence[dict[str, Any]] | None = None) -> None:
        """Remember the optimizer and its settings.

        Args:
            optimizer: the server's optimizer.
            groups: the settings of its groups in a checkpoint that is about to be restored; by default its own.
        """
        self._optimizer = optimizer
        given = optimizer.param_groups if groups is None else groups
        self._groups: list[dict[str, Any]] = [
            {k: v if isinstance(v, PLAIN) else copy.deepcopy(v) for k, v in group.items() if k != "params" and is_kept(v)}
            for group in given
        ]

    def check(self, trainer: Trainer) -> None:
        """Refuse a change since then.

        Raises:
            ConfigurationError: naming the change, the callbacks that may have made it, and where rates are set.
        """
        change = self._change(trainer)
        if change:
            callbacks: list[Any] = trainer.callbacks  # type: ignore[attr-defined]
            own = [type(one) for one in callbacks if not isinstance(one, _BESIDE)]
            names = ", ".join(kind.__name__ for kind in own if not kind.__module__.startswith("fl_lightning."))
            raise ConfigurationError(
                f"In round {trainer.current_epoch}, a hook of {type(trainer.lightning_module).__name__}"
                f"{f' or a callback of the Trainer ({names})' if names else ''} has {change}. This optimizer applies the "
                "clients' average and trains on no batch. Let the change act at the clients: in 'configure_optimizers' or "
                "'on_train_start' of the module, or by a callback in 'federation.local.callbacks'. The server's settings are "
                "those of 'federation.server_optimizer' in all rounds."
            )

    def _change(self, trainer: Trainer) -> str:
        now, its = self._optimizer.param_groups, "the server's optimizer"
        if len(trainer.optimizers) != 1 or trainer.optimizers[0] is not self._optimizer:
            return f"replaced {its}"
        if trainer.lr_scheduler_configs:
            return f"added a schedule to {its}"
        if len(now) != len(self._groups):
            return f"added a group to {its}"
        for before, group in zip(self._groups, now, strict=True):
            for name, value in before.items():
                if not equal(value, group.get(name)):
                    return f"set '{name}' of {its} from {value} to {group.get(name)}"
        return ""
