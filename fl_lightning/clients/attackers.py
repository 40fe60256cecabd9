"""Clients that harm the federation (AdaFed, section 4.0.3, Simulation 3)."""

from __future__ import annotations

from dataclasses import dataclass, field

from fl_lightning.errors import require


@dataclass(frozen=True)
class Attackers:
    """Which clients misbehave, and how: two separate switches, whatever the strategy or the route.

    In Simulation 3 two clients more, 6 and 7, hold the distributions of clients 2 and 3 with half and all of the labels
    wrong, and both discard the global model.

    Args:
        wrong_labels: by client, the share in [0, 1] of its labels that are wrong; a wrong label is another class, drawn
            once for all rounds.
        discard_global: clients that go on from their own last weights instead of the global model; in the first round
            they have none yet and take it.

    Raises:
        ConfigurationError: for a share outside [0, 1].
    """

    wrong_labels: dict[int, float] = field(default_factory=dict)
    discard_global: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        for client, share in self.wrong_labels.items():
            require(0 <= share <= 1, f"federation.attackers.wrong_labels.{client}", "a share from 0 to 1", share)

    def check(self, num_clients: int) -> None:
        """Refuse clients that do not exist.

        Raises:
            ConfigurationError: naming the setting.
        """
        known = f"clients from 0 to {num_clients - 1}"
        for setting, clients in (("wrong_labels", self.wrong_labels), ("discard_global", self.discard_global)):
            strangers = [client for client in clients if not 0 <= client < num_clients]
            require(not strangers, f"federation.attackers.{setting}", known, strangers)
