"""The engine ``stacked``: train clients at once, with their parameters stacked along an extra axis."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from inspect import isfunction
from typing import Any, ClassVar

import torch
from lightning.pytorch import LightningDataModule, LightningModule
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import nn

from fl_lightning.clients.fabric.engine import precision_of, refuse_module
from fl_lightning.clients.fabric.fit import HOOKS, length_of
from fl_lightning.clients.resident import ResidentModel
from fl_lightning.clients.session import LocalResult, PreparedTask, keep_metrics_to_this_process
from fl_lightning.clients.stacked.effects import REMEDY
from fl_lightning.clients.stacked.fit import StackedFit
from fl_lightning.clients.stacked.step import StackedStep
from fl_lightning.clients.turn import ScheduleMover, TurnPlan
from fl_lightning.errors import EngineError
from fl_lightning.losses.proximal import ProximalLoss
from fl_lightning.messages import ModelLayout
from fl_lightning.rules import ClientRule, PullRule
from fl_lightning.settings.local_training import LocalTraining, Place

_REFUSED_HOOKS = (
    *("optimizer_step", "optimizer_zero_grad", "lr_scheduler_step"),
    *("setup", "teardown", "configure_model", "prepare_data"),
)
_CALLED_HOOKS = ("on_fit_start", "on_train_start", "on_train_epoch_start", "on_train_epoch_end", "on_train_end", "on_fit_end")
"""The hooks that stacked clients call if ``stacked_hooks`` names them."""
_RULE_METHODS = ("begin", "check_optimizers", "correct_gradients", "strength", "finish", "remember", "keep")
"""The methods of a rule that stacked clients call; the last three are called by :class:`Client` on every engine."""
_Member = tuple[PreparedTask, LightningDataModule, Any]


class StackedEngine:
    """Train clients with equal numbers of batches side by side, in stacks.

    If a module's hooks only update metrics and log, and read no parameters, name them in a class attribute
    ``stacked_hooks``. They are called for each client; hooks of the start are called before any training. The engine refuses
    other training hooks, and everything that cannot be stacked.

    Args:
        resident: the module that clients train.
        place: where and how the clients train, without anomaly detection.

    Raises:
        EngineError: if the module or the settings need another engine.
    """

    name = "stacked"
    reason = ""
    side_by_side: ClassVar[bool] = True

    def __init__(self, resident: ResidentModel, place: Place) -> None:
        self._resident, self._place = resident, place
        self._mover = ScheduleMover()
        self.close()

    def _build(self) -> StackedStep:
        """Return the stacked step of the module with the published layout.

        Raises:
            EngineError: if the module or the settings need another engine.
        """
        resident, place = self._resident, self._place
        module, local, device = resident.module, place.local, place.device
        if resident.builds_networks:
            raise EngineError(
                f"{type(module).__name__} builds its networks in 'setup' or 'configure_model', which stacked clients cannot "
                "share. Build them in '__init__', or set 'federation.local.engine' to 'fabric' or 'trainer'."
            )
        refuse_module(module, "stacked", _REFUSED_HOOKS)
        _refuse(module, local, place.precision)
        _refuse_rules(place.rules)
        for callback in (callback for hook in place.hooks for callback in hook.callbacks):
            raise EngineError(f"Stacked clients do not support {type(callback).__name__}, a callback of an option. {REMEDY}")
        self._precision: Any = precision_of(place)
        if local.deterministic is not None:
            torch.use_deterministic_algorithms(local.deterministic)
        self._precision.convert_module(module)
        module.to(device)
        keep_metrics_to_this_process(module)
        largest = min(local.stack_size, place.cohort or local.stack_size)
        context, scale = self._precision.forward_context, 1 / local.accumulate_grad_batches
        return StackedStep(module, context, largest, local.compile, scale)

    def recover(self) -> None:
        """Clean up after a client's error, but keep the compiled graphs."""
        if self._step is not None:
            self._step.recover()

    def close(self) -> None:
        """Release the step and its graphs."""
        self._step: StackedStep | None = None
        self._layout: ModelLayout | None = None

    def fit(self, tasks: Sequence[PreparedTask]) -> Iterator[LocalResult]:
        """Train clients stack by stack; see :meth:`TrainerEngine.fit`."""
        local, fast, layout = self._place.local, self._place.fast_dev_run, self._resident.server.layout
        if self._step is None or self._layout is not layout:
            self._step, self._layout = self._build(), layout
        groups: dict[tuple[int, TurnPlan], list[_Member]] = {}
        for prepared in tasks:
            data = prepared.open_data()
            loader: Any = data.train_dataloader()
            count = local.batches(length_of(loader, "stacked"), fast)
            groups.setdefault((count, TurnPlan.of(prepared.task, local, fast)), []).append((prepared, data, loader))
        for (count, plan), members in groups.items():
            for begin in range(0, len(members), local.stack_size):
                stacked, data_of, loaders = zip(*members[begin : begin + local.stack_size], strict=True)
                self._resident.fill(self._resident.view(), None)
                self._resident.python.restore()  # an evaluation may have changed attributes
                fit = StackedFit(self._resident, self._step, stacked, data_of, self._place, self._precision)
                yield from fit.run(loaders, count, plan, self._mover)


def _refuse_rules(rules: Sequence[ClientRule]) -> None:
    for rule in rules:
        name = type(rule).__name__
        if isinstance(rule, PullRule):  # only for pulls, which are refused elsewhere
            continue
        if not rule.stacks:
            raise EngineError(f"Stacked clients do not support {name}, a part of the strategy. {REMEDY}")
        methods = [method for method, value in vars(ClientRule).items() if isfunction(value) and method not in _RULE_METHODS]
        own = [f"overrides '{method}'" for method in methods if getattr(type(rule), method) is not getattr(ClientRule, method)]
        for what in [*own, *(["has 'own_model'"] if rule.own_model else [])]:
            raise EngineError(f"{name}, a part of the strategy, {what}, which stacked clients ignore. {REMEDY}")


def _refuse(module: LightningModule, local: LocalTraining, precision: str) -> None:
    allowed = getattr(module, "stacked_hooks", ())
    name = type(module).__name__
    for hook in HOOKS:
        if hook in allowed and hook not in _CALLED_HOOKS:
            raise EngineError(f"'stacked_hooks' of {name} names '{hook}', which stacked clients do not call. {REMEDY}")
        if is_overridden(hook, module) and hook not in allowed:
            raise EngineError(
                f"{name} overrides '{hook}', which stacked clients would share. {REMEDY} If the hook only logs and updates "
                f"metrics, you can instead name it in a class attribute: stacked_hooks = ('{hook}',)."
            )
    if any(isinstance(part, ProximalLoss) and part.mu for part in module.modules()):
        raise EngineError(
            f"{name} contains a ProximalLoss, which does not support stacked clients. Replace it with "
            f"'federation.local.proximal_mu', which has the same gradient, or use another engine. {REMEDY}"
        )
    for part in module.modules():
        if isinstance(part, nn.RReLU | nn.AlphaDropout | nn.FeatureAlphaDropout):
            raise EngineError(f"Stacked clients do not support {type(part).__name__}. {REMEDY}")
        if getattr(part, "sparse", False) is True and isinstance(part, nn.Embedding | nn.EmbeddingBag):
            raise EngineError(f"Stacked clients do not support {type(part).__name__} with sparse gradients. {REMEDY}")
    settings = {
        "callbacks": ", ".join(type(callback).__name__ for callback in local.callbacks or ()),
        "optimizer_state": local.optimizer_state if local.optimizer_state == "kept" else "",
        "detect_anomaly": local.detect_anomaly,
        "precision": precision if precision.endswith("mixed") else "",  # autocast has no effect inside vmap
    }
    for setting, value in settings.items():
        if value:
            raise EngineError(f"Stacked clients do not support 'federation.local.{setting}' ({value}). {REMEDY}")
