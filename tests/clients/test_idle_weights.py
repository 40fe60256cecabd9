"""Weights whose gradient is exactly 0 stay where they are: Adam would enlarge any residue of rounding to a step."""

import pytest
import torch
from algorithms import ALGORITHMS, prepare
from engine_runs import tier_1
from federations import Plain, trainer
from torch import nn

from fl_lightning import FedNova, FedSGD, Scaffold

CHANGE_ALL_WEIGHTS = {
    "adaptive loss",
    "adaptive norm",
    "alie",
    "asynchronous median",
    "changed settings",
    "clipped lies",
    "gaussian",
    "inner product",
    "k-means",
    "local privacy",
    "mocha",
    "own option",
    "private clients",
    "private examples",
}
"""They add noise or lies to every weight, let weights decay, or have no other optimizer or network."""
QUICK = {"fedavg", "fedadam", "fednova", "scaffold", "shapley", "ringfed", "apfl", "compressed", "secure", "fedbuff"}


@pytest.mark.slow
@pytest.mark.parametrize("name", tier_1([name for name in ALGORITHMS if name not in CHANGE_ALL_WEIGHTS], *QUICK))
def test_weights_without_a_gradient_stay(name):
    """They are weights that the loss ignores, and that plain Adam therefore leaves alone."""
    module, data, federation = prepare(name)
    kind = torch.optim.SGD if isinstance(federation.strategy, FedNova | FedSGD | Scaffold) else torch.optim.Adam
    module.idle = nn.Parameter(torch.randn(200, generator=torch.Generator().manual_seed(1)) * 3)
    forward = lambda self, x: Plain.forward(self, x) + 0.0 * self.idle.sum()  # noqa: E731
    methods = {"forward": forward, "configure_optimizers": lambda self: kind(self.parameters(), lr=0.05)}
    module.__class__ = type("Idle", (type(module),), methods)
    before = module.idle.detach().clone()
    trainer(2, federation).fit(module, data)
    assert torch.equal(module.idle.detach(), before)
