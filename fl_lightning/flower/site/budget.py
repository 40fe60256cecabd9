"""Count at a site the privacy that federations spend on its data, and refuse what would exceed the site's budget."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from fl_lightning.errors import ConfigurationError
from fl_lightning.flower.site.data import SiteData
from fl_lightning.flower.site.policy import Budget
from fl_lightning.flower.site.recipe import RefusedError
from fl_lightning.functional.releases import Protected, Release, epsilon_of_releases
from fl_lightning.messages import ClientTask
from fl_lightning.settings.local_training import FederationSettings
from fl_lightning.utilities.ledger import Ledger


@dataclass(frozen=True)
class Paid:
    """Hold a line of the account."""

    time: str
    data: str
    delta: float
    protects: str
    federation: str
    round: int
    release: Release


class SiteBudget:
    """Hold the account of one site's data: a line for each release, on the disk before anything leaves.

    Sites and federations that use the data share the file. A server that has an order repeated pays again, unless the site
    still has its reply.

    Args:
        budget: the budget.
        persons: whether the data name persons, whose rows are protected together.

    Raises:
        ConfigurationError: if there is no account, or it counts something else.
    """

    def __init__(self, budget: Budget, persons: bool) -> None:
        self._budget = budget
        self._ledger = Ledger(Path(budget.account), _paid, ConfigurationError, "Restore it from a copy.")
        protected = "persons" if persons else "rows"
        if budget.protects not in ("site", protected):
            raise ConfigurationError(
                f"'policy.update.noise.budget.protects' is {budget.protects}, but the noise in each step protects {protected} "
                f"of these data{' (person_column)' if persons else ', which name no persons'}. Set it to "
                f"{protected}, or to site."
            )
        if not self._ledger.path.is_file():
            raise ConfigurationError(
                f"'policy.update.noise.budget.account' is '{budget.account}', which does not exist. If no federation "
                "has trained on these data yet, create it as an empty file. Otherwise find it: only it has what they spent."
            )
        self.releases()

    def releases(self) -> list[tuple[str, Release]]:
        """Return the federation and the noise of every release so far, in order.

        Raises:
            ConfigurationError: if the file cannot be read as an account, or counts something else for these data.
        """
        return self._own(self._ledger.read())

    def _own(self, paid: Sequence[Paid]) -> list[tuple[str, Release]]:
        own = [one for one in paid if one.data == self._budget.data]
        other = next((one.protects for one in own if one.protects != self._budget.protects), None)
        if other is not None:
            raise ConfigurationError(
                f"The account '{self._budget.account}' counts the {other} of '{self._budget.data}', but "
                f"'policy.update.noise.budget.protects' is {self._budget.protects}. Epsilons of both have no sum; set it back."
            )
        return [(one.federation, one.release) for one in own]

    def require_noise(self, settings: FederationSettings, task: ClientTask, data: SiteData) -> Release:
        """Return what a task releases.

        Raises:
            RefusedError: if the settings add no noise that protects what the budget counts.
        """
        wanted: Protected = "clients" if self._budget.protects == "site" else "examples"
        attempts = 1 + settings.faults.retries
        for option in settings.active_options:
            release = option.released(task, data, settings.local, attempts)
            if release is not None and release.protects == wanted:
                return release
        how = "to each message of the client" if wanted == "clients" else "in each step of the training"
        raise RefusedError(
            f"This site has a budget for its {self._budget.protects}, but the order adds no noise that protects them. "
            f"Add noise {how}: docs/real_federation.md shows the setting."
        )

    def charge(self, federation: str, task: ClientTask, settings: FederationSettings, data: SiteData) -> None:
        """Write down what a task releases, before it trains.

        Raises:
            RefusedError: if it would exceed the budget.
            ConfigurationError: if the line cannot be written; then the site must not train.
        """
        release, budget = self.require_noise(settings, task, data), self._budget

        def check(paid: Sequence[Paid]) -> None:
            before = [one for _, one in self._own(paid)]
            if epsilon_of_releases([*before, release], budget.delta) > budget.max_epsilon:
                raise RefusedError(
                    f"The order would raise epsilon of this site's {budget.protects}, over all federations, above its "
                    f"'policy.update.noise.budget.max_epsilon' of {budget.max_epsilon:g} at delta {budget.delta:g}. Only the "
                    "site can raise that."
                )

        now = datetime.now(timezone.utc).isoformat(timespec="seconds")
        line = Paid(now, budget.data, budget.delta, budget.protects, federation, task.round_idx, release)
        self._ledger.append(asdict(line), check)

    def in_words(self) -> str:
        """Return how much is spent."""
        budget = self._budget
        spent = epsilon_of_releases([release for _, release in self.releases()], budget.delta)
        of = f"{budget.max_epsilon:g} is spent on the {budget.protects} of '{budget.data}' (delta {budget.delta:g})"
        return f"epsilon {spent:.3g} of {of}"

    def table(self) -> list[Sequence[Any]]:
        """Return for each federation its id, its releases, and their epsilon alone."""
        paid = self.releases()
        names = dict.fromkeys(name for name, _ in paid)
        own = {name: [release for of, release in paid if of == name] for name in names}
        return [(name, len(own[name]), f"{epsilon_of_releases(own[name], self._budget.delta):.3g}") for name in names]


def _paid(line: dict[str, Any]) -> Paid:
    paid = Paid(**{**line, "release": Release(**line["release"])})
    if paid.release.count < 0:
        raise ValueError("a release that did not happen")
    return paid
