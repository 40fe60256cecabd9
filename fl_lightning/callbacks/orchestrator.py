"""Run an ordinary Lightning training as a federation, with one callback."""

from __future__ import annotations

import math
from contextlib import ExitStack
from functools import partial
from inspect import signature
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.cli import OptimizerCallable

from fl_lightning.callbacks.client_table import ClientTable
from fl_lightning.callbacks.progress import FederationProgressBar
from fl_lightning.clients.module_copy import client_copy
from fl_lightning.clients.pool import ClientPool
from fl_lightning.clients.trainer import without_advice
from fl_lightning.compat.lightning import continue_global_step
from fl_lightning.compat.torch import parameters_of
from fl_lightning.core.federation import parts_of
from fl_lightning.core.option import Option, OptionSettings, by_name, options_in, refuse_rivals
from fl_lightning.core.resume_rule import ResumeRule
from fl_lightning.data.federated import FederatedDataModule
from fl_lightning.functional.model_parts import give_own_memory
from fl_lightning.functional.recycling import release_unused_memory
from fl_lightning.functional.showing import settings_table, short_repr
from fl_lightning.options.asynchronous import Asynchronous
from fl_lightning.options.attackers import Attackers
from fl_lightning.options.availability import Availability
from fl_lightning.options.client_evaluation import ClientEvaluation
from fl_lightning.options.personal import PersonalPart, PersonalParts
from fl_lightning.options.secure_aggregation import SecureAggregation
from fl_lightning.plugins.checkpoint_io import lock_checkpoints, make_plain, use_safe_checkpoints
from fl_lightning.reporting.run_facts import choices_of
from fl_lightning.reporting.wandb import plot_over_rounds, tag_run
from fl_lightning.routes.base import Route
from fl_lightning.routes.server import ServerRoute
from fl_lightning.server.assembly import Assembly, context_of
from fl_lightning.server.checks.checkpoint_trial import try_checkpoint
from fl_lightning.server.checks.compatibility import federated_data, refuse_late_parts
from fl_lightning.server.checks.federation import check_federation, warn_unprotected
from fl_lightning.server.checks.incomplete import refuse_incomplete, warn_incomplete, without_validation
from fl_lightning.server.checks.metric_names import monitors_of, names_of, refuse_unknown_metrics
from fl_lightning.server.checks.ranks import require_same_partition
from fl_lightning.server.checks.tools import (
    refuse_client_callbacks,
    refuse_other_package,
    refuse_second,
    refuse_tools,
    require_whole_models,
    warn_of_resting_parts,
)
from fl_lightning.server.input_moments import add_up_inputs, measure_inputs, refuse_reading, unmeasured
from fl_lightning.server.interruption import tell_how_to_resume
from fl_lightning.server.outer_trainer import adapt_losses, prepare_trainer, set_threads
from fl_lightning.server.requeue import requeue_whole_rounds
from fl_lightning.server.resume import Start, refuse_federations
from fl_lightning.server.round import announce
from fl_lightning.server.rounds import Rounds
from fl_lightning.server.run_state import RunState
from fl_lightning.server.takeover import Takeover
from fl_lightning.server.termination import Termination
from fl_lightning.server.tuning import tune_centralized
from fl_lightning.settings.faults import Faults
from fl_lightning.settings.local_training import LocalTraining, refuse_outer_flags
from fl_lightning.settings.pool import RemoteClients
from fl_lightning.settings.server_evaluation import ServerEvaluation
from fl_lightning.settings.storage import Checkpoints, Storage
from fl_lightning.strategies.base import JointStrategy, Strategy
from fl_lightning.strategies.fedavg import FedAvg
from fl_lightning.transforms.base import Transform
from fl_lightning.utilities.argument_types import ChecksTypes
from fl_lightning.utilities.collectives import leave_at_exit


class FederatedOrchestrator(ChecksTypes, Callback):
    """Train any LightningModule as a federation, in which one epoch of the Trainer is one communication round.

    Pass this callback and a :class:`~fl_lightning.FederatedDataModule` to the Trainer. ``max_epochs`` then counts rounds, as do
    checkpoints, resuming, early stopping and loggers. Validation evaluates the aggregated model once per round.

    Args:
        strategy: the strategy by which the server aggregates updates; :class:`~fl_lightning.FedAvg` by default.
        local: the settings of the clients' local training; one local epoch by default.
        route: the route of models between server and clients; by default from the server to the clients and back.
        attackers: clients that misbehave; none by default.
        transforms: the transforms of the updates that clients send to the server, in order; none by default.
        secure_aggregation: the protocol that hides single updates, for strategies that need only sums; none by default.
        faults: how to handle clients that fail; by default the run ends.
        availability: simulated clients that drop out, are slow, or come and go, and the simulated time that their training
            takes; none by default.
        client_evaluation: the evaluation on the clients' own test parts; none by default.
        server_evaluation: limits on the evaluation of clients' models on the server's set; none by default.
        clients_per_round: the clients per round: a float in (0, 1] is a fraction of the clients, an int their number.
        server_optimizer: a function from the parameters to the optimizer that steps on the pseudo-gradient ``w_t - average``
            once per round; by default the strategy's, SGD(lr=1), which is plain averaging.
        storage: limits of memory and of files; by default 4 GiB of memory.
        checkpoints: what checkpoints may contain besides tensors and plain values, and whether a resumed run may have changed
            settings; by default neither.
        pool: where the clients are: by default simulated in this process; :class:`~fl_lightning.FlowerPool` trains them at
            sites of their own.
        personal: the parts of the module that each client keeps for itself, by class or name: neither sent nor averaged, and
            evaluated only at the clients; see :class:`~fl_lightning.PersonalPart`. None by default.
        asynchronous: clients that train at their own pace, with a new model after a number of updates; none by default.
        options: options of your own, in order, after those above; see :class:`~fl_lightning.Option`. None by default.
        seed: the seed of cohorts, shuffling and the clients' random numbers.
        enabled: whether to federate; false trains the module centrally on the union of the clients' examples.

    Raises:
        ConfigurationError: if a value is outside its range; at the start of ``fit``, if the Trainer, module or datamodule
            cannot be federated.

    Example:
        >>> import lightning as L
        >>> from fl_lightning import AdaFed, FederatedOrchestrator, LocalTraining
        >>> local = LocalTraining(max_epochs=2, gradient_clip_val=1.0)
        >>> federation = FederatedOrchestrator(AdaFed(metric="val_accuracy"), local, clients_per_round=0.5)
        >>> trainer = L.Trainer(max_epochs=20, callbacks=[federation], logger=False)  # 20 rounds
        >>> # trainer.fit(your_module, FederatedDataModule(your_datamodule, IIDPartitioner(num_clients=10)))
    """

    renamed = {
        "memory_limit": "'federation.storage.memory'",
        "disk_limit": "'federation.storage.disk'",
        "trusted_classes": "'federation.checkpoints.trusted_classes'",
        "resume_changed": "'federation.checkpoints.resume_changed'",
        "personal_start": "'start' of each entry of 'federation.personal'",
        "clock": "'federation.availability.clock'",
        "client_columns": "always 20; 'client_rounds.csv' has the figures of every client, whatever their number",
    }
    on_resume = ResumeRule(
        stays="strategy route transforms personal clients_per_round asynchronous options seed",
        free="faults pool storage checkpoints enabled",
    )

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
        storage: Storage = Storage(),  # noqa: B008 (frozen)
        checkpoints: Checkpoints = Checkpoints(),  # noqa: B008 (frozen)
        pool: RemoteClients | None = None,
        personal: list[PersonalPart] | None = None,
        asynchronous: Asynchronous | None = None,
        options: list[Option] | None = None,
        seed: int = 0,
        enabled: bool = True,
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
        self.storage, self.checkpoints = storage, checkpoints
        self.pool = pool
        self.personal = personal or []
        self.asynchronous = asynchronous
        self.options = options or []
        self.seed = seed
        self.enabled = enabled
        self._run = RunState(self)
        self._takeover: Takeover | None = None
        self._cleanup = ExitStack()

    def __repr__(self) -> str:
        return short_repr(self)

    def _repr_html_(self) -> str:
        return settings_table(self)

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Take over the module for a fit; in other stages, only make the reading of checkpoints safe."""
        refuse_other_package(trainer, pl_module)
        self._trusted = use_safe_checkpoints(trainer, self.checkpoints.trusted_classes)
        if stage != "fit":
            warn_incomplete(self, trainer)
            return
        give_own_memory(pl_module)
        adapt_losses(trainer, self._cleanup)
        if not self.enabled:
            warn_unprotected(self)
            return
        refuse_second(trainer, FederatedOrchestrator)
        refuse_tools(trainer, remote=self.pool is not None)
        refuse_client_callbacks(self.local)
        data = federated_data(trainer)
        refuse_outer_flags(trainer)
        require_whole_models(trainer)
        self._register_clients(trainer, pl_module, data)
        require_same_partition(trainer, data)
        check_federation(self, trainer, data)
        tune_centralized(trainer, pl_module, data, self.local, self.checkpoints.trusted_classes, self._cleanup)
        without_validation(self, trainer, self._cleanup)
        self._begin_run(trainer, data)
        self._cleanup.callback(data.serve_rounds, False)
        self._open_options(trainer, data)
        self._cleanup.enter_context(without_advice())
        prepare_trainer(trainer, self._cleanup, FederationProgressBar)
        requeue_whole_rounds(trainer, self._cleanup)
        leave_at_exit(trainer.world_size)
        set_threads(self.local.threads, trainer, self._cleanup)
        build = self.server_optimizer or self.strategy.server_optimizer
        start = Start(self, self._run, trainer, data, build, pl_module)
        check = partial(start.untouched.check, trainer)
        self._takeover = Takeover(pl_module, lambda: self._rounds.run(pl_module), start.server_optimizer, start.load, check)
        self._start = start
        self._cleanup.callback(delattr, self, "_start")
        self._cleanup.callback(continue_global_step, trainer)  # callbacks run in reverse order
        self._cleanup.callback(self._takeover.release)
        self._cleanup.callback(release_unused_memory)

    def _register_clients(self, trainer: Trainer, module: LightningModule, data: FederatedDataModule) -> None:
        unmeasured(module, parts_of(self))  # refuses, before a site is asked
        if self.pool is not None:
            refuse_reading(trainer, parts_of(self))
            self._cleanup.callback(self.pool.close)
            data.register_clients(self.pool.open(trainer, self))

    def _open_options(self, trainer: Trainer, data: FederatedDataModule) -> None:
        options = self.active_options
        context = context_of(self, self._run, trainer, data)
        hooks = {name: option.at_server(context) for name, option in by_name(options).items()}
        for hook in hooks.values():
            self._cleanup.callback(hook.close)
        refuse_rivals(hooks, isinstance(self.strategy, JointStrategy))
        self._run.use(hooks)

    def _begin_run(self, trainer: Trainer, data: FederatedDataModule) -> None:
        self._run.begin(data, continues=trainer.current_epoch > 0)
        disk = math.inf if self.storage.disk is None else self.storage.disk * 2**30
        self._run.memory.bound(Path(trainer.default_root_dir) / "client_state", self.storage.memory * 2**30, disk)

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Lock the checkpoint folders, and copy the module for the clients, with its networks built and a checkpoint loaded."""
        lock_checkpoints(trainer, self._cleanup)
        inputs = unmeasured(pl_module, parts_of(self) if self.enabled else ())
        data = getattr(trainer, "datamodule", None)
        sealed = self._takeover is not None and any(option.seals for option in self.active_options)
        if inputs is not None and not sealed and isinstance(data, FederatedDataModule):
            measure_inputs(trainer, data, inputs, self.seed)
        if self._takeover is None:
            return
        federated_data(trainer).serve_rounds(True)  # from now on: 'setup' of the module may read a batch of the clients'
        self._parameters = set(parameters_of(pl_module))
        with self._takeover.suspended():
            client = client_copy(pl_module)
            self._start.give_attributes(client)
        self._run.hold_weights(pl_module)
        warn_of_resting_parts(pl_module)
        for hook in self._run.hooks.values():
            hook.restored()
        assembly = Assembly(self, self._run, trainer, pl_module, client)
        federation = assembly.federation(self._build_pool(assembly))
        if self.clients_elsewhere:
            assembly.rest()
        self._run.pool = federation.pool
        self._cleanup.callback(federation.pool.close)
        for hook in self._run.hooks.values():
            hook.open(federation)
        if inputs is not None and sealed:
            add_up_inputs(federation, self._run.hooks.values(), inputs)
        self._rounds = Rounds(
            settings=self,
            run=self._run,
            federation=federation,
            sampler=assembly.sampler(),
            termination=Termination(trainer, self._cleanup),
            untouched=self._start.untouched,
        )

    def _build_pool(self, assembly: Assembly) -> ClientPool:
        """Return the pool of clients."""
        return assembly.pool()

    def on_sanity_check_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Check that the module logs the metrics that settings and callbacks name, before the first round."""
        federated = self._takeover is not None
        names = names_of(self.strategy, self.route, self.active_options, pl_module) if federated else []
        refuse_unknown_metrics(trainer, pl_module, names + monitors_of(trainer))

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Try a checkpoint, restore the random state and the weights of a resumed run, and use rounds as the x-axis."""
        if self._trusted is not None:
            try_checkpoint(trainer, self._trusted)
        if trainer.is_global_zero:
            choices = choices_of(self.strategy if self.enabled else None, getattr(trainer, "datamodule", None))
            for logger in trainer.loggers:
                tag_run(logger, choices)
        if self._takeover is None:
            return
        self._run.continue_from(pl_module)
        refuse_late_parts(pl_module, self._parameters)
        if trainer.is_global_zero:
            callbacks: list[Any] = trainer.callbacks  # type: ignore[attr-defined]
            charts = any(isinstance(callback, ClientTable) and callback.enabled for callback in callbacks)
            for logger in trainer.loggers:
                self._cleanup.enter_context(plot_over_rounds(logger, lambda: trainer.current_epoch, charts))

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Log ``round`` with the server's metrics."""
        if self._takeover is not None and not trainer.sanity_checking:
            pl_module.log("round", float(trainer.current_epoch), batch_size=1)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Tell the callbacks that the round is over."""
        if self._takeover is not None:
            announce(trainer, "on_round_end", trainer.current_epoch)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Let options conclude, and warn of a fit that had nothing to do."""
        if self._takeover is None:
            return
        self._rounds.conclude()

    @property
    def active_options(self) -> tuple[OptionSettings, ...]:
        """Return the options in use, in the order of their hooks, which is that of the arguments."""
        given = {name: getattr(self, name) for name in signature(FederatedOrchestrator).parameters}
        given["personal"] = PersonalParts(tuple(self.personal))
        return tuple(options_in(given.values()))

    @property
    def clients_elsewhere(self) -> bool:
        """Return whether the clients hold their own data outside this process, so that no training set is divided here."""
        return self.enabled and self.pool is not None

    # ---------------------------------------------------------------- state and end

    @property
    def settings(self) -> dict[str, Any]:
        """Return every setting that can change the result of the current fit, as plain values."""
        return self._run.settings if self.enabled else {}

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Add the strategy's state, the global random state and the settings to compare on resume, as plain types.

        Not in ``state_dict``, for which a Trainer would refuse a second orchestrator in words of its own.
        """
        if self.enabled and "callbacks" in checkpoint:
            checkpoint["callbacks"][self.state_key] = self._run.state_dict()
        make_plain(checkpoint)
        self._run.saved_round = self._run.finished_round

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Refuse a federation's checkpoint in a fit without one, and an incomplete model outside of a fit."""
        if not self.enabled and trainer.training:
            refuse_federations(checkpoint, self.state_key)
        if not trainer.training:
            refuse_incomplete(checkpoint, self.state_key)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the state, whose settings have already been compared."""
        if self.enabled and self._takeover is not None:
            self._run.load_state_dict(state_dict)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Restore the module."""
        self._release()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Restore the module, since Lightning skips ``teardown`` after an error, and explain how to resume after Ctrl+C."""
        self._release()
        tell_how_to_resume(trainer, exception)

    def _release(self) -> None:
        self._cleanup.close()
        self._takeover = None
