"""Define where options act: hooks at the server and hooks where clients train, each of which does nothing by default."""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from lightning.pytorch import Callback, Trainer
from torch import Tensor, nn

from fl_lightning.core.capabilities import Capability
from fl_lightning.errors import ClientError
from fl_lightning.messages import ClientTask
from fl_lightning.types import ClientUpdate

if TYPE_CHECKING:
    from fl_lightning.clients.client_data import ClientData
    from fl_lightning.clients.judging import UpdateEditor
    from fl_lightning.data.federated import FederatedDataModule
    from fl_lightning.data.poisson_loader import PoissonBatches
    from fl_lightning.functional.exact_moments import Moments
    from fl_lightning.functional.keyed_noise import SecretKey
    from fl_lightning.routes.base import Chains
    from fl_lightning.server.federation import Federation
    from fl_lightning.server.round import FederationRound
    from fl_lightning.server.round_result import RoundResult
    from fl_lightning.server.round_sums import RoundSums
    from fl_lightning.server.sampling import ClientSampler, RoundPlan
    from fl_lightning.settings.federation import FederationSettings
    from fl_lightning.strategies.base import Strategy
    from fl_lightning.utilities.collectives import Collectives


USUAL_TICKS = 1000
"""How long a client trains in simulated time, unless an option says otherwise."""


@dataclass(frozen=True, kw_only=True)
class ServerContext:
    """Describe the fit that an option is opened for.

    Attributes:
        trainer: the user's Trainer.
        data: the data, divided among the clients.
        settings: the settings of the federation.
        cohort: the number of clients in a round.
        synchronous: whether each round draws a cohort and waits for all of it.
        removed: the capabilities that parts of the federation take away from the others.
        held: returns the parameters and buffers that a simulated client holds, by name; empty before its first training.
    """

    trainer: Trainer
    data: FederatedDataModule
    settings: FederationSettings
    cohort: int
    synchronous: bool
    removed: frozenset[Capability]
    held: Callable[[int], Mapping[str, Tensor]]

    @property
    def seed(self) -> int:
        """Return the seed of the federation."""
        return self.settings.seed


@dataclass(frozen=True, kw_only=True)
class SitePlace:
    """Describe the site of a client that is not simulated, and what its staff has decided.

    Attributes:
        name: the site's name.
        key: its private key, in OpenSSH's format.
        peers: the public keys of the other sites that its staff trusts, by name, in OpenSSH's format.
        folder: the folder for what must outlive a restart.
        federation: the id of the federation.
        contract: the digest of all settings that the server has sent.
        min_cohort: the fewest sites of a sum that it takes part in.
        told: returns an update with the figures that may leave.
        moments: returns the sums of its inputs, which may leave inside of a sum over sites, or refuses.
        hides_sizes: whether numbers of examples and steps leave only in sums.
    """

    name: str
    key: bytes
    peers: Mapping[str, bytes]
    folder: Path
    federation: str
    contract: str
    min_cohort: int
    told: Callable[[ClientUpdate], ClientUpdate]
    moments: Callable[[], Moments]
    hides_sizes: bool = False


@dataclass(frozen=True, kw_only=True)
class ClientContext:
    """Describe the place where an option's clients train.

    Attributes:
        num_clients: the number of clients in the federation.
        seed: the seed of the federation.
        device: the device on which they train.
        kept: returns a client's tensors of this option, by name, for reading and writing. They are in checkpoints, and are
            taken back if the server does not use the client's update.
        secret: the key of random numbers that must hide something.
        strategy: the strategy; in a simulation the server's own, which must not be changed.
        place: the site; None for simulated clients.
        numbers: returns the whole numbers that a client adds to those of the others before round 0, by the name of what the
            hooks at the server add up; see ``ServerHooks.add_up``.
    """

    num_clients: int
    seed: int
    device: torch.device
    kept: Callable[[int], MutableMapping[str, Tensor]]
    secret: SecretKey
    strategy: Strategy
    place: SitePlace | None = None
    numbers: Callable[[int, str], Sequence[int]] = lambda client, what: ()


class ServerHooks:
    """Act at the server, on every rank alike. Each method does nothing unless a subclass defines it."""

    def held(self, module: nn.Module) -> Sequence[str]:
        """Return the names of parameters and buffers of which each client keeps its own: they are neither sent nor averaged."""
        return ()

    def restored(self) -> None:
        """Learn that a checkpoint's state, if any, has been restored, before the clients are built or sites are asked.

        Ranks may exchange data.
        """

    def open(self, federation: Federation) -> None:
        """Take the parts of the federation when all are built, with a checkpoint's state restored, before the first round.

        Ranks may exchange data.
        """

    def add_up(self, federation: Federation, what: str, size: int) -> Sequence[int] | None:
        """Return the totals of whole numbers over all clients, before round 0; None if the server may see those of each client.

        A class with it sets ``seals``.

        Args:
            federation: the parts of the federation.
            what: the name of what is added up; the hooks at the clients get their part by it (``ClientContext.numbers``).
            size: how many numbers each client has.

        Raises:
            ClientError: if too few clients answer.
        """
        return None

    def begin_round(self, round_idx: int) -> None:
        """Prepare for a round, before its clients are drawn."""

    def candidates(self, round_idx: int, clients: Sequence[int]) -> Sequence[int]:
        """Return those of the given clients, ascending, from which a round may draw its own."""
        return clients

    def plan(self, plan: RoundPlan) -> RoundPlan:
        """Return the plan that follows a draw of clients, instead of the given one: who of them trains, and who is lost.

        What depends only on the plan, and on its seed, is the same on every rank and in a resumed run.
        """
        return plan

    def duration(self, client: int, round_idx: int, ticks: float) -> float:
        """Return how long a client's training from the model of a round takes in simulated time, instead of the given ticks.

        Only rounds that do not wait for all of their clients ask for it.
        """
        return ticks

    def task(self, task: ClientTask) -> ClientTask:
        """Return the task that a client gets instead of the given one. Every rank asks for all tasks of a round."""
        return task

    def sampler(self, sampler: ClientSampler) -> ClientSampler:
        """Return what plans the rounds, instead of the given sampler; see ``OptionSettings.cohort``."""
        return sampler

    def deliver(self, current: FederationRound, chains: Chains) -> bool:
        """Train chains for the strategy in another way, by the methods of the round, and return whether that has been done."""
        return False

    def charge(self, federation: Federation, round_idx: int, plan: RoundPlan, tasks: Sequence[ClientTask]) -> None:
        """Learn which tasks are about to begin, before any of them does; ranks may exchange data.

        Args:
            federation: the parts of the federation.
            round_idx: the communication round, from 0; a task of an asynchronous round may have begun in an earlier one.
            plan: the clients that take part.
            tasks: the tasks of all ranks. A round of several periods begins those of each period at once.
        """

    def drained(self, federation: Federation, round_idx: int, updates: list[ClientUpdate]) -> list[ClientUpdate]:
        """Return the updates of all ranks as callbacks and logs get them, after all clients have trained.

        They do not hold models. Ranks may exchange data.
        """
        return updates

    def round_sums(self, federation: Federation, round_idx: int, plan: RoundPlan) -> RoundSums | None:
        """Return what adds up the updates of a round, for a strategy that needs only sums; None for plain sums."""
        return None

    def before_step(self, result: RoundResult) -> None:
        """Learn the result of a round before the server changes the global model by it."""

    def after_round(self, federation: Federation, round_idx: int, result: RoundResult) -> dict[str, float]:
        """Return metrics of a round, logged as ``federation/<name>``, after the global model has been set."""
        return {}

    def end_round(self, round_idx: int, tasks: Sequence[ClientTask]) -> dict[str, float]:
        """Return metrics of the new global model by their full names, after the round has been timed and logged.

        The module logs them, so that callbacks can monitor them.

        Args:
            round_idx: the communication round, from 0.
            tasks: the turns of the round's clients, on all ranks.
        """
        return {}

    def conclude(self, rounds: int) -> None:
        """Act after the last round of a fit.

        Args:
            rounds: the number of rounds so far, also those before the run was resumed.
        """

    def state_dict(self) -> dict[str, Any]:
        """Return the state that a resumed run needs, as tensors and plain values; also after :meth:`close`."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state."""

    def close(self) -> None:
        """Release what the option holds at the end of a fit, also after an error."""


class ClientHooks:
    """Act where clients train. Each method does nothing unless a subclass defines it."""

    @property
    def callbacks(self) -> Sequence[Callback]:
        """Return Lightning callbacks for the clients' fits; they come first, and all clients share them."""
        return ()

    def batches(self, task: ClientTask, data: ClientData, full_batch: bool) -> PoissonBatches | None:
        """Return the batches of a fit that is about to begin, also of a repeated one; None for those of the datamodule.

        Args:
            task: the client's task.
            data: the clients' examples.
            full_batch: whether a client trains on all its examples in one batch.
        """
        return None

    @property
    def waits(self) -> bool:
        """Return whether some clients' updates of this round wait for those of all others; the same on every rank."""
        return False

    def begin(self, round_idx: int, editor: UpdateEditor) -> None:
        """Prepare for the updates of a new global model.

        Args:
            round_idx: the communication round, from 0.
            editor: reads and replaces the changes in updates.
        """

    def send(self, update: ClientUpdate) -> ClientUpdate | None:
        """Return the update that a client sends instead of the given one; None to be asked again after :meth:`drained`."""
        return update

    def seal(self, task: ClientTask, update: ClientUpdate) -> ClientUpdate:
        """Return what leaves for the server instead of an update that transforms have changed and scores complete.

        Args:
            task: the client's task.
            update: the update.
        """
        return update

    def answer(self, client: int, content: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the answer to a message of the option's hooks at the server.

        It comes by :meth:`~fl_lightning.clients.pool.ClientPool.ask`.

        Args:
            client: the client that is asked.
            content: the message, as plain values; at a site from a stranger.

        Raises:
            ClientError: if the client does not answer it.
        """
        raise ClientError("This option answers no messages.")

    def drained(self, comm: Collectives, waiting: int) -> None:
        """Learn that all updates that do not wait have been sent; ranks may exchange data.

        Args:
            comm: the ranks.
            waiting: the number of updates that wait on this rank.
        """

    def counts(self) -> dict[str, dict[int, int]]:
        """Return what the hooks at the server read from the pool's ``counts``: by name, a number for each client.

        The numbers count from the last call.
        """
        return {}
