"""The engine ``stacked`` against ``trainer``, compiled too: the same within rounding, each client with its own dropout."""

from functools import partial
from typing import Any

import pytest
import torch
from engine_runs import JitteredBlobs, Transferred, built, differences, optimized, stepping, tier_1, variant
from federations import CLASSES, Blobs, Consecutive, Plain, federate, same_bits, weights
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn, optim
from torch.nn import functional as F
from torchmetrics import MeanMetric, MetricCollection
from torchmetrics.classification import MulticlassAccuracy, MulticlassF1Score

import fl_lightning as fl
from fl_lightning.clients.stacked import step as stacked_step
from fl_lightning.clients.stacked.fit import StackedFit
from fl_lightning.clients.stacked.step import padded_size

same = partial(differences, "stacked", tolerance=1e-5)


SETTINGS: dict[str, Any] = {
    "clip norm": {"gradient_clip_val": 0.05},
    "clip value": {"gradient_clip_val": 0.01, "gradient_clip_algorithm": "value"},
    "accumulate": {"accumulate_grad_batches": 3, "max_epochs": 3, "proximal_mu": 0.3, "lr_decay": 0.5},
    "max steps": {"max_steps": 5, "max_epochs": -1},
    "limits": {"limit_train_batches": 0.6},
    "two at a time": {"stack_size": 2, "sizes": (8, 13, 5, 9, 5)},
    "transfer hooks": {"data": Transferred},
    "compiled": {"compile": True},
    "mediators": {"server": {"route": lambda: fl.Mediators(2)}},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", tier_1(SETTINGS, "clip norm", "accumulate", "two at a time"))
def test_settings_give_the_same_model(name):
    assert same(lambda: Plain(batchnorm=name != "mediators", momentum=0.9), **SETTINGS[name]) == []


OPTIMIZERS = {
    "nesterov": lambda p: optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True, weight_decay=0.1),
    "adamw": lambda p: optim.AdamW(p, lr=0.01, amsgrad=True),
    "adagrad": lambda p: optim.Adagrad(p, lr=0.05, initial_accumulator_value=0.5),
    "nadam": lambda p: optim.NAdam(p, lr=0.01),
    "groups": lambda p: optim.SGD([{"params": [q], "lr": 0.1 / (k + 1)} for k, q in enumerate(p)], momentum=0.5),
}


@pytest.mark.parametrize("name", tier_1(OPTIMIZERS, "adamw"))
def test_optimizers_give_the_same_model(name):
    assert same(optimized(OPTIMIZERS[name])) == []


@pytest.mark.slow
def test_only_the_optimizers_parameters_count_for_clipping():
    last = variant(configure_optimizers=lambda self: optim.SGD(self.net[2].parameters(), lr=0.1))
    assert same(last, gradient_clip_val=0.05, proximal_mu=0.5) == []


class Folded(nn.Module):
    """Dropout on inputs of another shape or memory layout."""

    def __init__(self, dropout: nn.Module, fold: Any) -> None:
        super().__init__()
        self.dropout, self.fold = dropout, fold

    def forward(self, x):
        return self.dropout(self.fold(x)).reshape(len(x), -1)


class Both(nn.Module):
    """One layer under two names, whose weight a further layer shares, as T5's embeddings and head; and a shared buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.one = self.other = nn.Linear(4, 4)
        self.head = nn.Linear(4, 4)
        self.head.weight = self.one.weight
        self.register_buffer("scale", torch.tensor([1.0, 2.0, 0.5, 1.0]))
        self.head.register_buffer("scale", self.scale)

    def forward(self, x):
        return self.head(torch.tanh(self.other(torch.tanh(self.one(x))) * self.scale)) * self.head.scale


def frozen() -> nn.Module:
    net = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6).eval(), nn.Dropout(0.5).eval(), nn.Linear(6, 4))
    return net.requires_grad_(False)


BODIES = {
    "dropout": lambda: nn.Dropout(0.4),
    "nothing left": lambda: nn.Dropout(1.0),
    "dropout of channels": lambda: Folded(nn.Dropout1d(0.4), lambda x: x.reshape(-1, 2, 2)),
    "dropout without batch": lambda: Folded(nn.Dropout1d(0.4), lambda x: x),
    "dropout of a transpose": lambda: Folded(nn.Dropout(0.4), lambda x: x.reshape(-1, 2, 2).transpose(1, 2)),
    "one layer twice, and tied": Both,
    "frozen": frozen,
    "weight norm": lambda: nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)),
    "no statistics": lambda: nn.BatchNorm1d(4, track_running_stats=False),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", tier_1(BODIES, "dropout", "one layer twice, and tied"))
def test_networks_give_the_same_model(name):
    def between(self: Any) -> None:
        self.net = nn.Sequential(nn.Linear(4, 4), BODIES[name](), nn.Linear(4, CLASSES))

    assert same(built(between), sizes=(8, 13, 5, 9, 5), proximal_mu=0.1) == []


def counts_and_averages(self):
    self.register_buffer("mean", torch.zeros(CLASSES))
    self.register_buffer("count", torch.ones(()), persistent=False)


def replace_buffers(self, x, y, batch_idx):
    logits = self(x)
    self.mean = 0.9 * self.mean + 0.1 * logits.detach().mean(0)
    self.count = self.count + 1
    return F.cross_entropy(logits - self.mean, y) / self.count


class Scored(Plain):
    """Logs a collection, a number, and a metric by step."""

    def __init__(self):
        super().__init__()
        self.scores = MetricCollection([MulticlassAccuracy(CLASSES), MulticlassF1Score(CLASSES)])
        self.mean = MeanMetric()

    def training_step(self, batch, batch_idx):
        x, y = batch.values() if isinstance(batch, dict) else batch
        logits = self(x)
        loss = F.cross_entropy(logits, y)
        self.scores.update(logits, y)
        self.mean(loss.detach(), len(y))
        self.log_dict(self.scores, on_step=False, on_epoch=True)
        self.log("mean", self.mean)
        return {"loss": loss, "logits": logits.detach()}


def head_first(self, x, y, batch_idx):
    hidden = self.net[:2](x)
    return F.cross_entropy(self.net[2](hidden.detach() if self.current_epoch == 0 else hidden), y)


def log_position(self, x, y, batch_idx):
    self.log("position", batch_idx, on_step=False, on_epoch=True)
    return F.cross_entropy(self(x), y) * (1 + self.current_epoch) / (1 + self.global_step)


STEPS = {
    "buffers": built(counts_and_averages, stepping(replace_buffers)),
    "metrics": Scored,
    "parameters now and then": stepping(head_first),
    "figures without tensors": stepping(log_position),
    "penalty": stepping(lambda self, x, y, _: F.cross_entropy(self(x), y) + sum(p.norm() for p in self.net.parameters())),
    "rate in a hook": variant(
        on_train_start=lambda self: self.log("rate", self.trainer.optimizers[0].param_groups[0]["lr"]),
        stacked_hooks=("on_train_start",),
    ),
    "metrics in a hook": variant(
        on_train_epoch_end=lambda self: self.log("twice", 2 * self.trainer.callback_metrics["train_loss_epoch"]),
        stacked_hooks=("on_train_epoch_end",),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", tier_1(STEPS, "buffers", "metrics"))
def test_training_steps_give_the_same_model(name):
    assert same(STEPS[name]) == []


def test_an_evaluation_leaves_nothing_behind_for_the_clients():
    def validate(self: Any, batch: Any, batch_idx: int) -> None:
        Plain.validation_step(self, batch, batch_idx)
        self.factor = 3.0

    scaled = stepping(lambda self, x, y, _: self.factor * F.cross_entropy(self(x), y))
    evaluated = built(lambda self: setattr(self, "factor", 1.0), scaled, validation_step=validate)
    assert same(evaluated, server={"strategy": lambda: fl.AdaFed("val_acc")}) == []


@pytest.mark.slow
def test_random_transforms_are_each_clients_own():
    def of_names(self, batch, batch_idx):
        return F.cross_entropy(self(batch["x"]), batch["y"])

    assert same(variant(training_step=of_names), data=JitteredBlobs) == []


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


def regularized() -> fl.ClassificationTask:
    net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, CLASSES))
    return fl.ClassificationTask(net, CLASSES, None, lambda p: optim.SGD(p, lr=0.1, momentum=0.9))


@pytest.mark.slow
def test_groups_of_any_size_share_graphs(compilations):
    """5 and 6 clients share one, 7 and 8 another; dropout, BatchNorm and what is logged are each client's own."""
    assert same(regularized, data=lambda: Blobs(sum(GROUPS)), sizes=GROUPS, compile=True) == []
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
    assert same(regularized, **local) == []
    assert set(modes) == {"reduce-overhead"}


def stumbled(failures: int, faults: fl.Faults) -> dict[str, Tensor]:
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
    local = fl.LocalTraining(max_epochs=1, engine="stacked", compile=True, stack_size=3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StackedFit, "_train", stumbling)
        federate(module, 3, data=Blobs(40), partitioner=Consecutive((8,) * 5), local=local, faults=faults)
    assert left == [0]
    return weights(module)


@pytest.mark.slow
def test_a_retry_gives_the_same_bits_and_otherwise_clients_of_a_stack_that_failed_try_alone(compilations):
    """A retry compiles nothing. Alone, no client is left out, and graphs for one client are compiled once for each shape."""
    smooth = stumbled(0, fl.Faults())
    assert same_bits(stumbled(2, fl.Faults(retries=2)), smooth)
    assert len(compilations) == 4 + 4
    alone = stumbled(1, fl.Faults("skip"))
    assert all(torch.allclose(smooth[name], alone[name], atol=1e-6) for name in smooth)
    assert sorted(compilations[8:]) == sorted([*compilations[:4], 1, 1])


@given(st.integers(1, 300), st.integers(1, 300))
def test_padding_costs_less_than_half_as_much_again(clients, largest):
    largest = max(clients, largest)
    rows = padded_size(clients, largest)
    assert clients <= rows <= largest
    assert rows < 1.5 * clients
