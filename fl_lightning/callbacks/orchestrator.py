"""The orchestrator: one callback that makes a federation of an ordinary Lightning run."""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import RichProgressBar, TQDMProgressBar
from lightning.pytorch.cli import OptimizerCallable
from lightning.pytorch.plugins import MixedPrecision, TorchCheckpointIO
from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy
from torch import Tensor

from fl_lightning.callbacks.checkpoint_io import AtomicCheckpointIO
from fl_lightning.callbacks.exchange import add_sums, elementwise_maximum, gather_updates, no_counters
from fl_lightning.callbacks.hooks import announce
from fl_lightning.callbacks.progress import FederationProgressBar
from fl_lightning.callbacks.run_state import RunState
from fl_lightning.callbacks.takeover import Takeover
from fl_lightning.clients.evaluation import ServerEvaluation
from fl_lightning.clients.inner_trainer import without_advice
from fl_lightning.clients.local_trainer import LocalTrainer, client_copy
from fl_lightning.clients.local_training import LocalTraining, refuse_outer_flags, resolve_precision
from fl_lightning.data.federated import FederatedDataModule
from fl_lightning.errors import ConfigurationError
from fl_lightning.functional.exact_sum import Sums
from fl_lightning.functional.model_state import ModelState
from fl_lightning.functional.scheduling import balanced_shares, cohort_size, draw_cohort
from fl_lightning.reporting.rounds import client_metrics, round_metrics
from fl_lightning.reporting.wandb import plot_over_rounds
from fl_lightning.strategies.base import Strategy
from fl_lightning.strategies.fedavg import FedAvg
from fl_lightning.types import ClientUpdate


class FederatedOrchestrator(Callback):
    """Trains any LightningModule as a federation: one epoch of the Trainer is one communication round.

    Give the Trainer this callback and a :class:`~fl_lightning.FederatedDataModule`. ``max_epochs`` then counts rounds,
    and so do checkpoints, resume, early stopping and loggers. Validation evaluates the aggregated model once per round.

    Args:
        strategy: what the server does with the updates; :class:`~fl_lightning.FedAvg` by default.
        local: how a client trains; one local epoch by default.
        clients_per_round: a float in (0, 1] is a fraction of the clients, an int their number.
        server_optimizer: given the parameters, steps on the pseudo-gradient ``w_t - average`` once per round.
            SGD(lr=1), the default, is plain averaging; with momentum it is FedAvgM, Adam is FedAdam.
        seed: of cohorts, shuffling and the clients' random numbers.
        enabled: false trains the module centrally on the union of the clients' examples, as if there were no callback.

    Raises:
        ConfigurationError: at the start of ``fit``, for a Trainer, module or datamodule that cannot be federated.
    """

    def __init__(
        self,
        strategy: Strategy | None = None,
        local: LocalTraining = LocalTraining(),  # noqa: B008 (frozen)
        clients_per_round: int | float = 1.0,
        server_optimizer: OptimizerCallable | None = None,
        seed: int = 0,
        enabled: bool = True,
    ) -> None:
        self.strategy = strategy or FedAvg()
        self.local = local
        self.clients_per_round = clients_per_round
        self.server_optimizer = server_optimizer
        self.seed = seed
        self.enabled = enabled
        self._run = RunState(self)
        self._takeover: Takeover | None = None
        self._cleanup = ExitStack()

    # ---------------------------------------------------------------- set-up

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Take the module over for a fit; other stages are left to Lightning."""
        if stage != "fit" or not self.enabled:
            return
        data = _federated_data(trainer)
        refuse_outer_flags(trainer)
        if not isinstance(trainer.strategy, SingleDeviceStrategy | DDPStrategy):
            raise ConfigurationError(
                f"A federation runs on one device or under DDP, where every rank holds the whole model, but 'trainer.strategy' "
                f"is {type(trainer.strategy).__name__}. Set it to 'auto' or 'ddp'."
            )
        cohort_size(data.num_clients, self.clients_per_round)
        self._run.num_clients = data.num_clients
        data.serve_rounds(True)
        self._cleanup.callback(data.serve_rounds, False)
        self._cleanup.enter_context(without_advice())
        _prepare_trainer(trainer, self._cleanup)
        if self.local.threads is not None:
            self._cleanup.callback(torch.set_num_threads, torch.get_num_threads())
            torch.set_num_threads(self.local.threads)
        self._takeover = Takeover(
            pl_module, lambda: self._run_round_exactly(trainer, pl_module), lambda: self._server_optimizer(pl_module)
        )
        self._cleanup.callback(_keep_global_step, trainer)  # the last to be registered runs first
        self._cleanup.callback(self._takeover.release)

    def _server_optimizer(self, module: LightningModule) -> torch.optim.Optimizer:
        if self.server_optimizer is None:
            return torch.optim.SGD(module.parameters(), lr=1.0)
        return self.server_optimizer(module.parameters())

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Copy the module for the clients: its networks exist by now, and a checkpoint has been read."""
        if self._takeover is None:
            return
        device = trainer.strategy.root_device
        precision = resolve_precision(self.local.precision, trainer.precision, device)
        with self._takeover.suspended():
            client = client_copy(pl_module)
        fast = bool(trainer.fast_dev_run)  # type: ignore[attr-defined]
        logger, anomalies = bool(trainer.loggers), trainer._detect_anomaly
        self._data = _federated_data(trainer)
        self._server = ModelState(pl_module)
        self._clients = LocalTrainer(client, self.local, precision, device, self.seed, fast, logger, anomalies)
        self._evaluation = None
        if self.strategy.metric is not None:
            limit = trainer.limit_val_batches
            self._evaluation = ServerEvaluation(self.strategy.metric, self._data, precision, device, limit, logger)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Restore the global random state of a resumed run, and make rounds the x-axis."""
        if self._takeover is None:
            return
        self._run.restore_random_state()
        if trainer.is_global_zero:
            for logger in trainer.loggers:
                plot_over_rounds(logger)

    # ---------------------------------------------------------------- the round

    def _run_round_exactly(self, trainer: Trainer, module: LightningModule) -> None:
        """A round outside of the outer Trainer's precision: clients enter their own, sums and figures are exact."""
        default = torch.get_default_dtype()
        torch.set_default_dtype(torch.float32)
        try:
            with torch.autocast(trainer.strategy.root_device.type, enabled=False):
                self._run_round(trainer, module)
        finally:
            torch.set_default_dtype(default)

    def _run_round(self, trainer: Trainer, module: LightningModule) -> None:
        begun = time.perf_counter()
        round_idx = trainer.current_epoch
        cohort = draw_cohort(self._data.num_clients, self.clients_per_round, self.seed, round_idx)
        announce(trainer, "on_round_start", round_idx, cohort)
        shares = balanced_shares(cohort, {k: self._data.num_examples(k) for k in cohort}, trainer.world_size)
        sums = Sums(trainer.strategy.root_device)
        server_counters = self._server.counters()
        counters = no_counters(server_counters)
        updates: list[ClientUpdate] = []
        failure: Exception | None = None
        self.strategy.start_round(round_idx, self._server.vector())
        try:
            for client in shares[trainer.global_rank]:
                update = self._train_client(trainer, round_idx, client, sums)
                assert update.counters is not None
                counters = torch.maximum(counters, update.counters)
                updates.append(update.without_state())
        except Exception as error:  # the other ranks must hear of it, or they would wait for this one
            failure = error
        updates = gather_updates(trainer, updates, failure)
        add_sums(trainer, sums)
        self._step_server(module, self.strategy.aggregate(sums), elementwise_maximum(trainer, counters))
        updates = _with_shares(updates)
        announce(trainer, "on_aggregated", updates)
        self._log(trainer, module, updates, time.perf_counter() - begun)

    def _train_client(self, trainer: Trainer, round_idx: int, client: int, sums: Sums) -> ClientUpdate:
        announce(trainer, "on_client_start", round_idx, client)
        update = self._clients.train(client, self._data, self._server, round_idx)
        if self._evaluation is not None:
            update = replace(update, score=self._evaluation.score(self._clients.module))
        update = replace(update, weight=self.strategy.take_in(update, sums))
        announce(trainer, "on_client_end", update)
        return update

    def _step_server(self, module: LightningModule, aggregate: Tensor, counters: Tensor) -> None:
        self._server.set_gradient_towards(aggregate)
        optimizer: Any = module.optimizers()
        optimizer.step()
        optimizer.zero_grad()
        self._server.set_buffers(aggregate, counters)

    # ---------------------------------------------------------------- logging

    def _log(self, trainer: Trainer, module: LightningModule, updates: list[ClientUpdate], seconds: float) -> None:
        figures = round_metrics(updates) | {
            "round": float(trainer.current_epoch),
            "federation/seconds": seconds,
            "federation/lr_factor": self.local.lr_decay**trainer.current_epoch,
            "federation/threads": float(torch.get_num_threads()),
        }
        module.log_dict(figures, on_step=False, on_epoch=True, batch_size=1)
        columns = client_metrics(updates) | {"round": float(trainer.current_epoch)}
        for logger in trainer.loggers:
            logger.log_metrics(columns, step=trainer.global_step - 1)

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Put ``round`` beside the server's metrics."""
        if self._takeover is not None and not trainer.sanity_checking:
            pl_module.log("round", float(trainer.current_epoch), batch_size=1)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Tell the callbacks that the round is over."""
        if self._takeover is not None:
            announce(trainer, "on_round_end", trainer.current_epoch)

    # ---------------------------------------------------------------- state and end

    def state_dict(self) -> dict[str, Any]:
        """The strategy's state, the global random state and what a resumed run must share; plain types only."""
        return self._run.state_dict() if self.enabled else {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take the state back.

        Raises:
            CheckpointError: if the checkpoint belongs to a federation with another seed, strategy, cohort or number of clients.
        """
        if self.enabled and self._takeover is not None:
            self._run.load_state_dict(state_dict)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Give the module back."""
        self._release()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Give the module back: Lightning calls no ``teardown`` after an error."""
        self._release()

    def _release(self) -> None:
        self._cleanup.close()
        self._takeover = None


def _federated_data(trainer: Trainer) -> FederatedDataModule:
    data = getattr(trainer, "datamodule", None)
    if not isinstance(data, FederatedDataModule):
        came = "no datamodule" if data is None else type(data).__name__
        raise ConfigurationError(
            f"A federation needs data that are spread over clients, but 'fit' got {came}. Wrap your datamodule: "
            "trainer.fit(module, datamodule=FederatedDataModule(your_datamodule, partitioner=IIDPartitioner(10)))."
        )
    return data


def _prepare_trainer(trainer: Trainer, cleanup: ExitStack) -> None:
    """Fit the Trainer's own parts to rounds: log each, never leave half a checkpoint, no scaler on the server's step."""
    cleanup.callback(setattr, trainer, "log_every_n_steps", trainer.log_every_n_steps)  # type: ignore[attr-defined]
    trainer.log_every_n_steps = 1  # type: ignore[attr-defined]
    if type(trainer.strategy.checkpoint_io) is TorchCheckpointIO:
        trainer.strategy.checkpoint_io = AtomicCheckpointIO()
    plugin = trainer.precision_plugin
    if isinstance(plugin, MixedPrecision) and plugin.scaler is not None:
        cleanup.callback(setattr, plugin, "scaler", plugin.scaler)
        plugin.scaler = None
    for position, callback in enumerate(trainer.callbacks):  # type: ignore[attr-defined]
        if type(callback) in (TQDMProgressBar, RichProgressBar):
            bar = FederationProgressBar()
            trainer.callbacks[position] = bar  # type: ignore[attr-defined]
            bar.setup(trainer, trainer.lightning_module, "fit")
            cleanup.callback(trainer.callbacks.__setitem__, position, callback)  # type: ignore[attr-defined]
            cleanup.callback(bar.close)


def _keep_global_step(trainer: Trainer) -> None:
    """Let ``trainer.global_step`` go on counting rounds when the module optimizes automatically again."""
    loop = trainer.fit_loop.epoch_loop
    steps = loop.manual_optimization.optim_step_progress.total.completed
    loop.automatic_optimization.optim_progress.optimizer.step.total.completed = steps


def _with_shares(updates: list[ClientUpdate]) -> list[ClientUpdate]:
    total = sum(update.weight for update in updates)
    return [replace(u, share=u.weight / total if total > 0 else 1 / len(updates)) for u in updates]
