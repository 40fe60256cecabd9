"""Connect a fit to sites: describe them, send them the settings, and build the pool."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch
from lightning.pytorch import LightningDataModule, LightningModule, Trainer
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities.model_helpers import is_overridden
from lightning.pytorch.utilities.rank_zero import rank_zero_warn

from fl_lightning.data.client_splits import chosen
from fl_lightning.data.labels import names_of
from fl_lightning.errors import ClientError, ConfigurationError, require, require_texts
from fl_lightning.flower import envelope
from fl_lightning.flower.checks import digest_of_schema
from fl_lightning.flower.server.agree import refuse_simulated, require_claims, require_parts, require_same
from fl_lightning.flower.server.exchange import Exchange, SiteError
from fl_lightning.flower.server.pool import RemotePool
from fl_lightning.flower.server.replies import Needs, info_in
from fl_lightning.flower.validation import unlike
from fl_lightning.flower.values import build_model, configuration, found_at_start
from fl_lightning.flower.wire.transport import Content, Transport
from fl_lightning.messages import ClientInfo
from fl_lightning.models.standardized import standardized_parts
from fl_lightning.routes.server import ServerRoute
from fl_lightning.settings.server import RemoteClients
from fl_lightning.utilities.argument_types import ChecksTypes
from fl_lightning.utilities.collectives import Collectives


class RemoteSites(ChecksTypes, RemoteClients):
    """Connect to sites over any transport.

    Args:
        grace: the seconds beyond ``federation.faults.deadline`` after which a silent site has failed, > 0.
        min_sites: the number of sites that must be online for the fit to start, >= 1; None for all.
        model: the model as values, for a fit that a Python script starts; see :meth:`build_model`.
        max_examples: the most training examples that a site may claim, >= 1: one number, or one for each site by name; None
            for any.
        max_share: the largest share of a round's change that one site may have, in (0, 1].
    """

    def __init__(
        self,
        grace: float = 30.0,
        min_sites: int | None = None,
        model: dict[str, Any] | None = None,
        max_examples: int | dict[str, int] | None = None,
        max_share: float = 1.0,
    ) -> None:
        require(grace > 0, "federation.pool.grace", "above 0 seconds", grace)
        require(min_sites is None or min_sites >= 1, "federation.pool.min_sites", "1 or above, or null", min_sites)
        require_texts("federation.pool.max_examples", max_examples if isinstance(max_examples, dict) else ())
        limits = max_examples.values() if isinstance(max_examples, dict) else [1 if max_examples is None else max_examples]
        require(all(limit >= 1 for limit in limits), "federation.pool.max_examples", "1 or above, or null", max_examples)
        require(0 < max_share <= 1, "federation.pool.max_share", "above 0 and at most 1", max_share)
        self.grace, self.min_sites, self.model = grace, min_sites, model
        self.max_examples, self.max_share = max_examples, max_share
        self._warned_of: set[int] = set()
        self._exchange: Exchange | None = None  # until the pool has it, which closes it
        self._infos: tuple[ClientInfo, ...] = ()
        self._numbers: list[int] = []  # of the sites' registration, by their ids in the fit: held-out sites are the last
        self._trained = 0

    def build_model(self) -> LightningModule:
        """Return the module that sites will build, for a fit that a Python script starts.

        Raises:
            ConfigurationError: if the pool has no ``model``, or its values do not fit.
        """
        return build_model(self.model)

    @abstractmethod
    def _connect(self, settings: Any) -> tuple[Transport, Sequence[str]]:
        """Return the transport, and the names of the sites in the order of their ids."""

    def _recall(self, name: str) -> ClientInfo | None:
        """Return what a site told when it was online last, or None."""
        return None

    def _remember(self, infos: Sequence[ClientInfo]) -> None:
        """Keep what sites have told."""

    def _witness(self, name: str, digest: str) -> None:
        """Keep the digest of a site's log."""

    def open(self, trainer: Trainer, settings: Any) -> tuple[ClientInfo, ...]:
        """See :class:`RemoteClients`."""
        self._begin(trainer, settings)
        transport, registered = self._connect(settings)
        datamodule: Any = trainer.datamodule  # type: ignore[attr-defined]
        held = _held_out(datamodule, registered)
        self._numbers = [*(k for k in range(len(registered)) if k not in held), *held]
        self._trained = len(registered) - len(held)
        names = [registered[number] for number in self._numbers]
        self._exchange = Exchange(transport, names, self._numbers, self._witness)
        absent = self._exchange.absent() if self.min_sites is not None else {}
        told = self._described(trainer, settings, names, absent)
        for client, cause in absent.items():
            rank_zero_warn(f"The fit starts without site {names[client]} (client {client}): {cause}.")
        self._infos = tuple(told.get(k) or self._recall(name) or ClientInfo(name, 0) for k, name in enumerate(names))
        training, unseen = (
            [info for info in infos if info.num_examples]
            for infos in (self._infos[: self._trained], self._infos[self._trained :])
        )
        require_claims([*training, *unseen], self.max_examples)
        names_here = (_names_here(datamodule.datamodule, kind) for kind in ("classes", "feature_names"))
        require_same([*training, *unseen], digest_of_schema(datamodule.datamodule), *names_here)
        require_parts(settings, training, absent=len(absent), unseen=unseen)
        self._remember(list(told.values()))
        return self._infos

    def _begin(self, trainer: Trainer, settings: Any) -> None:
        """Refuse settings that sites cannot have, before any is asked."""
        refuse_simulated(settings, trainer, trainer.datamodule)  # type: ignore[attr-defined]
        self._values = configuration(trainer, settings, self.model)
        if self.model is not None:
            said = unlike(self.build_model().state_dict(), trainer.lightning_module.state_dict())
            if said:
                raise ConfigurationError(f"The fit trains another module than 'model': {said}. Fit 'pool.build_model()'.")
        self._settings, self._trainer = settings, trainer
        if self.min_sites is not None and not settings.faults.skips:
            raise ConfigurationError(
                f"'federation.pool.min_sites' is {self.min_sites}, but 'federation.faults.policy' is 'fatal', which ends "
                "the run when a site is absent. Set it to 'skip', or remove 'min_sites'."
            )

    def _described(
        self, trainer: Trainer, settings: Any, names: Sequence[str], absent: Collection[int]
    ) -> dict[int, ClientInfo]:
        """Return what each client that is not absent tells about its data."""
        callbacks: Any = trainer.callbacks  # type: ignore[attr-defined]
        asks = any(getattr(callback, "reads_inputs", False) for callback in callbacks)
        asks |= any(not part.is_measured for part in standardized_parts(trainer.lightning_module))
        summed = any(option.seals for option in settings.active_options)  # then the sums of inputs are asked for later
        asked: dict[str, Any] = {
            "schema": digest_of_schema(trainer.datamodule.datamodule),  # type: ignore[attr-defined]
            "statistics": asks and not summed,
            "summed": asks and summed,
        }
        quiet = asked | {"statistics": False}  # of held-out sites, whose sums must not be used
        found = self._ask_all(
            {
                k: envelope.request("describe", client=number, **(asked if k < self._trained else quiet))
                for k, number in enumerate(self._numbers)
                if k not in absent
            }
        )
        return {client: info_in(reply, names[client]) for client, reply in sorted(found.items())}

    def _ask_all(self, requests: Mapping[int, Content]) -> dict[int, Any]:
        """Send a request to each client, and return the contents of the replies.

        Raises:
            ConfigurationError: with the errors of all sites.
        """
        assert self._exchange is not None
        for client, content in requests.items():
            self._exchange.post(client, content)
        found = dict(self._exchange.answers(lambda client, reply: reply))
        problems = [str(error) for error in found.values() if isinstance(error, SiteError)]
        if problems:
            raise ConfigurationError("Some sites cannot take part. " + " ".join(sorted(problems)))
        return found

    def build_pool(self, assembly: Any, federation: Callable[[], str]) -> RemotePool:
        """See :class:`RemoteClients`."""
        assert self._exchange is not None
        settings, trainer, place = self._settings, self._trainer, assembly.place
        sections = self._values["federation"]
        contract = {
            "model": self._values["model"],
            "federation": {name: found_at_start(getattr(settings, name), value) for name, value in sections.items()},
            "seed": settings.seed,
            "num_clients": self._trained,
            "numbers": tuple(self._numbers),
            "precision": str(trainer.precision),
            "threads": torch.get_num_threads(),
            "inference_mode": place.inference_mode,
            "logger": place.logger,
            "rounds": max(1, trainer.max_epochs or 1),
            "trains": trainer.state.fn == TrainerFn.FITTING,  # a Trainer that does not run only asks questions
        }
        absent = self._exchange.absent() if self.min_sites is not None else {}
        requests: dict[int, Content] = {
            client: envelope.request("prepare", federation=federation(), client=client, contract=contract)
            for client in range(len(self._infos))
            if client not in absent
        }
        self._ask_all(requests)
        exchange, self._exchange = self._exchange, None  # the pool closes it
        exchange.start(contract, federation, settings.faults, self.grace)
        return RemotePool(
            exchange=exchange,
            infos=self._infos,
            comm=Collectives(trainer),
            faults=settings.faults,
            view=assembly.clients.resident.view,
            prepares=bool(settings.transforms) or settings.strategy.local_metric is not None,
            needs=_needs(settings),
        )

    def review(self, round_idx: int, influence: Mapping[int, float]) -> None:
        """See :class:`RemoteClients`; warn of a site with more than half of the change, since it may have claimed too much."""
        for client, share in influence.items():
            said = f"Site {self._infos[client].name} has {share:.1%} of the change of round {round_idx}"
            claims = "Its number of examples, steps and losses are its own claims"
            if share > self.max_share:
                raise ClientError(
                    f"{said}, but 'federation.pool.max_share' is {self.max_share}. {claims}: ask it, then raise the limit, or "
                    "revoke the site."
                )
            if share > 0.5 and len(influence) > 2 and client not in self._warned_of:
                self._warned_of.add(client)
                rank_zero_warn(f"{said}. {claims}. To limit them, set 'federation.pool.max_share' or 'max_examples'.")

    def close(self) -> None:
        """See :class:`RemoteClients`."""
        if self._exchange is not None:
            self._exchange.close(False)
            self._exchange = None


def _held_out(data: Any, names: Sequence[str]) -> list[int]:
    """Return the numbers of the held-out sites.

    Raises:
        ConfigurationError: if the sites are not named.
    """
    given = getattr(data, "held_out_clients", 0)
    wanted = "a list of sites by name, since the server does not draw who takes part in a real federation"
    require(not given or isinstance(given, list), "data.held_out_clients", wanted, given)
    return chosen(given, names, seed=0) if given else []


def _names_here(datamodule: Any, kind: str) -> tuple[str, ...] | None:
    """Return the names of classes or features of the server's validation or test set, or its datamodule; None without names."""
    for name in ("val_dataloader", "test_dataloader"):
        if is_overridden(name, datamodule, LightningDataModule):
            loader = getattr(datamodule, name)()
            first = next(iter(loader.values())) if isinstance(loader, Mapping) else loader
            found = names_of(first[0] if isinstance(first, list | tuple) else first, kind)
            if found is not None:
                return found
    return names_of(datamodule, kind)


def _needs(settings: Any) -> Needs:
    """Return what a strategy reads of every update; on routes other than the server's, it asks for scores itself."""
    if any(option.seals for option in settings.active_options):
        return Needs(sealed=True)
    strategy, route = settings.strategy, settings.route
    rule, metrics = strategy.client_rule(), {"local_score": strategy.local_metric, "global_score": strategy.global_metric}
    scores = [name for name, metric in metrics.items() if metric is not None and isinstance(route, ServerRoute)]
    return Needs(() if rule is None else rule.sends_along, tuple(scores))
