"""torch.compile and CUDA graphs: the same results, few graphs, and what they cost and save."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import lightning as L
import torch
from benchmark_loop import Sizes
from federations import trainer, weights
from torch import nn

from fl_lightning import ClassificationTask, FederatedDataModule, FederatedOrchestrator, LeNet, LocalTraining
from gpu.setting import Findings, NotRunError, Setting, largest_difference
from gpu.state_on_device import Pictures

Make = Callable[[], nn.Module]


class Rounds(L.Callback):
    """Seconds of each round."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self._begun = 0.0

    def on_train_epoch_start(self, *_: Any) -> None:
        """Begin."""
        self._begun = time.perf_counter()

    def on_train_epoch_end(self, *_: Any) -> None:
        """End."""
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self.seconds.append(round(time.perf_counter() - self._begun, 3))


@contextlib.contextmanager
def exact_convolutions() -> Iterator[None]:
    """Compute without TF32, and compile anew."""
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32 = before


def _fit(setting: Setting, make: Make, sizes: list[int], rounds: int = 3, cohort: float = 1.0, **local: Any) -> Any:
    """Return weights, the seconds of the rounds, accuracy, and the number of graphs that were compiled."""
    L.seed_everything(6, verbose=False)
    task = ClassificationTask(make(), 10, None, lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9))
    data = Pictures(sum(sizes), 100, batch_size=10)
    watch = Rounds()
    settings: Any = {"precision": "32-true", "stack_size": 32, **local}
    federation = FederatedOrchestrator(local=LocalTraining(**settings), clients_per_round=cohort)
    with exact_convolutions():
        run = trainer(rounds, federation, watch, accelerator=setting.accelerator, devices=1)
        run.fit(task, FederatedDataModule(data, Sizes(sizes)))
        graphs = int(torch._dynamo.utils.counters["stats"]["unique_graphs"])
    return weights(task), watch.seconds, float(run.callback_metrics["val_accuracy"]), graphs


def _regularized() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(1, 8, 5, 2), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 16, 5, 2), nn.Flatten(), nn.Dropout(0.3)),
        nn.Linear(16 * 16, 10),
    )


def _stack(setting: Setting, found: Findings, make: Make) -> None:
    sizes = [40] * setting.of(24, 3)
    expected, eager_seconds, _, _ = _fit(setting, make, sizes, engine="stacked")
    ours, seconds, accuracy, graphs = _fit(setting, make, sizes, engine="stacked", compile=True)
    gap = largest_difference(expected, ours)
    found["largest_difference"], found["graphs"], found["val_accuracy"] = gap, graphs, accuracy
    found["seconds eager"], found["seconds compiled"] = eager_seconds, seconds
    found.require(gap < 2e-3, f"compiling changes the weights by {gap:.2g}")
    found.require(graphs == 1, f"{graphs} graphs were compiled for one size of stack and batch")


def compiled_stack(setting: Setting, found: Findings) -> None:
    """A stack of LeNets, compiled and not."""
    _stack(setting, found, lambda: LeNet(1, 28))


def compiled_stack_regularized(setting: Setting, found: Findings) -> None:
    """The same with dropout and BatchNorm."""
    _stack(setting, found, _regularized)


def compiled_sizes(setting: Setting, found: Findings) -> None:
    """Cohorts whose groups change in size share few graphs; later rounds compile nothing new."""
    sizes = ([20] * 12 + [40] * 12) if not setting.small else [20] * 3
    rounds = setting.of(6, 2)
    _, seconds, _, graphs = _fit(setting, lambda: LeNet(1, 28), sizes, rounds, 0.5, engine="stacked", compile=True)
    found["graphs"], found["seconds"] = graphs, seconds
    found.require(graphs <= 8, f"{graphs} graphs in {rounds} rounds")


def cuda_graphs(setting: Setting, found: Findings) -> None:
    """CUDA graphs around the compiled step: the same weights."""
    if setting.device != "cuda":
        raise NotRunError("CUDA graphs need a GPU")
    sizes = [40] * 24
    expected, _, _, _ = _fit(setting, lambda: LeNet(1, 28), sizes, engine="stacked", compile=True)
    ours, seconds, accuracy, _ = _fit(setting, lambda: LeNet(1, 28), sizes, engine="stacked", compile="reduce-overhead")
    gap = largest_difference(expected, ours)
    found["largest_difference"], found["seconds"], found["val_accuracy"] = gap, seconds, accuracy
    skips = torch._dynamo.utils.counters["inductor"]["cudagraph_skips"]
    found["skipped_by_inductor"] = int(skips)
    found.require(gap < 1e-4, f"CUDA graphs change the weights by {gap:.2g}")


def compiled_network(setting: Setting, found: Findings) -> None:
    """A network that the user has compiled, trained by a Trainer and by Fabric, in float32 and in AMP."""
    sizes = [40] * 4
    for engine, precision in (("trainer", "32-true"), ("fabric", "32-true"), ("fabric", "bf16-mixed")):
        name = f"{engine}, {precision}"
        expected, eager_seconds, _, _ = _fit(setting, lambda: LeNet(1, 28), sizes, engine=engine, precision=precision)
        compiled: Make = lambda: torch.compile(LeNet(1, 28))  # type: ignore[return-value]  # noqa: E731
        ours, seconds, _, graphs = _fit(setting, compiled, sizes, engine=engine, precision=precision)
        ours = {key.replace("_orig_mod.", ""): value for key, value in ours.items()}
        gap = largest_difference(expected, ours)
        found[name] = {"largest_difference": gap, "graphs": graphs, "eager": eager_seconds, "compiled": seconds}
        near = 2e-3 if precision == "32-true" else 5e-2
        found.require(gap < near, f"{name}: compiling changes the weights by {gap:.2g}")
        found.require(seconds[-1] < seconds[0], f"{name}: the last round took as long as the first, which compiles")


def bf16_true_stack(setting: Setting, found: Findings) -> None:
    """A stack in bf16-true, as autocast has no form there: it learns as in float32; AMP is refused with a message."""
    sizes = [40] * setting.of(24, 3)
    accuracy = {}
    for precision in ("32-true", "bf16-true"):
        _, seconds, accuracy[precision], _ = _fit(
            setting, lambda: LeNet(1, 28), sizes, setting.of(30, 1), engine="stacked", precision=precision
        )
        found[precision] = {"val_accuracy": accuracy[precision], "seconds": seconds}
    near = accuracy["bf16-true"] >= accuracy["32-true"] - 0.1 - 1e-6  # float32 figures
    found.require(near or setting.small, f"bf16-true reaches {accuracy['bf16-true']:.3f}")
    try:
        _fit(setting, lambda: LeNet(1, 28), sizes, 1, engine="stacked", precision="bf16-mixed")
    except Exception as error:
        found["bf16-mixed"] = f"refused: {type(error).__name__}: {str(error)[:200]}"
        found.require("Stacked clients do not support" in str(error), "bf16-mixed ends in another error")
    else:
        found.require(False, "bf16-mixed is not refused")
