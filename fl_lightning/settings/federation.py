"""The settings of a whole federation, as the server's code reads them."""

from __future__ import annotations

from typing import Protocol

from fl_lightning.core import federation
from fl_lightning.core.option import OptionSettings
from fl_lightning.settings.local_training import LocalTraining


class FederationSettings(federation.FederationSettings, Protocol):
    """Name the settings of :class:`~fl_lightning.FederatedOrchestrator`, which documents them."""

    local: LocalTraining

    @property
    def active_options(self) -> tuple[OptionSettings, ...]:
        """Return the options in use, in the order of their hooks."""
        ...
