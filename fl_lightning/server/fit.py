"""One fit of a federation: what is built between the start of its setup and its first round, in order."""

from __future__ import annotations

import gc
import math
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.utilities.rank_zero import rank_zero_info, rank_zero_warn
from torch.optim import Optimizer

from fl_lightning.clients.client import Client
from fl_lightning.clients.local_pool import LocalPool
from fl_lightning.clients.module_copy import client_copy
from fl_lightning.clients.module_state import PythonState
from fl_lightning.clients.trainer import moves_batches, without_advice
from fl_lightning.compat.lightning import continue_global_step, detects_anomalies
from fl_lightning.compat.torch import parameters_of
from fl_lightning.core.capabilities import Capability, removals_of, removed_by
from fl_lightning.core.federation import ClientPool, Federation, ServerContext, parts_of
from fl_lightning.core.option import by_name, refuse_rivals
from fl_lightning.core.plan import ClientSampler
from fl_lightning.data.federated import FederatedDataModule
from fl_lightning.data.input_statistics import check_batch_norm
from fl_lightning.functional.keyed_noise import SecretKey
from fl_lightning.functional.model_state import ModelState
from fl_lightning.functional.recycling import release_unused_memory
from fl_lightning.models.standardized import Standardized
from fl_lightning.server.checks import compatibility
from fl_lightning.server.checks.compatibility import federated_data, round_size
from fl_lightning.server.checks.incomplete import without_validation
from fl_lightning.server.checks.ranks import require_same_partition
from fl_lightning.server.checks.tools import refuse_client_callbacks, refuse_tools, warn_of_resting_parts
from fl_lightning.server.evaluators import Evaluators
from fl_lightning.server.input_moments import add_up_inputs, refuse_reading, unmeasured
from fl_lightning.server.resume import fingerprint, in_words, refuse_changes, renew
from fl_lightning.server.round import announce
from fl_lightning.server.rounds import Rounds
from fl_lightning.server.run_state import RunState
from fl_lightning.server.takeover import Takeover, Termination, Untouched, prepare_trainer, set_threads
from fl_lightning.settings.local_training import FederationSettings, Place, resolve_precision
from fl_lightning.strategies.base import JointStrategy
from fl_lightning.utilities.collectives import Collectives, leave_at_exit


class FederatedFit:
    """Take over a module and a Trainer whose settings have been checked; ``cleanup`` undoes all of it, in reverse order.

    Args:
        settings: the federation's settings.
        run: the state of the run so far.
        trainer: the user's Trainer.
        module: the user's module, whose methods are still its own.
        cleanup: the stack on which to register the functions that undo all changes.

    Attributes:
        rounds: what runs the rounds, from :meth:`begin` on.
    """

    rounds: Rounds

    def __init__(
        self, settings: FederationSettings, run: RunState, trainer: Trainer, module: LightningModule, cleanup: ExitStack
    ) -> None:
        self._settings, self._run, self._trainer, self._module, self._cleanup = settings, run, trainer, module, cleanup
        self._data, self._untouched = federated_data(trainer), Untouched()
        self._build = settings.server_optimizer or settings.strategy.server_optimizer
        self._attributes: PythonState | None = None
        self._groups: list[dict[str, Any]] | None = None
        without_validation(settings, trainer, cleanup)  # before the settings are noted, of which the validation is one
        run.begin(self._data, continues=trainer.current_epoch > 0)
        disk = math.inf if settings.storage.disk is None else settings.storage.disk * 2**30
        run.memory.bound(Path(trainer.default_root_dir) / "client_state", settings.storage.memory * 2**30, disk)
        cleanup.callback(self._data.serve_rounds, False)
        # After the run: options of a second fit continue those of the first.
        context = context_of(settings, run, trainer, self._data)
        hooks = {name: option.at_server(context) for name, option in by_name(settings.active_options).items()}
        for hook in hooks.values():
            cleanup.callback(hook.close)
        refuse_rivals(hooks, isinstance(settings.strategy, JointStrategy))
        run.use(hooks)
        cleanup.enter_context(without_advice())
        prepare_trainer(trainer, cleanup)
        leave_at_exit(trainer.world_size)
        set_threads(settings.local.threads, trainer, cleanup)
        check = partial(self._untouched.check, trainer)
        # Last: all that comes before reads the module's own methods.
        self._takeover = Takeover(module, lambda: self.rounds.run(module), self._server_optimizer, self._load, check)
        cleanup.callback(continue_global_step, trainer)  # after the release
        cleanup.callback(self._takeover.release)
        cleanup.callback(release_unused_memory)

    def _server_optimizer(self) -> Optimizer:
        """Return the server's optimizer, which Lightning requests before the first round, and after a checkpoint was loaded."""
        self._data.serve_rounds(True)
        optimizer = self._build(self._module.parameters())
        if not self._run.settings:
            self._record(optimizer)
        self._untouched.note(optimizer, self._groups)
        return optimizer

    def _load(self, checkpoint: dict[str, Any]) -> None:
        """Compare a checkpoint before any of it is restored, and give the server's optimizer its new settings.

        Raises:
            CheckpointError: if this run cannot continue it.
        """
        self._attributes = PythonState(self._module)
        if "callbacks" not in checkpoint:
            return  # a weights-only checkpoint, which Lightning refuses
        optimizer = self._build(self._module.parameters())
        unseen = self._record(optimizer)
        found = refuse_changes(self._settings, self._run, self._module, checkpoint, self._trainer.strategy.root_device)
        renew(checkpoint["optimizer_states"], optimizer, found)
        self._groups = checkpoint["optimizer_states"][0]["param_groups"]
        if found:
            rank_zero_warn(f"Resumed with changed settings ('federation.checkpoints.resume_changed'): {in_words(found)}.")
        if unseen:
            rank_zero_info(f"Not compared with the checkpoint: {'; '.join(unseen)}.")

    def _record(self, optimizer: Optimizer) -> list[str]:
        """Record the settings, and return the names of those that cannot be compared."""
        self._run.settings, unseen = fingerprint(self._settings, self._trainer, self._module, self._data, optimizer)
        return unseen

    def begin(self, inputs: Standardized | None) -> None:
        """Copy the module for the clients, with its networks built and a checkpoint loaded, and prepare the rounds.

        Args:
            inputs: the part of the module whose inputs clients measure under masks, once they can; None without one.
        """
        settings, run, module, hooks = self._settings, self._run, self._module, self._run.hooks.values()
        self._data.serve_rounds(True)  # from now on: 'setup' of the module may read a batch of the clients'
        self._parameters = set(parameters_of(module))
        with self._takeover.suspended():
            client = client_copy(module)
            if self._attributes is not None:  # those with which the resumed run began, whatever the server's module restored
                self._attributes.give(client)
        run.hold_weights(module)
        warn_of_resting_parts(module)
        for hook in hooks:
            hook.restored()  # before the parts are built, which ask options for what clients hold
        assembly = Assembly(settings, run, self._trainer, module, client)
        federation = assembly.federation(assembly.pool())
        # No client here trains in the copy of the module; other copies, which checks have made, refer to themselves.
        if settings.pool is not None and assembly.clients.resident.rest() >= WORTH_A_COLLECTION:
            gc.collect()
        run.live = federation
        self._cleanup.callback(federation.pool.close)
        for hook in hooks:
            hook.open(federation)
        if inputs is not None:
            add_up_inputs(federation, hooks, inputs)
        termination = Termination(self._trainer, self._cleanup)
        self.rounds = Rounds(settings, run, federation, assembly.sampler(), termination, self._untouched)

    def restore(self) -> None:
        """Restore the random state and the weights of a resumed run, after the module's own ``on_fit_start``.

        Raises:
            ConfigurationError: if the module built a layer there.
        """
        self._run.continue_from(self._module)
        compatibility.refuse_late_parts(self._module, self._parameters)


def check_fit(settings: FederationSettings, trainer: Trainer, module: LightningModule, cleanup: ExitStack) -> None:
    """Refuse what a federation cannot train: first what needs no client, then what needs their data.

    Args:
        settings: the federation's settings.
        trainer: the user's Trainer.
        module: the user's module.
        cleanup: the stack on which to register the end of the connection to clients elsewhere.

    Raises:
        ConfigurationError: naming the settings, and what to change.
    """
    refuse_tools(trainer)
    refuse_client_callbacks(settings.local)
    data = federated_data(trainer)
    unmeasured(module, parts_of(settings))
    if settings.pool is not None:
        refuse_reading(trainer, parts_of(settings))
        cleanup.callback(settings.pool.close)
        data.register_clients(settings.pool.open(trainer, settings))
    require_same_partition(trainer, data)
    compatibility.check_federation(settings, trainer, data)


WORTH_A_COLLECTION = 2**20
"""The size of a model in bytes from which it is worth a third of a second to look for copies that nobody uses."""


def context_of(settings: FederationSettings, run: RunState, trainer: Trainer, data: FederatedDataModule) -> ServerContext:
    """Return what is known of a federation before its parts are built."""
    cohort, removed = round_size(settings, data.num_clients), removed_by(parts_of(settings))
    return ServerContext(trainer=trainer, data=data, settings=settings, cohort=cohort, removed=removed, held=run.memory.held)


class Assembly:
    """Build the parts of a federation on every rank, after a checkpoint has been read.

    Args:
        settings: the settings of the federation.
        run: the state of the run so far.
        trainer: the user's Trainer.
        module: the user's module.
        client: the clients' copy of the module.

    Raises:
        ConfigurationError: if these settings cannot train the module.
    """

    def __init__(
        self, settings: FederationSettings, run: RunState, trainer: Trainer, module: LightningModule, client: LightningModule
    ) -> None:
        self._settings, self._run, self._module = settings, run, module
        data, device = federated_data(trainer), trainer.strategy.root_device
        self._context = context_of(settings, run, trainer, data)
        if not moves_batches(module, data):  # transfer hooks expect batches on the device that loaded them
            data.place(device)
        self._comm = Collectives(trainer)
        given = (option.key(settings.seed) for option in settings.active_options)
        key = next(filter(None, given), None) or SecretKey.draw()
        self._secret = SecretKey(self._comm.gather(key.reveal())[0])
        self.place = Place(
            local=replace(settings.local, detect_anomaly=settings.local.detect_anomaly or detects_anomalies(trainer)),
            precision=resolve_precision(settings.local, trainer.precision, device),
            device=device,
            logger=bool(trainer.loggers),
            outer=trainer,
            inference_mode=trainer.validate_loop.inference_mode,
            fast_dev_run=bool(trainer.fast_dev_run),  # type: ignore[attr-defined]
            cohort=self._context.cohort,
        )
        self.clients = Client(
            module=client,
            data=data,
            settings=settings,
            num_clients=data.num_clients,
            place=self.place,
            memory=run.memory,
            secret=self._secret,
            drop_single=check_batch_norm(module, data),
            starts=lambda task: announce(trainer, "on_client_start", task.round_idx, task.client),
        )

    def pool(self) -> ClientPool:
        """Return the pool of clients: at sites, or simulated on the ranks of the Trainer."""
        if self._settings.pool is not None:
            found: ClientPool = self._settings.pool.build_pool(self, lambda: self._run.run_id)
            return found
        local = self._settings.local
        return LocalPool(comm=self._comm, client=self.clients, data=self._context.data, max_epochs=max(1, local.max_epochs))

    def federation(self, pool: ClientPool) -> Federation:
        """Return the parts that stay the same from round to round.

        Args:
            pool: the pool of clients.
        """
        settings, server, resident, run = self._settings, ModelState(self._module), self.clients.resident, self._run
        server.set_apart(run.moving, [name for hook in run.hooks.values() for name in hook.held(self._module)], run.unsent)
        compatibility.check_convex(settings.route, self._module, settings.local)
        for option in settings.active_options:
            option.check_module(self.place.precision, resident.module)
            option.check_sent(server)
        context = self._context
        limit = context.trainer.limit_val_batches
        evaluators = Evaluators(resident, context.data, settings.server_evaluation, self.place, limit, settings.seed)
        return Federation(**vars(context), server=server, pool=pool, evaluators=evaluators, secret=self._secret)

    def sampler(self) -> ClientSampler:
        """Return the sampler that draws the rounds."""
        settings, hooks = self._settings, [*self._run.hooks.values()]
        sampler = ClientSampler(
            num_clients=self._context.data.num_clients,
            clients_per_round=settings.clients_per_round,
            faults=settings.faults,
            seed=settings.seed,
            secret=self._secret if any(option.secret_cohorts for option in settings.active_options) else None,
            hooks=hooks,
            remedies=[loss.remedy for loss in removals_of(settings.active_options, Capability.EVERY_CLIENT)],
        )
        for hook in hooks:
            sampler = hook.sampler(sampler)
        return sampler
