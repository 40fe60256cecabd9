"""Average normalised updates, as FedNova does (Wang et al. 2020, eq. 8 and section 4; FedNova thesis, section 5.5)."""

from __future__ import annotations

import torch
from torch import Tensor

from fl_lightning.errors import ClientError, ConfigurationError
from fl_lightning.functional.sums import Sums
from fl_lightning.strategies.base import RunningStrategy
from fl_lightning.types import ClientUpdate, RoundStart


class FedNova(RunningStrategy):
    """Average normalised updates: ``w_{t+1} = w_t - tau_eff * sum_k p_k (w_t - w_k) / ||a_k||``, p_k = n_k / n.

    Here tau_eff = sum_k p_k ||a_k||. With this rule, a client that takes more steps than others does not pull the average
    towards its own optimum. ||a_k|| follows from the client's optimizer, step by step
    (:class:`~fl_lightning.functional.StepCoefficients`): SGD with or without momentum, with or without a proximal term.
    Buffers such as BatchNorm's statistics are averaged with weights p_k.

    Example:
        >>> from fl_lightning import FederatedOrchestrator, FedNova, LocalTraining
        >>> federation = FederatedOrchestrator(FedNova(), local=LocalTraining(max_epochs=5))
    """

    reads = ("examples", "normalizer")
    private_with: tuple[str, ...] = ("local", "examples")
    needs_own_training = True
    needs_fresh_optimizers = True

    def start_round(self, start: RoundStart) -> None:
        """Keep w_t."""
        self._start = start

    def sum_sizes(self, size: int, parameters: int) -> dict[str, int]:
        """See :meth:`RunningStrategy.sum_sizes`."""
        return {"parameters": parameters, "inverse": 1, "buffers": size - parameters, "coefficients": 1, "examples": 1}

    def accumulate(self, update: ClientUpdate, sums: Sums) -> float:
        """Add an update; see :meth:`RunningStrategy.accumulate`.

        Raises:
            ConfigurationError: if FedNova has no rule for the client's optimizer.
            ClientError: if the coefficients cancel out.
        """
        if update.normalizer is None:
            raise ConfigurationError(
                f"FedNova does not support the clients' optimizer, {update.optimizer}. It supports torch.optim.SGD, plain or "
                "with momentum, dampening, Nesterov momentum and a proximal term in any combination, if all parameters use the "
                "same settings. Use one of these, or another strategy."
            )
        if not update.normalizer > 0:
            raise ClientError(
                f"The coefficients of client {update.client}'s gradients add up to {update.normalizer}: its proximal term "
                "undoes its steps, or its learning rate was 0. Lower 'federation.local.proximal_mu' or the momentum, or raise "
                "the learning rate."
            )
        examples, p = float(update.num_examples), self._start.num_parameters
        sums.add("parameters", update.snapshot.vector[:p], examples / update.normalizer)
        sums.add("inverse", examples / update.normalizer)
        sums.add("buffers", update.snapshot.vector[p:], examples)
        sums.add("coefficients", examples * update.normalizer)
        sums.add("examples", examples)
        return examples

    def influence(self, update: ClientUpdate) -> float:
        """Return n_k / ||a_k||: a client that claims a small normalizer has a large part in the step."""
        return update.weight / (update.normalizer or 1.0)

    def aggregate(self, sums: Sums) -> Tensor:
        """Return w_t moved by the normalised step, with averaged buffers."""
        start = self._start.server_state[: self._start.num_parameters].to(sums.device, torch.float64)
        total = sums.scalar("examples")
        direction = (start * sums.scalar("inverse") - sums.value("parameters")) / total
        moved = start - sums.scalar("coefficients") / total * direction
        return torch.cat([moved, sums.value("buffers") / total])
