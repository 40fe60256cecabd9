"""Define the options whose releases cost privacy, which one account counts."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, ClassVar

from fl_lightning.core.hooks import ServerContext, ServerHooks
from fl_lightning.core.option import OptionSettings
from fl_lightning.errors import ConfigurationError
from fl_lightning.functional.keyed_noise import SecretKey
from fl_lightning.functional.spending import Entry, Spending
from fl_lightning.messages import ClientTask

if TYPE_CHECKING:
    from fl_lightning.functional.model_state import ModelState
    from fl_lightning.server.federation import Federation
    from fl_lightning.server.sampling import RoundPlan


class PrivateOption(OptionSettings):
    """Hold the settings of differential privacy, of clients or of examples.

    Attributes:
        noise_seed: the number from which the noise is derived; None for a secret key.
        no_rebalancing: why the data must not repeat examples, after the name of the setting that does.
    """

    noise_seed: int | None
    no_rebalancing: ClassVar[str]
    protects = True

    @abstractmethod
    def planned(self, federation: Federation, plan: RoundPlan, tasks: Sequence[ClientTask]) -> Entry:
        """Return what turns may release at most, before they train."""

    @abstractmethod
    def epsilons(self, spending: Spending, population: int) -> dict[str, float]:
        """Return the privacy that the run has spent, for the log.

        Args:
            spending: everything that the run has released.
            population: the number of clients in the federation.
        """

    def epsilon_of(self, client: int, spending: Spending) -> float | None:
        """Return what a client has spent on each of its examples; None if that is not known."""
        return None

    def check_sent(self, sent: ModelState) -> None:
        """Refuse a module that sends unprotected buffers."""
        from fl_lightning.options.privacy_account.checks import check_sent_buffers

        check_sent_buffers(sent)

    def not_at_sites(self) -> Iterable[str]:
        """Return a number that would let the server subtract the noise."""
        return () if self.noise_seed is None else ("noise_seed",)

    def key(self, seed: int) -> SecretKey | None:
        """Return the key of simulated noise, also derived from the federation's seed, so that runs of a study differ."""
        return None if self.noise_seed is None else SecretKey.from_seed(self.noise_seed, seed)

    def at_server(self, context: ServerContext) -> ServerHooks:
        """Return the account of all such options, with the first of them; the others have no hooks at the server.

        Raises:
            ConfigurationError: if the data depend on other examples or clients, or if only one of two noises is simulated.
        """
        from fl_lightning.options.privacy_account.checks import check_data
        from fl_lightning.options.privacy_account.server import PrivacyAccount

        check_data(context.data, self.title, self.no_rebalancing)
        private = [option for option in context.settings.active_options if isinstance(option, PrivateOption)]
        one, other = private[0], private[-1]
        if one.noise_seed != other.noise_seed:
            raise ConfigurationError(
                f"'noise_seed' of {other.title} is {other.noise_seed}, but 'noise_seed' of {one.title} is {one.noise_seed}. "
                "Set both to the same number for a simulation, or remove both."
            )
        known = [option.title for option in context.settings.active_options if option.key(context.seed) is not None]
        if known and self.noise_seed is None:
            raise ConfigurationError(
                f"{known[0]} sets the key of secret random numbers, from which the noise of {self.title} could be subtracted. "
                "Remove one of them."
            )
        return PrivacyAccount(private, context) if private[0] is self else ServerHooks()
