"""Count at a site the privacy that federations spend on its data, and refuse what would exceed the site's budget."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
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
from fl_lightning.utilities.atomic_file import sync_folder
from fl_lightning.utilities.folder_lock import waiting_for

_FIELDS = {"time", "data", "delta", "protects", "federation", "round", "release"}


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
        self._budget, self._path = budget, Path(budget.account)
        protected = "persons" if persons else "rows"
        if budget.protects not in ("site", protected):
            raise ConfigurationError(
                f"'policy.update.noise.budget.protects' is {budget.protects}, but the noise in each step protects {protected} "
                f"of these data{' (person_column)' if persons else ', which name no persons'}. Set it to "
                f"{protected}, or to site."
            )
        if not self._path.is_file():
            raise ConfigurationError(
                f"'policy.update.noise.budget.account' is '{self._path}', which does not exist. If no federation has trained "
                "on these data yet, create it as an empty file. Otherwise find it: nobody else knows what they have "
                "spent."
            )
        self.releases()

    def releases(self) -> list[tuple[str, Release]]:
        """Return the federation and the noise of every release so far, in order.

        Raises:
            ConfigurationError: if the file cannot be read as an account, or counts something else for these data.
        """
        return self._releases(self._path.read_bytes())

    def _releases(self, content: bytes) -> list[tuple[str, Release]]:
        found = []
        for number, line in enumerate(_complete(content).splitlines(), 1):
            entry = _entry(line)
            if entry is None:
                raise ConfigurationError(f"Line {number} of the account '{self._path}' cannot be read. Restore it from a copy.")
            if entry["data"] != self._budget.data:
                continue
            if entry["protects"] != self._budget.protects:
                raise ConfigurationError(
                    f"The account '{self._path}' counts the {entry['protects']} of '{self._budget.data}', but "
                    f"'policy.update.noise.budget.protects' is {self._budget.protects}. Epsilons of both have no sum; set it "
                    "back."
                )
            found.append((str(entry["federation"]), Release(**entry["release"])))
        return found

    def spent(self) -> float:
        """Return epsilon of all releases so far."""
        return epsilon_of_releases([release for _, release in self.releases()], self._budget.delta)

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
            OSError: if the line cannot be written; then the site must not train.
        """
        release, budget = self.require_noise(settings, task, data), self._budget
        with self._path.open("r+b") as file, waiting_for(file):
            known = file.read()
            before = [one for _, one in self._releases(known)]
            if epsilon_of_releases([*before, release], budget.delta) > budget.max_epsilon:
                raise RefusedError(
                    f"The order would raise epsilon of this site's {budget.protects}, over all federations, above its "
                    f"'policy.update.noise.budget.max_epsilon' of {budget.max_epsilon:g} at delta {budget.delta:g}. Only the "
                    "site can raise that."
                )
            line = {
                "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
                "data": budget.data,
                "delta": budget.delta,
                "protects": budget.protects,
                "federation": federation,
                "round": task.round_idx,
                "release": asdict(release),
            }
            complete = _complete(known)
            file.seek(min(len(known), len(complete)))
            file.write(complete[len(known) :] + json.dumps(line).encode() + b"\n")
            file.truncate()
            file.flush()
            os.fsync(file.fileno())
        sync_folder(self._path.parent)

    def in_words(self) -> str:
        """Return how much is spent."""
        budget = self._budget
        return (
            f"epsilon {self.spent():.3g} of {budget.max_epsilon:g} is spent on the {budget.protects} of '{budget.data}' "
            f"(delta {budget.delta:g})"
        )

    def table(self) -> list[Sequence[Any]]:
        """Return for each federation its id, its releases, and their epsilon alone."""
        by_federation: dict[str, list[Release]] = {}
        for federation, release in self.releases():
            by_federation.setdefault(federation, []).append(release)
        return [
            (federation, len(own), f"{epsilon_of_releases(own, self._budget.delta):.3g}")
            for federation, own in by_federation.items()
        ]


def _complete(content: bytes) -> bytes:
    """Return the lines without a last one that a kill cut off; if an editor has left out only its end, with that."""
    end = content.rfind(b"\n") + 1
    return content[:end] if _entry(content[end:]) is None else content + b"\n"


def _entry(line: bytes) -> Mapping[str, Any] | None:
    """Return the content of a line; None if it is not one of an account."""
    try:
        entry = json.loads(line)
        whole = isinstance(entry, dict) and entry.keys() == _FIELDS and Release(**entry["release"]).count >= 0
    except (ValueError, TypeError):
        return None
    return entry if whole else None
