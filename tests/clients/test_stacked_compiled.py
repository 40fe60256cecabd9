"""The engine ``stacked`` with a compiled step: few graphs for any numbers of clients, kept after a client's failure."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from engine_runs import differences
from federations import CLASSES, Blobs, Consecutive, Plain, federate, same_bits, weights
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn, optim

from fl_lightning import ClassificationTask, Faults, LocalTraining
from fl_lightning.clients.stacked import step as stacked_step
from fl_lightning.clients.stacked.fit import StackedFit
from fl_lightning.clients.stacked.step import padded_size

GROUPS = [5] * 5 + [10] * 7 + [15] * 6 + [20] * 8
"""Examples of 5, 7, 6 and 8 clients that have one, two, three and four batches of 5."""


@pytest.fixture
def compilations(monkeypatch) -> list[int]:
    """The clients in each graph that torch.compile hands to its backend; run as it is: inductor takes half a minute."""
    compile, graphs = torch.compile, list[int]()

    def backend(graph, inputs):
        graphs.append(len(inputs[0]))
        return graph.forward

    monkeypatch.setattr(stacked_step.torch, "compile", lambda graph, **options: compile(graph, backend=backend, **options))
    return graphs


def regularized() -> ClassificationTask:
    net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, CLASSES))
    return ClassificationTask(net, CLASSES, None, lambda p: optim.SGD(p, lr=0.1, momentum=0.9))


def many() -> Blobs:
    return Blobs(sum(GROUPS))


@pytest.mark.slow
@pytest.mark.parametrize("make", [lambda: Plain(batchnorm=True, momentum=0.9), regularized])
def test_groups_of_any_size_share_graphs(make, compilations):
    """5 and 6 clients share one, 7 and 8 another; dropout, BatchNorm and what is logged are each client's own."""
    assert differences("stacked", make, 1e-5, data=many, sizes=GROUPS, compile=True) == []
    assert len(compilations) == 2


@pytest.mark.slow
def test_a_cuda_graph_may_overwrite_its_outputs(monkeypatch):
    """As a recorded graph does in its next run: losses, buffers, accumulated gradients and logs are still needed then."""
    compile, modes = torch.compile, []

    def overwriting(graph, inputs, mode):
        kept: list[Tensor] = []
        modes.append(mode)

        def run(*arguments):
            found = graph.forward(*arguments)
            if not kept:
                kept.extend(tensor.clone() for tensor in found)
            for own, new in zip(kept, found, strict=True):
                own.copy_(new)
            return kept

        return run

    monkeypatch.setattr(stacked_step.torch, "compile", lambda graph, **options: compile(graph, backend=overwriting, **options))
    local = {"sizes": (10, 10, 10), "compile": "reduce-overhead", "accumulate_grad_batches": 2}
    assert differences("stacked", regularized, 1e-5, **local) == []
    assert set(modes) == {"reduce-overhead"}


def stumbled(failures: int, faults: Faults) -> dict[str, Tensor]:
    """Weights after three rounds of stacks of 3 and 2 clients, each with batches of 5 and of 3 examples.

    The second round's second stack raises as often as it is told.
    """
    stacks, left, train = [0], [failures], StackedFit._train

    def stumbling(*arguments: Any) -> None:
        stacks[0] += 1
        if stacks[0] == 4 and left[0]:
            stacks[0], left[0] = 3, left[0] - 1
            raise ZeroDivisionError("here")
        train(*arguments)

    torch.manual_seed(1)
    module = Plain()
    local = LocalTraining(max_epochs=1, engine="stacked", compile=True, stack_size=3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StackedFit, "_train", stumbling)
        federate(module, 3, data=Blobs(40), partitioner=Consecutive((8,) * 5), local=local, faults=faults)
    assert left == [0]
    return weights(module)


@pytest.mark.slow
def test_a_retry_compiles_nothing_and_gives_the_same_bits(compilations):
    smooth = stumbled(0, Faults())
    assert len(compilations) == 4
    assert same_bits(stumbled(2, Faults(retries=2)), smooth)
    assert len(compilations) == 4 + 4


@pytest.mark.slow
def test_clients_of_a_stack_that_failed_try_alone(compilations):
    """The error happens once: no client is left out, and graphs for one client are compiled once for each shape."""
    smooth = stumbled(0, Faults())
    alone = stumbled(1, Faults("skip"))
    assert all(torch.allclose(smooth[name], alone[name], atol=1e-6) for name in smooth)
    assert sorted(compilations[4:]) == sorted([*compilations[:4], 1, 1])


@given(st.integers(1, 300), st.integers(1, 300))
def test_padding_costs_less_than_half_as_much_again(clients, largest):
    largest = max(clients, largest)
    rows = padded_size(clients, largest)
    assert clients <= rows <= largest
    assert rows < 1.5 * clients


def test_full_stacks_have_few_sizes():
    assert sorted({padded_size(clients, 64) for clients in range(1, 65)}) == [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64]
    assert sorted({padded_size(clients, 10) for clients in range(1, 11)}) == [1, 2, 3, 4, 6, 8, 10]
