"""Differential privacy of single training examples within a client's training (Abadi et al. 2016, DP-SGD)."""

from __future__ import annotations

from dataclasses import dataclass

from fl_lightning.errors import require
from fl_lightning.functional.privacy import require_package

_NAME = "federation.local.privacy."


@dataclass(frozen=True)
class ExamplePrivacy:
    """Clips each example's gradient and adds Gaussian noise to their sum, in every step of every client.

    The step's gradient is ``(sum_i g_i * min(1, max_grad_norm / |g_i|) + noise) / B``, B the batch size; each example comes
    into a batch with probability B / n, by itself, and an epoch has ceil(n / B) such batches. What the module does after
    that (momentum, FedProx's term, clipping of the whole) costs no privacy. ``federation/epsilon_of_examples`` is what the
    client that trained most has given away of an example; see :func:`~fl_lightning.functional.epsilon_of_examples`.

    The loss must be the mean of a term of each example: ``torch.nn.CrossEntropyLoss`` with class weights is none, the losses
    of this package are.

    Args:
        max_grad_norm: largest L2 norm of an example's gradient, > 0.
        noise_multiplier: sigma > 0; the noise on the sum has the standard deviation sigma * max_grad_norm.
        delta: in (0, 1); below 1 / examples of a client.
        noise_seed: None draws noise and batches from a secret key that is new at each start. With a number they follow from it
            and from 'federation.seed', so that the run can be repeated bit for bit: a simulation that protects no example.

    Raises:
        ConfigurationError: for a value outside its range, or without Opacus.
    """

    max_grad_norm: float
    noise_multiplier: float
    delta: float = 1e-5
    noise_seed: int | None = None

    def __post_init__(self) -> None:
        for name in ("max_grad_norm", "noise_multiplier"):
            value = getattr(self, name)
            require(0 < value < 1e12, _NAME + name, "above 0 and below 1e12", value)
        require(0 < self.delta < 1, _NAME + "delta", "above 0 and below 1", self.delta)
        require_package("opacus", "opacus", "federation.local.privacy")
