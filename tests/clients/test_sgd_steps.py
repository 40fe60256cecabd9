"""What FedNova and SCAFFOLD know of the clients' steps of SGD."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.optim import SGD, Adam

from fl_lightning.rules.sgd import StepTrace


@given(
    rates=st.lists(st.sampled_from([0.0, 0.05, 0.1, 0.1, 0.3]), max_size=8),
    momentum=st.sampled_from([0.0, 0.5, 0.9]),
    nesterov=st.booleans(),
    mu=st.sampled_from([0.0, 0.7]),
    tensor=st.booleans(),
    groups=st.integers(1, 2),
)
def test_the_trace_of_steps_is_where_sgd_ends(rates, momentum, nesterov, mu, tensor, groups):
    """With all gradients 1 and the proximal term's pull, torch's SGD ends at minus the sum of rates times coefficients."""
    parameters = [nn.Parameter(torch.zeros((), dtype=torch.float64)) for _ in range(groups)]
    optimizer = SGD([{"params": [p]} for p in parameters], 0.1, momentum, nesterov=nesterov and momentum > 0, foreach=False)
    trace = StepTrace(mu, reference=0.1)
    rate_of = torch.tensor(0.0, dtype=torch.float64)
    for rate in rates:
        for group in optimizer.param_groups:
            group["lr"] = rate_of.fill_(rate) if tensor else rate  # the same object in every step
        for parameter in parameters:
            parameter.grad = 1 + mu * parameter.detach()
        trace.note(optimizer)
        optimizer.step()
    steps = trace.coefficients()
    assert steps.distance == pytest.approx(-float(parameters[-1].detach()), abs=1e-12)
    assert steps.rates == pytest.approx(sum(rates))
    assert steps.normalizer == pytest.approx(steps.distance / 0.1)


@pytest.mark.parametrize("spoils", ["another optimizer", "maximize", "groups", "two optimizers"])
def test_a_single_step_without_a_rule_leaves_the_turn_without_coefficients(spoils):
    parameters = [nn.Parameter(torch.zeros(())) for _ in range(2)]
    optimizer, trace = SGD([{"params": [p]} for p in parameters], 0.1), StepTrace()
    trace.note(optimizer)
    trace.note(optimizer)
    assert trace.coefficients().normalizer == pytest.approx(2)
    if spoils == "maximize":
        optimizer.param_groups[1]["maximize"] = True
    elif spoils == "groups":
        optimizer.param_groups[1]["lr"] = 0.2
    trace.note({"another optimizer": Adam(parameters), "two optimizers": None}.get(spoils, optimizer))
    assert trace.coefficients() is None
