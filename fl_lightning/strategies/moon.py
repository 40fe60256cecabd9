"""Correct drift by contrast between models, as MOON does (Li, He and Song 2021, Algorithm 1)."""

from __future__ import annotations

from typing import Literal

from fl_lightning.core.capabilities import ResumeRule
from fl_lightning.errors import require
from fl_lightning.rules.base import ClientRule
from fl_lightning.rules.contrast import ModelContrast
from fl_lightning.strategies.fedavg import FedAvg


class MOON(FedAvg):
    """FedAvg with a contrastive loss: pull the representation z towards the global model's, away from the client's last one's.

    The loss of a batch is the module's own plus ``mu`` times the mean of ``-log(e^(s(z, z_t) / T) / (e^(s(z, z_t) / T) +
    e^(s(z, z_k) / T)))``, with the cosine similarity s, the temperature T, and the representations z_t and z_k by the model
    that the client received and by the one that it sent last. A client stores a second model and passes each batch through
    three.

    Args:
        representation: the submodule whose output, shape (N, ...), is the representation, by its name in the module or the end
            of it after a dot; such as the layer before the last one.
        mu: the weight of the term, >= 0; 0 is FedAvg. The paper chooses it from 0.1, 1, 5 and 10.
        temperature: the temperature T, > 0; the paper uses 0.5.
        weighting: the weighting of the average, as in FedAvg.

    Example:
        >>> from fl_lightning import FederatedOrchestrator, MOON
        >>> federation = FederatedOrchestrator(MOON(representation="layers.10"))
    """

    private_with: tuple[str, ...] = ("central", "local")
    compares_clients = True
    needs_own_training = True
    on_resume = ResumeRule(stays="representation")

    def __init__(
        self,
        representation: str,
        mu: float = 1.0,
        temperature: float = 0.5,
        weighting: Literal["examples", "uniform"] = "examples",
    ) -> None:
        require(mu >= 0, "federation.strategy.mu", "0 or above", mu)
        require(temperature > 0, "federation.strategy.temperature", "above 0", temperature)
        super().__init__(weighting)
        self.representation, self.mu, self.temperature = representation, mu, temperature

    def client_rule(self) -> ClientRule:
        """Return the clients' half."""
        return ModelContrast(self.mu, self.temperature, self.representation)
