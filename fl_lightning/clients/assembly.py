"""Build the clients' half of a federation, for all clients of a simulation or for the client of a site."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from lightning.pytorch import LightningModule
from lightning.pytorch.utilities.rank_zero import rank_zero_info

from fl_lightning.clients.client_data import ClientData
from fl_lightning.clients.client_evaluators import ClientEvaluators
from fl_lightning.clients.client_settings import client_metrics, client_rules, fixed_at_clients
from fl_lightning.clients.engines.selection import ENGINES, LocalEngine, automatic_engine
from fl_lightning.clients.failures import describe
from fl_lightning.clients.input_sums import numbers_to_add
from fl_lightning.clients.local_trainer import LocalTrainer
from fl_lightning.clients.memory import MODEL, RULES, ClientMemory, transform_owner
from fl_lightning.clients.outbox import Outbox
from fl_lightning.clients.place import Place
from fl_lightning.clients.resident import ResidentModel
from fl_lightning.clients.runtime import ClientRuntime
from fl_lightning.clients.task_trainer import TaskTrainer
from fl_lightning.core.option import ClientContext, ClientHooks, by_name
from fl_lightning.functional.keyed_noise import SecretKey
from fl_lightning.messages import ClientTask
from fl_lightning.settings.federation import FederationSettings


class ClientAssembly:
    """Build the parts of the clients' half around one resident module.

    Args:
        module: the clients' copy of the user's module.
        data: the examples of the clients in this process.
        settings: the settings of the federation.
        num_clients: the number of clients in the federation.
        place: where and how they train, without rules, hooks and deadline, which follow from the settings.
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
        settings: FederationSettings,
        num_clients: int,
        place: Place,
        memory: ClientMemory,
        secret: SecretKey,
        drop_single: bool = False,
        starts: Callable[[ClientTask], None] = lambda _: None,
        tell: Callable[[Exception], str] = describe,
    ) -> None:
        self._data, self._settings, self._memory, self._secret = data, settings, memory, secret
        self._num_clients, self._drop_single, self._starts, self._tell = num_clients, drop_single, starts, tell
        self.resident = ResidentModel(module, settings.local.channels_last)
        self._hooks = self._built_hooks(place)
        rules, hooks = client_rules(settings), [*self._hooks.values()]
        self._place = replace(place, rules=rules, hooks=hooks, deadline=settings.faults.deadline)
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
            client_metrics(settings),
            self._memory.held,
            place,
        )
        trainer = self._trainer(self._engine, self._memory, place)
        transforms = {transform_owner(k): one.kept_like_parameters for k, one in enumerate(settings.transforms)}
        rules = [name for rule in place.rules for name in rule.kept_like_parameters]
        self._memory.like_parameters = {MODEL: ["vector"], RULES: rules, **transforms}
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
            fixed=fixed_at_clients(settings),
        )

    def _built_hooks(self, place: Place) -> dict[str, ClientHooks]:
        """Return the hooks of the options in use, each with tensors of its own that clients keep."""
        settings = self._settings

        def context(name: str) -> ClientContext:
            return ClientContext(
                num_clients=self._num_clients,
                seed=settings.seed,
                device=place.device,
                kept=lambda client: self._memory.drawer(client, f"option {name}"),
                secret=self._secret,
                strategy=settings.strategy,
                place=place.site,
                numbers=lambda client, what: numbers_to_add(
                    what, client, self.resident.module, self._data, settings.seed, place.site
                ),
            )

        return {name: option.at_clients(context(name)) for name, option in by_name(settings.active_options).items()}

    @property
    def engine(self) -> str:
        """Return the name of the chosen engine."""
        return self._engine.name

    def _chosen_engine(self) -> LocalEngine:
        name = self._settings.local.engine
        if name in ENGINES:
            return LocalEngine(self.resident, self._place, name)
        chosen, reason = automatic_engine(self.resident, self._place)
        rank_zero_info(f"Local training uses the engine '{chosen}': {reason}")
        return LocalEngine(self.resident, self._place, chosen, falls_back=True)

    def _trainer(self, engine: LocalEngine, memory: ClientMemory, place: Place) -> LocalTrainer:
        return LocalTrainer(
            resident=self.resident,
            engine=engine,
            data=self._data,
            memory=memory,
            rules=place.rules,
            seed=self._settings.seed,
            full_batch=place.local.full_batch,
            drop_single=self._drop_single,
            hooks=place.hooks,
        )

    def _alone_for(self, epochs: int | None) -> LocalTrainer:
        """Return a trainer for clients that train outside of the federation: they keep and send nothing.

        Args:
            epochs: the number of local epochs; by default that in the settings.
        """
        engine = self._engine.other() if epochs is None else self._engine.other(max_epochs=epochs, max_steps=-1)
        return self._trainer(engine, ClientMemory(), Place(local=self._settings.local))
