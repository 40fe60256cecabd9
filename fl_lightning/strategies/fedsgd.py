"""Average one gradient per client and round, as FedSGD does (McMahan et al. 2017, section 2)."""

from __future__ import annotations

from fl_lightning.errors import ConfigurationError
from fl_lightning.functional.sums import Sums
from fl_lightning.strategies.fedavg import FedAvg
from fl_lightning.types import ClientUpdate


class FedSGD(FedAvg):
    """Average one gradient per client: ``w_{t+1} = w_t - eta * sum_k n_k / n * g_k``.

    g_k is the gradient of client k's mean loss at w_t. Each client takes one step of plain SGD at the rate eta on all its
    examples: set ``federation.local.full_batch`` to true and train one epoch. Averaging the results gives the step above.

    Example:
        >>> from fl_lightning import FederatedOrchestrator, FedSGD, LocalTraining
        >>> federation = FederatedOrchestrator(FedSGD(), local=LocalTraining(full_batch=True))
    """

    private_with: tuple[str, ...] = ("local", "examples")
    needs_own_training = True
    needs_full_batch = True

    def __init__(self) -> None:
        super().__init__("examples")
        self.reads = ("examples", "steps", "normalizer")

    def accumulate(self, update: ClientUpdate, sums: Sums) -> float:
        """Add an update; see :meth:`RunningStrategy.accumulate`.

        Raises:
            ConfigurationError: if the client did not take exactly one step, or used an optimizer other than SGD.
        """
        if update.normalizer is None:
            raise ConfigurationError(
                f"FedSGD takes one step of SGD, but the clients train with {update.optimizer}. Let the module's "
                "'configure_optimizers' return torch.optim.SGD, or use FedAvg."
            )
        if update.num_steps != 1:
            raise ConfigurationError(
                f"FedSGD averages one gradient per client, but client {update.client} took {update.num_steps} steps. Set "
                "'federation.local.full_batch' to true and 'federation.local.max_epochs' to 1, or use FedAvg."
            )
        return super().accumulate(update, sums)
