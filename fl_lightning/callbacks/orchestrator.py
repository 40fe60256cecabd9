"""The orchestrator: one callback that makes a federation of an ordinary Lightning run."""

from __future__ import annotations

import time
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.cli import OptimizerCallable
from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy

from fl_lightning.callbacks.progress import FederationProgressBar
from fl_lightning.checkpoint_file import require_trusted
from fl_lightning.clients.client_copy import client_copy
from fl_lightning.clients.inner_trainer import without_advice
from fl_lightning.clients.pool import ClientPool
from fl_lightning.collectives import leave_at_exit
from fl_lightning.compat.lightning import continue_global_step
from fl_lightning.data.federated import FederatedDataModule
from fl_lightning.errors import ConfigurationError, require
from fl_lightning.functional.recycling import give_back
from fl_lightning.messages import ClientJob
from fl_lightning.plugins.checkpoint_io import lock_checkpoints, use_safe_checkpoints
from fl_lightning.reporting.rounds import movement
from fl_lightning.reporting.wandb import plot_over_rounds
from fl_lightning.routes.base import Route
from fl_lightning.routes.server import ServerRoute
from fl_lightning.server.announcements import announce, tell_failures
from fl_lightning.server.assembly import Assembly
from fl_lightning.server.attack_schedule import AttackSchedule
from fl_lightning.server.checks.checkpoint_trial import try_checkpoint
from fl_lightning.server.checks.compatibility import (
    check_cohort,
    check_faults,
    check_route,
    check_server_optimizer,
    check_strategy,
    check_uplink,
    federated_data,
)
from fl_lightning.server.checks.metric_names import names_of, refuse_unknown_metrics
from fl_lightning.server.checks.privacy import check_privacy
from fl_lightning.server.client_files import sweep_client_files
from fl_lightning.server.interruption import tell_how_to_resume
from fl_lightning.server.outer_trainer import adapt_losses, outside_precision, prepare_trainer, set_threads
from fl_lightning.server.resume.start import Start, refuse_federations
from fl_lightning.server.round import FederationRound
from fl_lightning.server.round_log import log_round, write_matrices
from fl_lightning.server.round_result import RoundResult
from fl_lightning.server.run_state import RunState
from fl_lightning.server.takeover import Takeover
from fl_lightning.settings.attackers import Attackers
from fl_lightning.settings.availability import Availability
from fl_lightning.settings.client_evaluation import ClientEvaluation
from fl_lightning.settings.faults import Faults
from fl_lightning.settings.local_training import LocalTraining, refuse_outer_flags
from fl_lightning.settings.secure_aggregation import SecureAggregation
from fl_lightning.settings.server_evaluation import ServerEvaluation
from fl_lightning.strategies.base import Strategy
from fl_lightning.strategies.fedavg import FedAvg
from fl_lightning.transforms.base import Transform


class FederatedOrchestrator(Callback):
    """Trains any LightningModule as a federation: one epoch of the Trainer is one communication round.

    Give the Trainer this callback and a :class:`~fl_lightning.FederatedDataModule`. ``max_epochs`` then counts rounds,
    and so do checkpoints, resume, early stopping and loggers. Validation evaluates the aggregated model once per round.

    Args:
        strategy: what the server does with the updates; :class:`~fl_lightning.FedAvg` by default.
        local: how a client trains; one local epoch by default.
        route: who sends a model to whom; from the server to the clients and back by default.
        attackers: clients that misbehave; none by default.
        transforms: of what clients send to the server, in their order; none by default.
        secure_aggregation: hides single updates from the server, where the strategy needs their sums only; none by default.
        faults: what happens where a client fails; the run ends by default.
        availability: simulated clients that drop out, are slow, or come and go; none by default.
        client_evaluation: what is measured on the clients' own test parts; nothing by default.
        server_evaluation: what measuring clients' models on the server's set may cost; everything by default.
        clients_per_round: a float in (0, 1] is a fraction of the clients, an int their number.
        server_optimizer: given the parameters, steps on the pseudo-gradient ``w_t - average`` once per round.
            By default the strategy's: SGD(lr=1), plain averaging. With momentum it is FedAvgM, Adam is FedAdam.
        memory_limit: GiB that each rank may hold of the models of a round, for a strategy that needs them all at once such as
            FedMedian, and as much of what clients keep over rounds, such as SCAFFOLD's control variates. Beyond it they are
            files in ``trainer.default_root_dir``, the former until the round's end, the latter in ``client_state`` as long as
            a checkpoint refers to them.
        trusted_classes: dotted paths of classes that checkpoints may hold beside tensors and plain values, such as those of
            your module's hyperparameters. Making one of their objects must be harmless whatever its arguments are.
        client_columns: with up to so many clients every client's figures are columns of the log; with more their quantiles
            over the clients of a round are. >= 0.
        seed: of cohorts, shuffling and the clients' random numbers.
        enabled: false trains the module centrally on the union of the clients' examples, as if there were no callback.
        resume_changed: let a resumed run have other settings than its checkpoint, which is refused otherwise.

    Raises:
        ConfigurationError: at the start of ``fit``, for a Trainer, module or datamodule that cannot be federated.
    """

    def __init__(
        self,
        strategy: Strategy | None = None,
        local: LocalTraining = LocalTraining(),  # noqa: B008 (frozen)
        route: Route | None = None,
        attackers: Attackers = Attackers(),  # noqa: B008 (frozen)
        transforms: list[Transform] | None = None,
        secure_aggregation: SecureAggregation | None = None,
        faults: Faults = Faults(),  # noqa: B008 (frozen)
        availability: Availability = Availability(),  # noqa: B008 (frozen)
        client_evaluation: ClientEvaluation = ClientEvaluation(),  # noqa: B008 (frozen)
        server_evaluation: ServerEvaluation = ServerEvaluation(),  # noqa: B008 (frozen)
        clients_per_round: int | float = 1.0,
        server_optimizer: OptimizerCallable | None = None,
        memory_limit: float = 4.0,
        trusted_classes: list[str] | None = None,
        client_columns: int = 20,
        seed: int = 0,
        enabled: bool = True,
        resume_changed: bool = False,
    ) -> None:
        self.strategy = strategy or FedAvg()
        self.route = route or ServerRoute()
        self.local = local
        self.attackers = attackers
        self.transforms = transforms or []
        self.secure_aggregation = secure_aggregation
        self.faults = faults
        self.availability = availability
        self.client_evaluation = client_evaluation
        self.server_evaluation = server_evaluation
        self.clients_per_round = clients_per_round
        self.server_optimizer = server_optimizer
        require(memory_limit >= 0, "federation.memory_limit", "0 or above, in GiB", memory_limit)
        self.memory_limit = memory_limit
        self.trusted_classes = require_trusted(trusted_classes)
        require(client_columns >= 0, "federation.client_columns", "0 or above", client_columns)
        self.client_columns = client_columns
        self.seed = seed
        self.enabled, self.resume_changed = enabled, resume_changed
        self._run = RunState(self)
        self._takeover: Takeover | None = None
        self._cleanup = ExitStack()

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Take the module over for a fit; in other stages checkpoints are read safely, and the rest is left to Lightning."""
        self._trusted = use_safe_checkpoints(trainer, self.trusted_classes)
        if stage == "fit":
            adapt_losses(trainer, self._cleanup)
        if stage != "fit" or not self.enabled:
            return
        data = federated_data(trainer)
        refuse_outer_flags(trainer)
        if not isinstance(trainer.strategy, SingleDeviceStrategy | DDPStrategy):
            raise ConfigurationError(
                f"A federation runs on one device or under DDP, where every rank holds the whole model, but 'trainer.strategy' "
                f"is {type(trainer.strategy).__name__}. Set it to 'auto' or 'ddp'."
            )
        self._check(trainer, data)
        self._run.begin(data.indices)
        self._run.memory.bound(Path(trainer.default_root_dir) / "client_state", self.memory_limit * 2**30)
        data.serve_rounds(True)
        self._cleanup.callback(data.serve_rounds, False)
        self._attack_schedule = AttackSchedule(self.attackers, data, self.seed, trainer)
        self._cleanup.callback(self._attack_schedule.end)
        self._cleanup.enter_context(without_advice())
        prepare_trainer(trainer, self._cleanup, FederationProgressBar)
        leave_at_exit(trainer.world_size)
        set_threads(self.local.threads, trainer, self._cleanup)
        build = self.server_optimizer or self.strategy.server_optimizer
        start = Start(self, self._run, trainer, data, build, pl_module)
        run_round = partial(self._run_round, trainer, pl_module)
        self._takeover = Takeover(pl_module, run_round, start.server_optimizer, start.load)
        self._cleanup.callback(continue_global_step, trainer)  # the last to be registered runs first
        self._cleanup.callback(self._takeover.release)
        self._cleanup.callback(give_back)

    def _check(self, trainer: Trainer, data: FederatedDataModule) -> None:
        check_cohort(self.route, self.local, data.num_clients, self.clients_per_round)
        check_faults(self.faults, self.availability, self.route, self.local, data.num_clients, self.clients_per_round)
        check_uplink(self.attackers, self.transforms, self.route)
        check_privacy(self, data)
        self.client_evaluation.check(data)
        check_strategy(self.strategy, self.local, data, trainer)
        check_route(self.route, self.strategy, data, trainer)
        check_server_optimizer(self.strategy, self.route, self.server_optimizer)

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Lock the folders of checkpoints; copy the module for the clients: its networks exist, a checkpoint has been read."""
        lock_checkpoints(trainer, self._cleanup)
        if self._takeover is None:
            return
        with self._takeover.suspended():
            client = client_copy(pl_module)
        assembly = Assembly(self, self._run, trainer, pl_module, client)
        self._federation = assembly.federation(self._build_pool(assembly))
        self._sampler, self._evaluator = assembly.sampler(), assembly.evaluator(self._federation)
        self._run.pool = self._federation.pool

    def _build_pool(self, assembly: Assembly) -> ClientPool:
        """Return the clients: simulated, on the ranks of the Trainer."""
        return assembly.local_pool()

    def on_sanity_check_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Look for the metrics that settings name, before a round is spent."""
        if self._takeover is not None:
            names = names_of(self.strategy, self.route, self.client_evaluation)
            refuse_unknown_metrics(trainer, pl_module, names)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Try a checkpoint, restore the global random state of a resumed run, and make rounds the x-axis."""
        if self._trusted is not None:
            try_checkpoint(trainer, self._trusted)
        if self._takeover is None:
            return
        self._run.restore_random_state()
        if trainer.is_global_zero:
            for logger in trainer.loggers:
                self._cleanup.enter_context(plot_over_rounds(logger))

    # ---------------------------------------------------------------- the round

    def _run_round(self, trainer: Trainer, module: LightningModule) -> None:
        with outside_precision(trainer):
            jobs = self._train_round(trainer, module)
            scores = self._evaluator.end_round(trainer.current_epoch, jobs)
        if scores:
            module.log_dict({f"federation/{name}": x for name, x in scores.items()}, on_step=False, on_epoch=True, batch_size=1)

    def _train_round(self, trainer: Trainer, module: LightningModule) -> list[ClientJob]:
        begun = time.perf_counter()
        round_idx, run, federation = trainer.current_epoch, self._run, self._federation
        if round_idx == 0:
            run.reset()
            self.strategy.reset()
            self.route.reset()
        federation.refresh_frozen()
        self._evaluator.begin_round(round_idx)
        sweep_client_files(trainer, run.memory)
        keepers = self._attack_schedule.begin_round(round_idx)
        own_models_of = frozenset(range(federation.data.num_clients)) if self.route.keeps_models else keepers
        plan = self._sampler.round(round_idx)
        announce(trainer, "on_round_start", round_idx, plan.clients)
        federation_round = FederationRound(federation, round_idx, plan, run.last_scores, own_models_of)
        with closing(federation_round):
            self.route.run(federation_round)
            result = federation_round.result()
        if self.server_evaluation.every_n_rounds > 1:
            run.last_scores |= federation_round.scores(result.updates)
        run.engine, run.finished_round = federation.engine, round_idx
        step = self._step_server(module, result)
        waited = federation.pool.settle(round_idx, [update.client for update in result.updates], run.saved_round)
        missed = tell_failures(trainer, round_idx, plan.lost, result.failures)
        announce(trainer, "on_aggregated", result.updates)
        own = self.strategy.figures() | federation_round.figures() | waited
        own |= {"stragglers": float(len(plan.epochs))} if self.local.partial_work.share else {}
        own |= self._attack_schedule.figures(federation, round_idx, result)
        own |= {"failures": float(missed)} if self.faults.skips or self.availability.drop_out else {}
        own |= movement(result.updates, step, self.strategy.averages) | {"lr_factor": self.local.lr_decay**round_idx}
        own |= run.totals.add(result.updates, time.perf_counter() - begun)
        log_round(trainer, result.updates, own, federation.data.num_clients <= self.client_columns)
        write_matrices(trainer, self.route.matrices(), federation.data)
        return federation_round.jobs

    def _step_server(self, module: LightningModule, result: RoundResult) -> float:
        server = self._federation.server
        step = server.set_gradient_towards(result.aggregate)
        optimizer: Any = module.optimizers()
        optimizer.step()
        optimizer.zero_grad()
        server.set_buffers(result.aggregate, result.counters)
        return step

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Put ``round`` beside the server's metrics."""
        if self._takeover is not None and not trainer.sanity_checking:
            pl_module.log("round", float(trainer.current_epoch), batch_size=1)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Tell the callbacks that the round is over."""
        if self._takeover is not None:
            announce(trainer, "on_round_end", trainer.current_epoch)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Compare the final model with models of the clients' own, where that was asked for; say if noise was simulated."""
        if self._takeover is None:
            return
        if self.client_evaluation.active:
            with outside_precision(trainer):
                self._evaluator.conclude(trainer.current_epoch)
        self._run.account.conclude()

    # ---------------------------------------------------------------- state and end

    @property
    def settings(self) -> dict[str, Any]:
        """Everything that can change the result of the fit that runs, as plain values."""
        return {} if self._run.fingerprint is None or not self.enabled else self._run.fingerprint.settings

    def state_dict(self) -> dict[str, Any]:
        """The strategy's state, the global random state and what a resumed run must share; plain types only."""
        return self._run.state_dict() if self.enabled else {}

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Note which round the checkpoint holds: none before it will be repeated."""
        self._run.saved_round = self._run.finished_round

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Refuse a federation's checkpoint in a fit without one."""
        if not self.enabled and trainer.training:
            refuse_federations(checkpoint, self.state_key)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take the state back; its settings have been compared by then."""
        if self.enabled and self._takeover is not None:
            self._run.load_state_dict(state_dict)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Give the module back."""
        self._release()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Give the module back: Lightning calls no ``teardown`` after an error. Say how to resume after Ctrl+C."""
        self._release()
        tell_how_to_resume(trainer, exception)

    def _release(self) -> None:
        self._cleanup.close()
        self._takeover = None
