"""Run an ordinary Lightning training as a federation, with one callback."""

from __future__ import annotations

from contextlib import ExitStack
from inspect import signature
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.cli import OptimizerCallable

from fl_lightning.callbacks.checkpoint_trial import try_checkpoint
from fl_lightning.callbacks.exchange import adapt_losses, show_rounds
from fl_lightning.callbacks.metric_names import monitors_of, names_of, refuse_unknown_metrics
from fl_lightning.callbacks.stopping import requeue_whole_rounds, tell_how_to_resume
from fl_lightning.core.capabilities import ResumeRule
from fl_lightning.core.federation import parts_of
from fl_lightning.core.option import Option, OptionSettings, options_in
from fl_lightning.data.federated import FederatedDataModule
from fl_lightning.functional.model_parts import give_own_memory
from fl_lightning.functional.showing import settings_table, short_repr
from fl_lightning.options.asynchronous import Asynchronous
from fl_lightning.options.attackers import Attackers
from fl_lightning.options.availability import Availability
from fl_lightning.options.client_evaluation import ClientEvaluation
from fl_lightning.options.personal import PersonalPart, PersonalParts
from fl_lightning.options.secure_aggregation import SecureAggregation
from fl_lightning.reporting.wandb import FederationWandbLogger
from fl_lightning.routes.base import Route
from fl_lightning.routes.server import ServerRoute
from fl_lightning.server.checks.compatibility import warn_unprotected
from fl_lightning.server.checks.incomplete import refuse_incomplete, warn_incomplete
from fl_lightning.server.checks.tools import refuse_other_package, refuse_second
from fl_lightning.server.fit import FederatedFit, check_fit
from fl_lightning.server.input_moments import measure_inputs, unmeasured
from fl_lightning.server.resume import refuse_federations
from fl_lightning.server.round import announce
from fl_lightning.server.run_state import RunState
from fl_lightning.settings.local_training import LocalTraining
from fl_lightning.settings.server import Checkpoints, Faults, RemoteClients, ServerEvaluation, Storage
from fl_lightning.strategies.base import Strategy
from fl_lightning.strategies.fedavg import FedAvg
from fl_lightning.transforms.base import Transform
from fl_lightning.utilities.argument_types import ChecksTypes
from fl_lightning.utilities.checkpoints import lock_checkpoints, make_plain, use_safe_checkpoints


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
        self._fit: FederatedFit | None = None
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
            if stage == "test":
                self._follow(trainer)
            return
        give_own_memory(pl_module)
        adapt_losses(trainer, self._cleanup)
        if not self.enabled:
            warn_unprotected(self)
            return
        refuse_second(trainer, FederatedOrchestrator)
        check_fit(self, trainer, pl_module, self._cleanup)
        self._fit = FederatedFit(self, self._run, trainer, pl_module, self._cleanup)
        show_rounds(trainer, self._cleanup)
        requeue_whole_rounds(trainer, self._cleanup)

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Lock the checkpoint folders, measure the clients' inputs, and prepare the rounds."""
        lock_checkpoints(trainer, self._cleanup)
        inputs = unmeasured(pl_module, parts_of(self) if self.enabled else ())
        data = getattr(trainer, "datamodule", None)
        sealed = self.enabled and any(option.seals for option in self.active_options)
        if inputs is not None and not sealed and isinstance(data, FederatedDataModule):
            measure_inputs(trainer, data, inputs)
        if self._fit is not None:
            self._fit.begin(inputs if sealed else None)

    def on_sanity_check_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Check that the module logs the metrics that settings and callbacks name, before the first round."""
        names = names_of(self.strategy, self.route, self.active_options, pl_module) if self.enabled else []
        refuse_unknown_metrics(trainer, pl_module, names + monitors_of(trainer))

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Try a checkpoint, restore the random state and the weights of a resumed run, and use rounds as the x-axis."""
        if self._trusted is not None:
            try_checkpoint(trainer, self._trusted)
        if self._fit is not None:
            self._fit.restore()
            self._follow(trainer)

    def _follow(self, trainer: Trainer) -> None:
        """Let W&B show rounds, or the results of a test, on the first rank."""
        for logger in trainer.loggers:
            if trainer.is_global_zero and isinstance(logger, FederationWandbLogger):
                self._cleanup.enter_context(logger.following(trainer))

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Log ``round`` with the server's metrics."""
        if self._fit is not None and not trainer.sanity_checking:
            pl_module.log("round", float(trainer.current_epoch), batch_size=1)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Tell the callbacks that the round is over."""
        if self._fit is not None:
            announce(trainer, "on_round_end", trainer.current_epoch)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Let options conclude, and warn of a fit that had nothing to do."""
        if self._fit is not None:
            self._fit.rounds.conclude()

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
        if self._fit is not None:
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
        self._fit = None
