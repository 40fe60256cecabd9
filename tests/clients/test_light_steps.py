"""What clients' Trainers and optimizers skip: steps, hooks and logs stay those of torch and Lightning, for all who listen."""

import warnings
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from functools import partial
from typing import Any

import pytest
import torch
from federations import trainer
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import EarlyStopping
from lightning.pytorch.core import module as core_module
from lightning.pytorch.demos.boring_classes import BoringModel
from lightning.pytorch.loops import evaluation_loop, training_epoch_loop
from lightning.pytorch.strategies import Strategy
from lightning.pytorch.trainer import call as calls
from lightning.pytorch.trainer import trainer as trainer_file
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import StepLR
from torch.optim.optimizer import register_optimizer_step_post_hook

from fl_lightning import Yogi
from fl_lightning.compat.light_steps import backward_lightly, step_lightly
from fl_lightning.compat.lightning_hooks import IDLE, lean_hooks

Make = Callable[[list[Tensor]], Optimizer]
KINDS: dict[str, Make] = {
    "SGD": lambda p: torch.optim.SGD(p, 0.1),
    "SGD, all of it": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    "SGD, groups": lambda p: torch.optim.SGD([{"params": p[:1], "lr": 0.3}, {"params": p[1:]}], 0.1, momentum=0.5),
    "SGD, rates that are tensors": lambda p: torch.optim.SGD(p, torch.tensor(0.1)),
    "SGD, a part of it": lambda p: torch.optim.SGD([{"params": p[:1], "weight_decay": 0.1}, {"params": p[1:]}], 0.1),
    "SGD, maximising": lambda p: torch.optim.SGD(p, 0.1, maximize=True),
    "SGD, an empty group": lambda p: torch.optim.SGD([{"params": []}, {"params": p}], 0.1),
    "SGD, foreach": lambda p: torch.optim.SGD(p, 0.1, foreach=True),
    "Adam": lambda p: torch.optim.Adam(p, 0.01),
    "Adam, fused": lambda p: torch.optim.Adam(p, 0.01, fused=True),
    "AdamW": lambda p: torch.optim.AdamW(p, 0.01, amsgrad=True),
    "Adagrad": lambda p: torch.optim.Adagrad(p, 0.01),
    "LBFGS": lambda p: torch.optim.LBFGS(p, 0.1, max_iter=3),
    "Yogi": lambda p: Yogi(p),
}


def trained(make: Make, light: bool) -> list[Tensor]:
    """The weights of a small network after five steps."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    x, y = torch.randn(16, 4), torch.randn(16, 2)
    optimizer = make(list(network.parameters()))
    if light:
        step_lightly(optimizer)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(network(x), y)
        loss.backward()
        return loss

    for _ in range(5):
        loss = optimizer.step(closure)
        assert loss.requires_grad, "the closure runs with gradients, the step without"
    return [parameter.detach() for parameter in network.parameters()]


def light_sgd() -> tuple[nn.Parameter, Optimizer]:
    parameter = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([parameter], 0.5)
    step_lightly(optimizer)
    return parameter, optimizer


@pytest.mark.parametrize("kind", KINDS)
def test_the_weights_are_those_of_torchs_own_steps(kind):
    assert all(
        torch.equal(own, theirs) for own, theirs in zip(trained(KINDS[kind], True), trained(KINDS[kind], False), strict=True)
    )


def test_hooks_on_steps_are_called():
    parameter, optimizer = light_sgd()
    heard: list[str] = []
    handles = [
        optimizer.register_step_pre_hook(lambda *_: heard.append("before")),
        optimizer.register_step_post_hook(lambda *_: heard.append("after")),
    ]
    parameter.grad = torch.ones(2)
    optimizer.step()
    assert heard == ["before", "after"]
    for handle in handles:
        handle.remove()
    everywhere = register_optimizer_step_post_hook(lambda *_: heard.append("any"))
    optimizer.step()
    everywhere.remove()
    optimizer.step()
    assert heard == ["before", "after", "any"]
    assert parameter.tolist() == [-0.5, -0.5]


def test_the_profiler_sees_the_steps():
    parameter, optimizer = light_sgd()
    parameter.grad = torch.ones(2)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        optimizer.step()
        optimizer.zero_grad()
    names = {event.key for event in profile.key_averages()}
    assert {"Optimizer.step#SGD.step", "Optimizer.zero_grad#SGD.zero_grad"} <= names
    assert parameter.grad is None


@pytest.mark.parametrize("before", [True, False])
def test_a_scheduler_is_built_before_or_after(before):
    parameter = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([parameter], 1.0)
    if not before:
        step_lightly(optimizer)
    scheduler = StepLR(optimizer, step_size=1, gamma=0.5)
    if before:
        step_lightly(optimizer)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # of a scheduler that steps before its optimizer
        for _ in range(2):
            parameter.grad = torch.ones(2)
            optimizer.step()
            scheduler.step()
    assert parameter.tolist() == [-0.5, -0.5]  # 1 - 1 - 1/2


def test_parameters_without_a_gradient_stay_and_sparse_gradients_count():
    """The rows 1, 1 and 3 of a table are read: row 1 moves by twice the rate, row 3 by the rate."""
    table, unused = nn.Embedding(4, 2, sparse=True), nn.Parameter(torch.ones(2))
    nn.init.ones_(table.weight)
    optimizer = torch.optim.SGD([*table.parameters(), unused], 0.25)
    step_lightly(optimizer)
    table(torch.tensor([1, 1, 3])).sum().backward()
    assert table.weight.grad.is_sparse
    optimizer.step()
    assert table.weight[:, 0].tolist() == [1.0, 0.5, 1.0, 0.75]
    assert unused.tolist() == [1.0, 1.0]


OTHERS = ("optimizer_step", "optimizer_zero_grad", "configure_gradient_clipping", "backward", "setup", "teardown")
HOOKS = sorted(name for name in dir(Callback) if name.startswith("on_") and "checkpoint" not in name)
Seen = list[tuple[Any, ...]]


def empty() -> None:
    """Do nothing."""


def test_what_is_skipped_does_nothing():
    for hook, method in IDLE.items():
        assert method.__code__.co_code == empty.__code__.co_code, hook
    for hook in HOOKS:
        assert getattr(Callback, hook).__code__.co_code == empty.__code__.co_code, hook
    assert Strategy.on_train_batch_start.__code__.co_code == empty.__code__.co_code


def kinds(*given: Any) -> list[str]:
    return [type(one).__name__ for one in given]


class Recorder(Callback):
    """Notes each hook of a callback, and the name under which the module logs meanwhile."""

    def __init__(self, seen: Seen, hooks: list[str]) -> None:
        for hook in hooks:
            setattr(self, hook, partial(self.note, seen, hook))

    @staticmethod
    def note(seen: Seen, hook: str, run: Trainer, module: LightningModule, *others: Any, **named: Any) -> None:
        seen.append(("callback", hook, module._current_fx_name, run.global_step, *kinds(*others, *named.values())))


def recording(seen: Seen, hooks: Iterable[str]) -> BoringModel:
    """A module that notes some of its hooks and logs in some."""

    class Module(BoringModel):
        def training_step(self, batch, batch_idx):
            seen.append(("module", "training_step", self._current_fx_name, batch_idx))
            self.log("train_loss", loss := super().training_step(batch, batch_idx)["loss"], on_step=True, on_epoch=True)
            return loss

        def validation_step(self, batch):  # without batch_idx
            self.log("val_loss", self.step(batch))

        def on_train_epoch_end(self):
            self.log("at_the_end", float(self.trainer.global_step))

    def overriding(hook: str) -> Any:
        base = getattr(Module, hook)

        def noted(self, *given, **named):
            seen.append(("module", hook, self._current_fx_name, *kinds(*given)))
            output = base(self, *given, **named)
            assert self._current_fx_name == hook
            return output

        return noted

    for hook in hooks:
        setattr(Module, hook, overriding(hook))
    return Module()


def outcome(lean: bool, hooks: list[str], own: Iterable[str]) -> tuple[Seen, dict[str, float], list[torch.Tensor]]:
    seen: Seen = []
    torch.manual_seed(0)
    module = recording(seen, own)
    stop = EarlyStopping("val_loss", patience=9)  # monitors: Lightning calls its hooks after the others'
    run = trainer(2, stop, Recorder(seen, hooks), Callback(), limit_train_batches=3, limit_val_batches=1)
    with lean_hooks() if lean else nullcontext():
        run.fit(module)
        metrics = {name: float(value) for name, value in run.callback_metrics.items()}
        run.validate(module, verbose=False)
    return seen, metrics, list(module.parameters())


@pytest.mark.parametrize(("hooks", "own"), [(HOOKS, (*IDLE, *OTHERS)), ([], ())], ids=["all", "none"])
def test_hooks_see_what_they_see_in_lightning(hooks, own):
    seen, metrics, weights = outcome(False, hooks, own)
    lean_seen, lean_metrics, lean_weights = outcome(True, hooks, own)
    assert lean_seen == seen
    assert {hook for owner, hook, *_ in seen if owner == "module"} == {"training_step", *own}
    assert lean_metrics == metrics
    assert {"train_loss_step", "train_loss_epoch", "val_loss", "at_the_end"} <= metrics.keys()
    assert all(map(torch.equal, lean_weights, weights))


def test_afterwards_everything_is_lightnings_own():
    def names() -> list[Any]:
        hooks = [calls._call_callback_hooks, calls._call_lightning_module_hook, calls._call_strategy_hook]
        checks = [place.is_param_in_hook_signature for place in (training_epoch_loop, evaluation_loop, core_module)]
        return [*hooks, *checks, trainer_file.isolate_rng]

    def fail() -> None:
        with lean_hooks():
            assert not set(names()) & set(before)
            raise ValueError("within")

    before = names()
    with pytest.raises(ValueError, match="within"):
        fail()
    assert names() == before


@pytest.mark.parametrize(
    ("loss", "error"),
    [(torch.zeros(()), "does not require grad"), (torch.ones(2, requires_grad=True), "scalar outputs")],
)
def test_a_loss_without_a_gradient_is_refused_as_by_torch(loss, error):
    with pytest.raises(RuntimeError, match=error):
        backward_lightly(loss)


def test_a_tensor_with_a_backward_pass_of_its_own_keeps_it():
    class Own(Tensor):
        def backward(self, *_: object, **__: object) -> None:
            called.append(True)

    called: list[bool] = []
    backward_lightly(torch.ones((), requires_grad=True).as_subclass(Own))
    assert called


def test_a_zero_grad_and_a_step_of_ones_own_stay():
    class Own(torch.optim.SGD):
        zeroed = 0

        def zero_grad(self, set_to_none: bool = True) -> None:
            self.zeroed += 1
            super().zero_grad(set_to_none)

    parameter = nn.Parameter(torch.ones(2))
    optimizer = Own([parameter], 0.1)
    step_lightly(optimizer)
    optimizer.zero_grad()
    assert optimizer.zeroed == 1
