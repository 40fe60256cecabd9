"""Implement Yogi (Zaheer et al. 2018), for the server as in FedYogi (Reddi et al. 2021, Algorithm 2)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from fl_lightning.errors import require
from fl_lightning.utilities.argument_types import ChecksTypes


class Yogi(ChecksTypes, torch.optim.Optimizer):
    """Step by Yogi's rule, Adam with an additive update of the variance.

    The rule is ``m <- b1 m + (1 - b1) g; v <- v - (1 - b2) g^2 sign(v - g^2); w <- w - lr m / (sqrt(v) + eps)``. As in
    FedYogi, it does not correct bias; m starts at 0 and v at ``eps ** 2``.

    Args:
        params: the parameters or groups of them.
        lr: the learning rate, > 0.
        betas: b1 and b2, each in [0, 1).
        eps: tau of the paper, the degree of adaptivity, above 0 and at most 1e15; 1e-3 in the paper.

    Raises:
        ConfigurationError: if a value is outside its range.
    """

    def __init__(
        self, params: Iterable[nn.Parameter], lr: float = 0.01, betas: tuple[float, float] = (0.9, 0.99), eps: float = 1e-3
    ) -> None:
        require(lr > 0, "Yogi.lr", "above 0", lr)
        require(len(betas) == 2 and all(0 <= beta < 1 for beta in betas), "Yogi.betas", "each at least 0 and below 1", betas)
        require(0 < eps <= 1e15, "Yogi.eps", "above 0 and at most 1e15", eps)
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take one step on the gradients, in place."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._step(parameter, parameter.grad, group)
        return loss

    def _step(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        first, second = group["betas"]
        state = self.state[parameter]
        if not state:
            state["mean"] = torch.zeros_like(parameter)
            state["variance"] = torch.full_like(parameter, group["eps"] ** 2)
        square = gradient.square()
        state["mean"].lerp_(gradient, 1 - first)
        state["variance"].addcmul_(square, torch.sign(state["variance"] - square), value=-(1 - second))
        parameter.addcdiv_(state["mean"], state["variance"].sqrt().add_(group["eps"]), value=-group["lr"])
