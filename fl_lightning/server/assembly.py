"""Build the parts of a federation at the start of a fit."""

from __future__ import annotations

import gc

from lightning.pytorch import LightningModule, Trainer

from fl_lightning.clients.assembly import ClientAssembly
from fl_lightning.clients.local_pool import LocalPool
from fl_lightning.clients.place import Place
from fl_lightning.clients.pool import ClientPool
from fl_lightning.clients.training.inner_trainer import moves_batches
from fl_lightning.compat.lightning import detects_anomalies
from fl_lightning.core.capabilities import Capability, need_of, removals_of, removed_by
from fl_lightning.data.batch_norm import check_batch_norm
from fl_lightning.functional.keyed_noise import SecretKey
from fl_lightning.functional.model_state import ModelState
from fl_lightning.server.announcements import announce
from fl_lightning.server.checks.compatibility import check_convex, federated_data
from fl_lightning.server.checks.federation import parts_of, round_size
from fl_lightning.server.evaluators import Evaluators
from fl_lightning.server.federation import Federation
from fl_lightning.server.run_state import RunState
from fl_lightning.server.sampling import ClientSampler
from fl_lightning.settings.federation import FederationSettings
from fl_lightning.settings.local_training import resolve_precision
from fl_lightning.utilities.collectives import Collectives

WORTH_A_COLLECTION = 2**20
"""The size of a model in bytes from which it is worth a third of a second to look for copies that nobody uses."""


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
        self._settings, self._run, self._trainer, self._module = settings, run, trainer, module
        self._data = federated_data(trainer)
        device = trainer.strategy.root_device
        if not moves_batches(module, self._data):  # transfer hooks expect batches on the device that loaded them
            self._data.place(device)
        self._secret = self._shared_key()
        self.place = Place(
            local=settings.local,
            precision=resolve_precision(settings.local, trainer.precision, device),
            device=device,
            logger=bool(trainer.loggers),
            outer=trainer,
            inference_mode=trainer.validate_loop.inference_mode,
            fast_dev_run=bool(trainer.fast_dev_run),  # type: ignore[attr-defined]
            detect_anomaly=detects_anomalies(trainer),
            cohort=round_size(settings, self._data.num_clients),
        )
        self._clients = ClientAssembly(
            module=client,
            data=self._data,
            settings=settings,
            num_clients=self._data.num_clients,
            place=self.place,
            memory=run.memory,
            secret=self._secret,
            drop_single=check_batch_norm(module, self._data),
            starts=lambda task: announce(trainer, "on_client_start", task.round_idx, task.client),
        )

    def _shared_key(self) -> SecretKey:
        """Return the key of secret random numbers, the same on every rank: an option's, or a new one at each start."""
        given = (option.key(self._settings.seed) for option in self._settings.active_options)
        key = next(filter(None, given), None) or SecretKey.draw()
        return SecretKey(Collectives(self._trainer).gather(key.reveal())[0])

    def local_pool(self) -> ClientPool:
        """Return the pool of clients, simulated on the ranks of the Trainer."""
        settings = self._settings
        return LocalPool(
            comm=Collectives(self._trainer),
            runtime=self._clients.runtime(),
            data=self._data,
            transforms=settings.transforms,
            max_epochs=max(1, settings.local.max_epochs),
        )

    def rest(self) -> None:
        """Free the memory of the copy of the module, which no client here trains, until a model is evaluated in it."""
        if self._clients.resident.rest() >= WORTH_A_COLLECTION:
            gc.collect()  # other copies, which checks have made, refer to themselves

    def view(self) -> ModelState:
        """Return a view of the copy of the module in which this process evaluates models."""
        return self._clients.resident.view()

    @property
    def engine(self) -> str:
        """Return the engine that would train clients here."""
        return self._clients.engine

    def federation(self, pool: ClientPool) -> Federation:
        """Return the parts that stay the same from round to round.

        Args:
            pool: the pool of clients.
        """
        settings, server, resident = self._settings, ModelState(self._module), self._clients.resident
        held = [name for hook in self._run.hooks.values() for name in hook.held(self._module)]
        server.set_apart(self._run.moving, held, self._run.unsent)
        check_convex(settings.route, self._module, settings.local)
        for option in settings.active_options:
            option.check_module(self.place.precision, resident.module)
            option.check_sent(server)
        evaluators = Evaluators(
            resident,
            self._data,
            settings.server_evaluation,
            self.place,
            limit_batches=self._trainer.limit_val_batches,
            seed=settings.seed,
        )
        return Federation(
            trainer=self._trainer,
            strategy=settings.strategy,
            data=self._data,
            server=server,
            pool=pool,
            evaluators=evaluators,
            local=settings.local,
            seed=settings.seed,
            transforms=settings.transforms,
            faults=settings.faults,
            hides_updates=Capability.SINGLE_UPDATES in removed_by(settings.active_options),
            memory_limit=settings.storage.memory * 2**30,
            fixed=need_of(parts_of(settings), Capability.FIXED_TENSORS),
            secret=self._secret,
        )

    def sampler(self) -> ClientSampler:
        """Return the sampler that draws the rounds."""
        settings = self._settings
        hooks = [*self._run.hooks.values()]
        sampler = ClientSampler(
            num_clients=self._data.num_clients,
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
