"""Plan a round: draw the clients that take part."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from fl_lightning.errors import ClientError
from fl_lightning.functional.scheduling import draw_cohort

if TYPE_CHECKING:
    from fl_lightning.functional.keyed_noise import SecretKey
    from fl_lightning.routes.base import Chains
    from fl_lightning.settings.server import Faults


@dataclass(frozen=True, kw_only=True)
class RoundPlan:
    """Hold who takes part in a round, the same on every rank.

    Attributes:
        round_idx: the communication round, from 0.
        seed: the seed of what happens to the cohort, which is as secret as the cohort.
        cohort: the clients that were drawn, ascending.
        clients: those of them that train, ascending.
        lost: those that drop out, ascending.
        deliver: trains the chains of a route for the strategy in another way than all at once from the global model, by the
            methods of the round that it gets; None for that way.
    """

    round_idx: int
    seed: int
    cohort: tuple[int, ...]
    clients: tuple[int, ...]
    lost: tuple[int, ...] = ()
    deliver: Callable[[Any, Chains], None] | None = None


class PlanHooks(Protocol):
    """The hooks of an option that change plans; see :class:`~fl_lightning.ServerHooks`."""

    def candidates(self, round_idx: int, clients: Sequence[int]) -> Sequence[int]:
        """Return the clients from which a round may draw."""

    def plan(self, plan: RoundPlan) -> RoundPlan:
        """Return the plan that follows a draw."""

    def duration(self, client: int, round_idx: int, ticks: float) -> float:
        """Return how long a client trains."""


@dataclass(frozen=True, kw_only=True)
class ClientSampler:
    """Draw the rounds of a federation.

    Args:
        num_clients: the number K of clients in the federation.
        clients_per_round: the clients per round, as a fraction or a number.
        faults: the settings of failures, with the smallest number of updates.
        seed: the seed of the federation.
        secret: the key from which to draw cohorts, and what happens to them, if they must stay secret; None to use the seed.
        hooks: the hooks of the options in use, in order.
        remedies: what a user can do so that no option loses clients, as orders in lower case.
    """

    num_clients: int
    clients_per_round: int | float
    faults: Faults
    seed: int
    secret: SecretKey | None = None
    hooks: Sequence[PlanHooks] = ()
    remedies: Sequence[str] = ()

    def round(self, round_idx: int) -> RoundPlan:
        """Return the draw of a round.

        Args:
            round_idx: the communication round, from 0.

        Raises:
            ClientError: if fewer clients remain than the round needs.
        """
        clients, seed, order = self.candidates(round_idx), self.seed, None
        if self.secret is not None:
            seed, order = self.secret.stream("cohort's seed", round_idx).integer(), self.order(self.secret, round_idx)
        cohort = draw_cohort(self.num_clients, self.clients_per_round, seed, round_idx, clients, order)
        plan = self.followed(RoundPlan(round_idx=round_idx, seed=seed, cohort=cohort, clients=cohort))
        needed = max(1, self.faults.needed(len(plan.cohort)))
        if len(plan.clients) < needed:
            raise ClientError(
                f"Round {round_idx}: {len(plan.clients)} of {self.num_clients} clients are available, but the round needs "
                f"{needed}. " + self.advice("Lower 'federation.faults.min_updates'")
            )
        return plan

    def candidates(self, round_idx: int) -> Sequence[int]:
        """Return the clients that a round may draw."""
        clients: Sequence[int] = range(self.num_clients)
        for hook in self.hooks:
            clients = hook.candidates(round_idx, clients)
        return clients

    def order(self, secret: SecretKey, round_idx: int) -> Sequence[int]:
        """Return all clients in a secret order in which a round prefers them."""
        return secret.stream("cohort", round_idx).permutation(self.num_clients)

    def followed(self, plan: RoundPlan) -> RoundPlan:
        """Return a plan after what happens to its cohort."""
        for hook in self.hooks:
            plan = hook.plan(plan)
        return plan

    def advice(self, first: str) -> str:
        """Return what a user can do if too few clients are left, as a sentence."""
        return ", or ".join([first, *self.remedies]) + "."
