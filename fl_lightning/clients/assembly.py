"""Build the clients' half of a federation, for all clients of a simulation or for the client of a site."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.utilities.rank_zero import rank_zero_info

from fl_lightning.clients.client_data import ClientData
from fl_lightning.clients.client_evaluators import ClientEvaluators
from fl_lightning.clients.client_settings import ClientSettings
from fl_lightning.clients.engines.base import EngineSettings
from fl_lightning.clients.engines.selection import ENGINES, LocalEngine, automatic_engine
from fl_lightning.clients.failures import describe
from fl_lightning.clients.input_sums import numbers_to_add
from fl_lightning.clients.local_trainer import LocalTrainer
from fl_lightning.clients.memory import ClientMemory
from fl_lightning.clients.outbox import Outbox
from fl_lightning.clients.resident import ResidentModel
from fl_lightning.clients.runtime import ClientRuntime
from fl_lightning.clients.task_trainer import TaskTrainer
from fl_lightning.core.hooks import ClientContext, ClientHooks, SitePlace
from fl_lightning.core.option import by_name
from fl_lightning.functional.keyed_noise import SecretKey
from fl_lightning.messages import ClientTask
from fl_lightning.rules import ClientRule


@dataclass(frozen=True, kw_only=True)
class ClientEnvironment:
    """Describe the environment in which the clients of a process train.

    Attributes:
        precision: the precision, as accepted by Lightning's Trainer.
        device: the device to train on.
        logger: whether the module finds a (silent) logger.
        outer: the user's Trainer, of which a module may read some attributes; None at a site.
        inference_mode: whether validation runs in inference mode, without autograd.
        fast_dev_run: whether each client trains on a single batch.
        detect_anomaly: whether autograd names the operation that produced a NaN.
        cohort: the largest number of clients in a round; None if it is unknown.
        site: the site, if the clients are not simulated.
        compresses: whether updates are sent over a network, in a compressed form if a transform makes them smaller.
    """

    precision: str = "32-true"
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    logger: bool = False
    outer: Trainer | None = None
    inference_mode: bool = True
    fast_dev_run: bool = False
    detect_anomaly: bool = False
    cohort: int | None = None
    site: SitePlace | None = None
    compresses: bool = False


class ClientAssembly:
    """Build the parts of the clients' half around one resident module.

    Args:
        module: the clients' copy of the user's module.
        data: the examples of the clients in this process.
        settings: the settings of the federation that clients need.
        place: the environment in which they train.
        memory: the state that clients keep between rounds.
        secret: the key of random numbers that must hide something.
        drop_single: whether to drop a last batch of a single example, on which BatchNorm cannot train.
        starts: called with each turn that begins.
        tell: returns the description of a client's error that the server receives.
    """

    def __init__(
        self,
        *,
        module: LightningModule,
        data: ClientData,
        settings: ClientSettings,
        place: ClientEnvironment,
        memory: ClientMemory,
        secret: SecretKey,
        drop_single: bool = False,
        starts: Callable[[ClientTask], None] = lambda _: None,
        tell: Callable[[Exception], str] = describe,
    ) -> None:
        self._data, self._settings, self._place, self._memory, self._secret = data, settings, place, memory, secret
        self._drop_single, self._starts, self._tell = drop_single, starts, tell
        self.resident = ResidentModel(module, settings.local.channels_last)
        self._hooks = self._built_hooks()
        self._engine = self._chosen_engine()

    def runtime(self, undoable: bool = False) -> ClientRuntime:
        """Return the runtime that carries out the server's orders.

        Args:
            undoable: whether a round may be undone, so that no stored tensor may be changed in place.
        """
        settings, place = self._settings, self._place
        self._memory.undoable = undoable or settings.faults.skips
        name_of = getattr(self._data, "client_name", str)  # a site does not know its name
        outbox = Outbox(
            transforms=settings.transforms,
            memory=self._memory,
            seed=settings.seed,
            secret=self._secret,
            compresses=place.compresses,
        )
        evaluators = ClientEvaluators(
            self.resident,
            self._data,
            settings.metrics,
            self._memory.held,
            precision=place.precision,
            device=place.device,
            logger=place.logger,
            outer=place.outer,
            inference_mode=place.inference_mode,
        )
        trainer = self._trainer(self._engine, self._memory, settings.rules, [*self._hooks.values()])
        tasks = TaskTrainer(
            trainer=trainer,
            memory=self._memory,
            evaluators=evaluators,
            faults=settings.faults,
            starts=self._starts,
            name_of=name_of,
            tell=self._tell,
        )
        return ClientRuntime(
            resident=self.resident,
            trainer=trainer,
            tasks=tasks,
            memory=self._memory,
            outbox=outbox,
            hooks=self._hooks,
            evaluators=evaluators,
            alone=self._alone_for,
            name_of=name_of,
            fixed=settings.fixed,
        )

    def _built_hooks(self) -> dict[str, ClientHooks]:
        """Return the hooks of the options in use, each with tensors of its own that clients keep."""
        settings = self._settings

        def context(name: str) -> ClientContext:
            return ClientContext(
                num_clients=settings.num_clients,
                seed=settings.seed,
                device=self._place.device,
                kept=lambda client: self._memory.drawer(client, f"option {name} "),
                secret=self._secret,
                strategy=settings.strategy,
                place=self._place.site,
                numbers=lambda client, what: numbers_to_add(
                    what, client, self.resident.module, self._data, settings.seed, self._place.site
                ),
            )

        return {name: option.at_clients(context(name)) for name, option in by_name(settings.options).items()}

    @property
    def engine(self) -> str:
        """Return the name of the chosen engine."""
        return self._engine.name

    def _chosen_engine(self) -> LocalEngine:
        settings, place, name = self._settings, self._place, self._settings.local.engine
        engine_settings = EngineSettings(
            local=settings.local,
            precision=place.precision,
            device=place.device,
            rules=settings.rules,
            hooks=[*self._hooks.values()],
            deadline=settings.faults.deadline,
            fast_dev_run=place.fast_dev_run,
            logger=place.logger,
            outer=place.outer,
            detect_anomaly=place.detect_anomaly,
            cohort=place.cohort,
        )
        if name in ENGINES:
            return LocalEngine(self.resident, engine_settings, name)
        chosen, reason = automatic_engine(self.resident, engine_settings)
        rank_zero_info(f"Local training uses the engine '{chosen}': {reason}")
        return LocalEngine(self.resident, engine_settings, chosen, falls_back=True)

    def _trainer(
        self, engine: LocalEngine, memory: ClientMemory, rules: Sequence[ClientRule], hooks: Sequence[ClientHooks]
    ) -> LocalTrainer:
        return LocalTrainer(
            resident=self.resident,
            engine=engine,
            data=self._data,
            memory=memory,
            rules=rules,
            seed=self._settings.seed,
            full_batch=self._settings.local.full_batch,
            drop_single=self._drop_single,
            hooks=hooks,
        )

    def _alone(self, engine: LocalEngine) -> LocalTrainer:
        """Return a trainer for clients that train outside of the federation: they keep and send nothing."""
        return self._trainer(engine, ClientMemory(), (), ())

    def _alone_for(self, epochs: int | None) -> LocalTrainer:
        """Return such a trainer for a number of local epochs, by default the number in the settings."""
        engine = self._engine
        return self._alone(engine.other() if epochs is None else engine.other(max_epochs=epochs, max_steps=-1))
