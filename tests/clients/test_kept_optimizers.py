"""With ``optimizer_state: kept``, a client's optimizers continue as in one long training, whatever they remember."""

from typing import Any

import pytest
import torch
from engine_runs import Manual, variant
from federations import Plain, federate
from plain_training import distance_from_plain
from torch.nn import functional as F
from torch.optim import SGD, Adam, Optimizer
from torch.optim.lr_scheduler import LambdaLR, StepLR

from fl_lightning import ConfigurationError, LocalTraining


class Counting(SGD):
    """Takes shorter steps as an attribute of its own counts them, and its groups, as in several optimizers."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, lr=0.1)
        self.count, self.sizes = 0, [1.0]

    def step(self, closure: Any = None) -> Any:
        self.count += 1
        self.sizes.append(self.sizes[-1] * 0.97)
        loss = None if closure is None else closure()
        for group in self.param_groups:
            group["k"] = group.get("k", 0) + 1
            group["lr"] = 0.3 / group["k"]
            for parameter in group["params"]:
                parameter.data.add_(parameter.grad, alpha=-group["lr"] * self.sizes[-1] / (1 + self.count / 10))
        return loss


class Around(Optimizer):
    """Steps with an optimizer within it, whose groups it shares, as implementations of SAM do."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.02})
        self.base_optimizer = Adam(self.param_groups, lr=0.02)
        self.param_groups = self.base_optimizer.param_groups
        self.defaults.update(self.base_optimizer.defaults)

    def step(self, closure: Any = None) -> Any:
        return self.base_optimizer.step(closure)


class Saving(SGD):
    """Saves more than its state: the mean of its gradients' sums."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, lr=0.1)
        self._mean = torch.zeros((), dtype=torch.float64)

    def state_dict(self) -> Any:
        return {**super().state_dict(), "mean": {"value": self._mean, "of": [1, "sum"]}}

    def load_state_dict(self, state: Any) -> None:
        self._mean = state.pop("mean")["value"].clone()
        super().load_state_dict(state)

    def step(self, closure: Any = None) -> Any:
        loss = closure()
        self._mean = 0.5 * self._mean + sum(p.grad.sum() for group in self.param_groups for p in group["params"])
        for parameter in self.param_groups[0]["params"]:
            parameter.data.sub_(0.1 * parameter.grad + 0.001 * self._mean)
        return loss


def using(kind: Any) -> Any:
    return type(kind.__name__, (Plain,), {"configure_optimizers": lambda module: kind(module.parameters())})


class Pending(Plain):
    """Steps on the gradients of three batches, whichever turns they are in."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization, self.batches = False, 0

    def training_step(self, batch: Any, batch_idx: int) -> None:
        self.manual_backward(F.cross_entropy(self(batch[0]), batch[1]) / 3)
        self.batches += 1
        if self.batches % 3 == 0:
            self.optimizers().step()
            self.optimizers().zero_grad()


class ByHand(Manual):
    """Raises the momentum and lowers the betas by hand, beside a schedule that sets rates alone."""

    def configure_optimizers(self) -> Any:
        head = {"params": self.net[2].parameters(), "betas": (0.9, 0.99)}
        first, second = SGD(self.net[0].parameters(), lr=0.1, momentum=0.1), Adam([head], lr=0.01)
        return [first, second], [StepLR(first, 2, 0.5), StepLR(second, 2, 0.5)]

    def training_step(self, batch: Any, batch_idx: int) -> None:
        first, second = self.optimizers()
        first.zero_grad()
        second.zero_grad()
        self.manual_backward(F.cross_entropy(self(batch[0]), batch[1]))
        first.param_groups[0]["momentum"] = min(0.95, first.param_groups[0]["momentum"] * 1.05)
        second.param_groups[0]["betas"] = tuple(beta * 0.98 for beta in second.param_groups[0]["betas"])
        first.step()
        second.step()

    def on_train_epoch_end(self) -> None:
        for scheduler in self.lr_schedulers():
            scheduler.step()


class Slow(torch.optim.LBFGS):
    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, lr=0.03, max_iter=3)


def by_the_module(self: Any) -> Any:
    """Return a rate that is computed from the module's own place in the training."""
    optimizer = SGD(self.parameters(), lr=0.3)
    schedule = LambdaLR(optimizer, lambda _: 1 / (1 + self.global_step + 7 * self.current_epoch))
    return [optimizer], [{"scheduler": schedule, "interval": "step"}]


KINDS = [using(Counting), using(Saving), ByHand, using(Slow), variant(configure_optimizers=by_the_module)]


@pytest.mark.slow
@pytest.mark.parametrize("make", KINDS, ids=lambda make: make.__name__)
def test_one_client_is_plain_training(make):
    assert distance_from_plain(make, "trainer" if make is ByHand else "fabric") < 1e-9  # LBFGS enlarges what rounding leaves


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (
            using(Around),
            "Around steps with the Adam within it, whose state would be lost, .* Set 'federation.local.optimizer_state'",
        ),
        (Pending, "Pending has gradients at the end of a client's turn that no step has used, .* or set it to 'fresh'"),
    ],
)
def test_what_no_state_of_an_optimizer_holds_is_refused(make, words):
    """Where each turn has a fresh optimizer, nothing is to be kept."""
    federate(make(), 1, local=LocalTraining(optimizer_state="fresh"))
    with pytest.raises(ConfigurationError, match=words):
        federate(make(), 1, local=LocalTraining(optimizer_state="kept"))
