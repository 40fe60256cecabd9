"""Build the parts of a federation at the start of a fit."""

from __future__ import annotations

import gc
from typing import Any

from lightning.pytorch import LightningModule, Trainer

from fl_lightning.clients.client import Client
from fl_lightning.clients.local_pool import LocalPool
from fl_lightning.clients.place import Place
from fl_lightning.clients.pool import ClientPool
from fl_lightning.clients.trainer import moves_batches
from fl_lightning.compat.lightning import detects_anomalies
from fl_lightning.core.capabilities import Capability, removals_of, removed_by
from fl_lightning.core.federation import Federation, ServerContext, parts_of
from fl_lightning.core.plan import ClientSampler
from fl_lightning.data.federated import FederatedDataModule
from fl_lightning.data.input_statistics import check_batch_norm
from fl_lightning.functional.keyed_noise import SecretKey
from fl_lightning.functional.model_state import ModelState
from fl_lightning.server.checks.compatibility import check_convex, federated_data
from fl_lightning.server.checks.federation import round_size
from fl_lightning.server.evaluators import Evaluators
from fl_lightning.server.round import announce
from fl_lightning.server.run_state import RunState
from fl_lightning.settings.federation import FederationSettings
from fl_lightning.settings.local_training import resolve_precision
from fl_lightning.utilities.collectives import Collectives

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
            local=settings.local,
            precision=resolve_precision(settings.local, trainer.precision, device),
            device=device,
            logger=bool(trainer.loggers),
            outer=trainer,
            inference_mode=trainer.validate_loop.inference_mode,
            fast_dev_run=bool(trainer.fast_dev_run),  # type: ignore[attr-defined]
            detect_anomaly=detects_anomalies(trainer),
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
            found: ClientPool = self._settings.pool.pool(self, lambda: self._run.federation)
            return found
        local = self._settings.local
        return LocalPool(
            comm=self._comm,
            client=self.clients,
            data=self._context.data,
            max_epochs=max(1, local.max_epochs),
        )

    def rest(self) -> None:
        """Free the memory of the copy of the module, which no client here trains, until a model is evaluated in it."""
        if self.clients.resident.rest() >= WORTH_A_COLLECTION:
            gc.collect()  # other copies, which checks have made, refer to themselves

    def federation(self, pool: ClientPool) -> Federation:
        """Return the parts that stay the same from round to round.

        Args:
            pool: the pool of clients.
        """
        settings, server, resident, run = self._settings, ModelState(self._module), self.clients.resident, self._run
        server.set_apart(run.moving, [name for hook in run.hooks.values() for name in hook.held(self._module)], run.unsent)
        check_convex(settings.route, self._module, settings.local)
        for option in settings.active_options:
            option.check_module(self.place.precision, resident.module)
            option.check_sent(server)
        context: dict[str, Any] = vars(self._context)
        limit = self._context.trainer.limit_val_batches
        evaluators = Evaluators(
            resident, context["data"], settings.server_evaluation, self.place, limit_batches=limit, seed=settings.seed
        )
        return Federation(**context, server=server, pool=pool, evaluators=evaluators, secret=self._secret)

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
