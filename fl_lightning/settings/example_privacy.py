"""Differential privacy of single training examples within a client's training (Abadi et al. 2016, DP-SGD)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from fl_lightning.core.capabilities import Capability, Need, Removal
from fl_lightning.core.resume_rule import ResumeRule
from fl_lightning.errors import require
from fl_lightning.functional.privacy import require_package
from fl_lightning.utilities.argument_types import checks_types

_NAME = "federation.local.privacy."


@checks_types
@dataclass(frozen=True)
class ExamplePrivacy:
    """Clip each example's gradient and add Gaussian noise to the sum, in every step of every client.

    The gradient of a step is ``(sum_i g_i * min(1, max_grad_norm / |g_i|) + noise) / B``, with batch size B. Each example
    enters a batch independently with probability B / n, and an epoch has ceil(n / B) such batches. What the module does after
    that (momentum, FedProx's term, clipping of the total gradient) costs no privacy. ``federation/epsilon_of_examples`` is the
    privacy loss of one example at the client that trained most; see
    :func:`~fl_lightning.functional.privacy.epsilon_of_examples`.

    The loss must be the mean of one term per example. The losses of this package are; ``torch.nn.CrossEntropyLoss`` with class
    weights is not.

    Args:
        max_grad_norm: largest L2 norm of an example's gradient, > 0.
        noise_multiplier: sigma > 0; the noise on the sum has the standard deviation sigma * max_grad_norm.
        delta: delta of differential privacy, in (0, 1); choose it below 1 / (examples of a client).
        noise_seed: None draws noise and batches from a secret key that is new at each start. With a number, they derive from
            it and from 'federation.seed', so that the run can be repeated bit for bit: a simulation that protects no example.

    Raises:
        ConfigurationError: for a value outside its range, or if Opacus is not installed.
    """

    max_grad_norm: float
    noise_multiplier: float
    delta: float = 1e-5
    noise_seed: int | None = None
    on_resume = ResumeRule(stays="*")

    def __post_init__(self) -> None:
        for name in ("max_grad_norm", "noise_multiplier"):
            value = getattr(self, name)
            require(0 < value < 1e12, _NAME + name, "above 0 and below 1e12", value)
        require(0 < self.delta < 1, _NAME + "delta", "above 0 and below 1", self.delta)
        require_package("opacus", "opacus", "federation.local.privacy")

    def removes(self) -> Iterator[Removal]:
        """Return what the noise takes away: what clients keep has none."""
        why = "'federation.local.privacy' does not cover what clients keep"
        yield Removal(Capability.OPEN_HOLDINGS, why, "remove 'federation.local.privacy'")

    def needs(self) -> Iterator[Need]:
        """Return what the noise needs: that it reaches all that training changes."""
        name = "'federation.local.privacy'"
        yield Need(Capability.FIXED_TENSORS, f"{name} does not cover such tensors", f"Remove {name}")

    def provides(self) -> tuple[Capability, ...]:
        """Return nothing."""
        return ()
