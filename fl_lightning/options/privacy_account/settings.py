"""Define the options whose releases cost privacy, which one account counts."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from fl_lightning.core.capabilities import Capability, Need
from fl_lightning.core.option import OptionSettings
from fl_lightning.errors import ConfigurationError, require
from fl_lightning.functional.keyed_noise import SecretKey
from fl_lightning.functional.releases import Case, Protected, Release, epsilon_of_releases
from fl_lightning.functional.spending import Entry, Spending, Spendings
from fl_lightning.messages import ClientTask

if TYPE_CHECKING:
    from fl_lightning.core.federation import Federation, ServerContext
    from fl_lightning.core.plan import RoundPlan
    from fl_lightning.data.federated import FederatedDataModule
    from fl_lightning.functional.model_state import ModelState


class PrivateOption(OptionSettings):
    """Hold the settings of differential privacy, of clients or of examples.

    Attributes:
        noise_multiplier: the noise multiplier; None if it is solved for ``target_epsilon``.
        target_epsilon: the largest epsilon of the whole run; None if the noise is given.
        extend: whether a resumed run may have more rounds, for which the noise is solved again.
        delta: delta.
        noise_seed: the number from which the noise is derived; None for a secret key.
        unit: what the noise protects, for metrics.
        no_rebalancing: why the data must not repeat examples, after the name of the setting that does.
    """

    noise_multiplier: float | None
    target_epsilon: float | None
    extend: bool
    delta: float
    noise_seed: int | None
    unit: ClassVar[Protected]
    no_rebalancing: ClassVar[str]
    protects = True
    _solved = None

    def _check_noise(self, name: str) -> None:
        """Refuse both or none of the noise and of the epsilon that it is solved for, and values outside their ranges."""
        noise, target = self.noise_multiplier, self.target_epsilon
        if (noise is None) == (target is None):
            given = "neither is set" if noise is None else f"they are {noise} and {target}"
            raise ConfigurationError(
                f"'{name}' needs exactly one of 'noise_multiplier' and 'target_epsilon', but {given}. Set 'target_epsilon' to "
                "the largest epsilon of the whole run, from which the noise is solved, or 'noise_multiplier' to a noise."
            )
        require(noise is None or 0 < noise < 1e12, f"{name}.noise_multiplier", "above 0 and below 1e12", noise)
        require(target is None or 0 < target < 1e6, f"{name}.target_epsilon", "above 0 and below 1e6", target)
        require(0 < self.delta < 1, f"{name}.delta", "above 0 and below 1", self.delta)
        require(target is not None or not self.extend, f"{name}.extend", "false without 'target_epsilon'", self.extend)

    def needs(self) -> Iterator[Need]:
        """Return what a target needs: rounds whose number limits the turns of a client."""
        yield from super().needs()
        if self.target_epsilon is not None:
            what = f"'target_epsilon' of {self.title} needs rounds that draw a cohort, to know how often a client may train"
            yield Need(Capability.COHORTS, what, "Set 'noise_multiplier' instead")

    @property
    def multiplier(self) -> float:
        """Return the noise multiplier, given or solved.

        Raises:
            ConfigurationError: if it has not been solved, which happens at the server, at the start of a fit.
        """
        found = self._solved if self.noise_multiplier is None else self.noise_multiplier
        if found is None:
            raise ConfigurationError(
                f"The noise of {self.title} has not been solved for 'target_epsilon' {self.target_epsilon}, which happens at "
                "the server, at the start of a fit. Set 'noise_multiplier' instead."
            )
        return found

    def use_noise(self, multiplier: float | None) -> None:
        """Take the noise multiplier that was solved for the target."""
        object.__setattr__(self, "_solved", multiplier)

    def sent_to_sites(self) -> Mapping[str, Any]:
        """Return the solved noise, which a site compares with its policy, in place of the target."""
        solved = {"noise_multiplier": self.multiplier, "target_epsilon": None, "extend": False}
        return {} if self.target_epsilon is None else solved

    def begin(self, state: Mapping[str, Any]) -> None:
        """Begin a fit with the state of a checkpoint; empty without one."""

    def state(self) -> dict[str, Any]:
        """Return what a resumed run needs besides the settings, as plain values."""
        return {}

    def delivered(self, federation: Federation, clients: Iterable[int]) -> None:
        """Learn whose updates the server has; ranks may exchange data."""

    def after_round(self, federation: Federation, round_idx: int, clients: int) -> None:
        """Prepare for the next round; ranks may exchange data.

        Args:
            federation: the parts of the federation.
            round_idx: the communication round, from 0.
            clients: the number of clients that were to train in it.
        """

    @abstractmethod
    def planned(self, federation: Federation, plan: RoundPlan, tasks: Sequence[ClientTask]) -> Entry:
        """Return what turns may release at most, before they train."""

    @abstractmethod
    def whole_run(self, context: ServerContext, rounds: int, first: int = 0) -> Spending:
        """Return the most that ``rounds`` rounds, counted from ``first``, may release if no round is repeated."""

    @abstractmethod
    def cases(self, released: Sequence[Spending], data: FederatedDataModule) -> list[Case]:
        """Return what was released of each client, of several that share a person, or of all of them; the worst first.

        Args:
            released: everything that the run has released, by noise.
            data: the data.
        """

    def epsilon(self, noises: Sequence[float], case: Case) -> float:
        """Return epsilon of one of the cases, with the noises that it refers to."""
        return epsilon_of_releases((Release(self.unit, noises[k], rate, count) for k, rate, count in case), self.delta)

    def spent(self, spending: Spendings, data: FederatedDataModule) -> float:
        """Return the largest epsilon of all clients."""
        noises, released = self.noises(spending), [each for _, each in spending.parts]
        return max((self.epsilon(noises, case) for case in self.cases(released, data)), default=0.0)

    def noises(self, spending: Spendings) -> list[float]:
        """Return the noise of each part of a spending."""
        return [noise[self.unit] for noise, _ in spending.parts]

    def epsilon_of(self, client: int, spending: Spendings, data: FederatedDataModule) -> float | None:
        """Return the largest epsilon of a client's examples; None if that is not known."""
        return None

    def check_sent(self, sent: ModelState) -> None:
        """Refuse a module that sends unprotected buffers."""
        _, floats, counters, _ = sent.names()
        if floats or counters:
            raise ConfigurationError(
                f"The clients send the buffers {', '.join([*floats, *counters][:3])} with the parameters, but privacy covers "
                "only the parameters. Use a network without BatchNorm (GroupNorm has no such buffers)."
            )

    def not_at_sites(self) -> Iterable[str]:
        """Return a number that would let the server subtract the noise."""
        return () if self.noise_seed is None else ("noise_seed",)

    def key(self, seed: int) -> SecretKey | None:
        """Return the key of simulated noise, also derived from the federation's seed, so that runs of a study differ."""
        return None if self.noise_seed is None else SecretKey.from_seed(self.noise_seed, seed)
