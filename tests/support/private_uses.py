"""The private names of other packages, each with a use of it; see ``test_private_names.py``."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

import private_uses_of_lightning as of_lightning
import private_uses_of_others as others
import private_uses_of_torch as of_torch
import torch
from lightning.pytorch.callbacks import EarlyStopping
from lightning.pytorch.plugins import AsyncCheckpointIO, TorchCheckpointIO

_MODULE, _LOOPS, _CLI = "torch.nn.Module", "lightning.pytorch.loops", "lightning.pytorch.cli.LightningCLI"
_LOGS, _TRAINER = "lightning.pytorch.trainer.connectors.logger_connector", "lightning.pytorch.Trainer"
_CORE, _FIT = "lightning.pytorch.core.optimizer", f"{_LOOPS}.fit_loop._FitLoop"
USES: dict[Callable[..., Any], tuple[str, ...]] = {
    of_torch.lists_of_tensors: tuple(f"torch._foreach_{name}" for name in ("sub", "add_", "copy_", "clamp_min_", "clamp_max_")),
    of_torch.changes_in_place: ("torch.Tensor._version",),
    of_torch.autocast: ("torch.is_autocast_enabled",),
    of_torch.process_group: ("torch.distributed.GroupMember.WORLD",),
    of_torch.fused_steps: ("torch.optim.Optimizer._step_supports_amp_scaling",),
    of_torch.overflows: ("torch.amp.GradScaler._per_optimizer_states",),
    of_torch.schedules_of_schedules: ("torch.optim.lr_scheduler.SequentialLR._schedulers",),
    of_torch.last_rates: ("torch.optim.lr_scheduler.LRScheduler._last_lr",),
    of_torch.workers: (
        "torch.utils.data.DataLoader._iterator",
        "torch.utils.data.dataloader._MultiProcessingDataLoaderIter._shutdown_workers",
    ),
    of_torch.parts: (f"{_MODULE}._modules",),
    of_torch.tensors_of_modules: tuple(
        f"{_MODULE}.{name}" for name in ("_parameters", "_buffers", "_non_persistent_buffers_set")
    ),
    of_torch.batch_norms: ("torch.nn.modules.batchnorm._BatchNorm",),
    of_torch.hooks: (
        *(f"{_MODULE}._{name}_hooks" for name in ("forward", "forward_pre", "backward", "backward_pre")),
        *(f"torch.Tensor.{name}_hooks" for name in ("_backward", "_post_accumulate_grad")),
    ),
    of_torch.trees: tuple(f"torch.utils._pytree.tree_{name}" for name in ("flatten", "unflatten", "map")),
    of_torch.light_training: (
        "torch.autograd.graph._engine_run_backward",
        "torch.autograd.profiler._is_profiler_enabled",
        *(f"torch.optim.optimizer._global_optimizer_{when}_hooks" for when in ("pre", "post")),
        *(f"torch.optim.Optimizer._optimizer_step_{when}_hooks" for when in ("pre", "post")),
    ),
    others.states: ("torchmetrics.Metric._defaults",),
    others.chart: ("wandb.plot.custom_chart.CustomChart", "wandb.plot.custom_chart.CustomChartSpec.table_key"),
    others.names_of_modules: ("_compat_pickle.IMPORT_MAPPING",),
    others.exit_functions: ("atexit._run_exitfuncs",),
    others.copies: ("copy._deepcopy_dispatch",),
    others.options: ("argparse.ArgumentParser._actions", "jsonargparse.ArgumentParser._subcommands_action"),
    others.lists: ("jsonargparse._typehints.deepcopy",),
    others.types_of_settings: ("jsonargparse._typehints.ActionTypeHint._typehint",),
    others.names_of_classes: ("jsonargparse._typehints.resolve_class_path_by_name",),
    of_lightning.optimizers: tuple(
        f"{_CORE}.{name}"
        for name in ("_configure_optimizers", "_configure_schedulers_automatic_opt", "_validate_scheduler_api")
    ),
    of_lightning.levels_of_logging: (f"{_LOGS}.fx_validator._FxValidator.check_logging_and_get_default_levels",),
    of_lightning.logged: (
        *(f"{_LOGS}.result.{name}" for name in ("_ResultMetric", "_ResultCollection")),
        f"{_LOOPS}.training_epoch_loop._TrainingEpochLoop._results",
        *(
            f"lightning.pytorch.trainer.call._call_{name}_hook{'s' * (name == 'callback')}"
            for name in ("callback", "lightning_module", "strategy")
        ),
        *(f"{_LOOPS}.{name}_loop.is_param_in_hook_signature" for name in ("training_epoch", "evaluation")),
        "lightning.pytorch.core.module.is_param_in_hook_signature",
        *("lightning.pytorch.trainer.trainer.isolate_rng", "lightning.pytorch.LightningModule._current_fx_name"),
    ),
    of_lightning.advice: (f"{_LOGS}.result.warning_cache",),
    of_lightning.validation_set: (f"{_FIT}.epoch_loop.val_loop.setup_data",),
    of_lightning.slurm: (f"{_TRAINER}._accelerator_connector.cluster_environment",),
    of_lightning.flags: (f"{_TRAINER}._detect_anomaly", "lightning.pytorch.strategies.ParallelStrategy._layer_sync"),
    of_lightning.whole_epochs: (f"{_FIT}.epoch_progress.total.completed",),
    of_lightning.progress: (
        f"{_FIT}.epoch_loop.automatic_optimization.optim_progress.optimizer.step.total",
        *(
            f"{_FIT}.{name}"
            for name in ("epoch_loop.manual_optimization.optim_step_progress.total", "_resuming_from_checkpoint")
        ),
    ),
    of_lightning.checkpoint: (f"{_TRAINER}._checkpoint_connector.dump_checkpoint",),
    of_lightning.checkpoint_plugins: (
        "lightning.pytorch.plugins.io.wrapper._WrappingCheckpointIO",
        "lightning.pytorch.plugins.AsyncCheckpointIO._checkpoint_io",
    ),
    of_lightning.last_checkpoint: ("lightning.pytorch.callbacks.ModelCheckpoint._find_last_checkpoints",),
    of_lightning.compiled: ("lightning.pytorch.LightningModule._compiler_ctx",),
    of_lightning.names_of_metrics: ("lightning.pytorch.LightningModule._metric_attributes",),
    of_lightning.wandb_loggers: tuple(
        f"lightning.pytorch.loggers.WandbLogger.{name}" for name in ("_experiment", "_wandb_init")
    ),
    of_lightning.handlers: tuple(f"{_TRAINER}._signal_connector.{name}" for name in ("register_signal_handlers", "teardown")),
    of_lightning.command_line: (
        *(f"{_CLI}.{name}" for name in ("_prepare_subcommand_parser", "_subcommand_method_arguments")),
        *(f"{_CLI}.{name}" for name in ("_parse_ckpt_path", "_set_seed", "_dump_config")),
    ),
}
"""The private names, by a use whose result is the same without each."""
REFUSED: dict[Callable[..., Any], tuple[str, ...]] = {
    of_torch.autocast: tuple(
        f"torch.{name}"
        for name in ("autocast_increment_nesting", "autocast_decrement_nesting", "set_autocast_enabled", "clear_autocast_cache")
    ),
    others.summed: ("torchmetrics.Metric._reductions",),
    others.latest_value: ("torchmetrics.Metric._forward_cache",),
    others.dashboard: ("wandb_workspaces.workspaces.Workspace._to_model",),
    of_lightning.sigterm: (f"{_TRAINER}._signal_connector._sigterm_notifier_fn",),
    of_lightning.note: (f"{_TRAINER}._signal_connector.received_sigterm",),
    of_lightning.command_line: (f"{_CLI}._run_subcommand",),
}
"""The private names without which a use is refused."""
EXPECTED: dict[Callable[..., Any], Any] = {
    of_torch.changes_in_place: (True, False),
    of_torch.autocast: (torch.float32, torch.float32),
    of_torch.process_group: (False, True, 1),
    of_torch.fused_steps: [True, False],
    of_torch.overflows: [False, True],
    of_torch.schedules_of_schedules: [[0, 1, 2], [0, 1, 2], []],
    of_torch.last_rates: [0.1 * 0.1],
    of_torch.workers: ([1, 2, 3], set()),
    of_torch.parts: (
        dict.fromkeys(("", "0", "1", "2", "2.0", "2.1")),
        [{"0": "0", "1": "1", "2": "2"}, {}, {}, {"0": "2.0", "1": "2.1"}, {}, {}],
    ),
    of_torch.tensors_of_modules: (
        ["0.weight", "0.bias", "1.weight", "1.bias"],
        [["kept"], [], ["1.running_mean", "1.running_var", "1.num_batches_tracked", "1.own"], [], [], []],
        [["kept"], [], ["1.own"], [], [], []],
    ),
    of_torch.batch_norms: [True, True, True, True, False, False, True, True],
    of_torch.hooks: (
        [[1, 1, 1, 1], [1, 0], [0, 1], [1, 0]],
        ["accumulated", "forward_hook", "forward_pre_hook", "full_backward_hook", "full_backward_pre_hook", "gradient"],
        *(True, False),
    ),
    others.states: {"weight", "mean_value"},
    others.exit_functions: [True],
    others.copies: (5, True, True, 2, True, True, True),
    others.options: ([["help", "takes", "takes.size", "takes.name"], ["help", "x"]], True, None),
    others.types_of_settings: dict.fromkeys(("stop", "stop.help"), EarlyStopping | None)
    | {"help": None, "x": int, "y": list[str], "z": None},
    others.latest_value: 2.0,
    of_lightning.validation_set: [64],
    of_lightning.slurm: (None, True, True, signal.SIGUSR1),
    of_lightning.flags: ([True, False, False], False),
    of_lightning.checkpoint_plugins: [(True, True, AsyncCheckpointIO), (True, True, TorchCheckpointIO)],
    of_lightning.compiled: ([False, True, False], True),
    of_lightning.names_of_metrics: ["mean"],
    of_lightning.wandb_loggers: (None, True),
}
"""What a use returns, where that can be said in a line."""
OFFERED = "lightning.pytorch.strategies.Strategy._lightning_optimizers"
"""The name that Lightning looks up, and not we."""
WRITTEN = {"_atomic_types", "_opt_called", "_HelpAction", "_sigterm_notifier_fn"}
"""Names that are only written, that only type checkers see, or that are looked up together with another one."""
