"""Check and measure the package on a GPU, with the small federations of the suite and the workloads of the benchmark.

    pytest tools/gpu.py tests/clients/test_precision.py -k "not speed" -n 4 --junitxml correctness.xml  # workers may die
    pytest tools/gpu.py -k speed -rP --junitxml speed.xml                 # measurements run alone; -rP prints their figures
    DEVICE=cpu pytest tools/gpu.py                                        # try them out on little data, without a GPU

The files of results have the figures of each test, also of one that failed.
"""

from __future__ import annotations

import contextlib
import csv
import functools
import itertools
import json
import math
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import lightning as L
import pytest
import torch
from algorithms import ALGORITHMS, outcome, prepare
from benchmark_loop import Images, Workload, now
from benchmark_loop import Plain as Simple
from federations import Blobs, Consecutive, Plain, every_round, federate, trainer, weights
from lightning.pytorch.callbacks import LambdaCallback
from lightning.pytorch.plugins.environments import LightningEnvironment
from lightning.pytorch.strategies import DDPStrategy
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import fl_lightning as fl
from fl_lightning.cli.federation_cli import main as command
from fl_lightning.data import TensorLoader
from fl_lightning.errors import EngineError

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # with a workspace of its own choice, cuBLAS is not reproducible
DEVICE = os.environ.get("DEVICE", "cuda")
SMALL = DEVICE == "cpu"
ACCELERATOR: Any = {"accelerator": "cpu" if SMALL else "gpu"}
ON_IT: Any = {**ACCELERATOR, "devices": 1}
needs_gpu = pytest.mark.skipif(SMALL, reason="needs a GPU")
pytestmark = pytest.mark.timeout(150)


@pytest.fixture
def found(record_property: Callable[[str, object], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Take figures into the file of results, and print them; a test runs in a folder of its own, without TF32."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    figures: dict[str, Any] = {}
    yield figures
    torch.use_deterministic_algorithms(False)
    record_property("figures", json.dumps(figures, default=str))
    print(json.dumps(figures, default=str))


def apart(one: dict[str, Any], other: dict[str, Any]) -> float:
    """Return the largest absolute difference of two models' weights, compared on the CPU; infinite if one is not finite."""
    gaps = [(one[name].cpu().double() - other[name].cpu().double()).abs().max() for name in one if one[name].numel()]
    largest = float(torch.stack(gaps).max()) if one.keys() == other.keys() else math.inf
    return largest if math.isfinite(largest) else math.inf


def same_bits(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Return whether two models agree to the last bit, wherever they are."""
    return one.keys() == other.keys() and all(torch.equal(one[name].cpu(), other[name].cpu()) for name in one)


def test_the_machine(found: Any) -> None:
    found |= {"torch": torch.__version__, "cuda": torch.version.cuda, "lightning": L.__version__, "package": fl.__version__}
    if not SMALL:
        properties = torch.cuda.get_device_properties(0)
        found |= {"device": properties.name, "gib": round(properties.total_memory / 2**30, 1)}
        assert torch.cuda.is_bf16_supported(including_emulation=False)


# ---------------------------------------------------------------- every algorithm against the CPU


def fitted(name: str, accelerator: str, engine: Any = "trainer") -> dict[str, Any]:
    """Return the weights of a case of the suite after two rounds in float32."""
    module, data, federation = prepare(name)
    federation.local = replace(federation.local, precision="32-true", engine=engine)
    trainer(2, federation, accelerator=accelerator, devices=1).fit(module, data)
    return weights(module)


@pytest.mark.parametrize("name", list(ALGORITHMS)[:: 12 if SMALL else 1])
def test_an_algorithm_gives_the_weights_of_the_cpu(name: str, found: Any) -> None:
    """A choice between nearly equal models, or a rounding of an update, may fall otherwise: that shows as a jump."""
    expected, ours = fitted(name, "cpu"), {}
    for engine in ("trainer", "fabric", *(["stacked"] if name in ("fedavg", "scaffold", "fednova", "adafed") else [])):
        try:
            ours[engine] = fitted(name, ACCELERATOR["accelerator"], engine)
        except EngineError as refusal:  # as of a stream by 'fabric'
            found[engine] = f"refused: {refusal}"
            continue
        found[engine] = apart(expected, ours[engine])
        assert found[engine] < 2e-2, engine
    assert "fabric" not in ours or same_bits(ours["trainer"], ours["fabric"])


# ---------------------------------------------------------------- mixed precision


@contextlib.contextmanager
def skipped_steps() -> Iterator[list[bool]]:
    """Note for each step that a ``GradScaler`` scales whether it was skipped: its scale is lower afterwards."""
    update, skips = torch.amp.GradScaler.update, []

    def watching(scaler: Any, *args: Any, **kwargs: Any) -> None:
        before = scaler.get_scale()
        update(scaler, *args, **kwargs)
        skips.append(scaler.get_scale() < before)

    with patch.object(torch.amp.GradScaler, "update", watching):
        yield skips


def test_adafed_mnist_learns_in_mixed_precision_as_in_float32(found: Any) -> None:
    """By the command line, on the embedded digits."""
    little = ["--model.init_args.network=LeNet", "--federation.local.limit_train_batches=2", "--trainer.limit_val_batches=1"]
    for precision in ("32-true", "16-mixed", "bf16-mixed"):
        args = [f"--trainer.max_epochs={2 if SMALL else 10}", f"--federation.local.precision={precision}"]
        args += [f"--trainer.accelerator={ACCELERATOR['accelerator']}", "--trainer.devices=1", "--trainer.logger=CSVLogger"]
        args += [f"--trainer.logger.save_dir={precision}", f"--trainer.default_root_dir={precision}/run"]
        args += ["--trainer.enable_progress_bar=false", "--data.datamodule.source=embedded", *(little if SMALL else [])]
        with skipped_steps() as skips:
            command(["fit", "--config=adafed_mnist", *args])
        (metrics,) = Path(precision).glob("lightning_logs/*/metrics.csv")
        rows = list(csv.DictReader(metrics.open()))
        accuracy = [float(row["val_accuracy"]) for row in rows if row.get("val_accuracy")][-1]
        found[precision] = {"val_accuracy": accuracy, "scaled_steps": len(skips), "skipped": sum(skips)}
        assert all(math.isfinite(float(row[name])) for row in rows for name in row if row[name] and name.endswith("loss"))
        assert accuracy >= found["32-true"]["val_accuracy"] - 0.03 - 1e-6
    assert SMALL or (found["32-true"]["val_accuracy"] > 0.85 and found["16-mixed"]["scaled_steps"])


class Growing(Plain):
    """A loss that grows from step to step, so that its scaled gradients overflow again and again."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        """Return the loss times 8, 16, 32, ..."""
        return super().training_step(batch, batch_idx) * 2.0 ** min(self.trainer.global_step + 3, 20)


@needs_gpu
@pytest.mark.parametrize("engine", ["trainer", "fabric"])
def test_one_client_in_16_mixed_skips_the_steps_that_plain_training_skips(engine: Any, found: Any) -> None:
    rounds, epochs, size = 3, 2, 23
    torch.manual_seed(3)
    plain = Growing(lr=1e-5)
    torch.manual_seed(3)
    client = Growing(lr=1e-5)
    with skipped_steps() as expected:
        trainer(rounds * epochs, precision="16-mixed", **ON_IT).fit(plain, DataLoader(TensorDataset(*Blobs(size).train), 5))
    local = fl.LocalTraining(engine=engine, max_epochs=epochs, precision="16-mixed", optimizer_state="kept")
    with skipped_steps() as skips:
        data, parts = Blobs(size, shuffle=False), Consecutive([size])
        federate(client, rounds, data=data, partitioner=parts, local=local, **ACCELERATOR)
    found |= {"steps": len(expected), "skipped": sum(expected), "apart": apart(weights(plain), weights(client))}
    assert any(expected[5:]), "plain training skips no later step, so this compares nothing"
    assert skips == expected
    assert found["apart"] < 1e-5


OPTIMIZERS: dict[str, Callable[..., Any]] = {
    "SGD": lambda p, fused: torch.optim.SGD(p, lr=0.2, fused=fused),
    "SGD with momentum": lambda p, fused: torch.optim.SGD(p, lr=0.1, momentum=0.9, fused=fused),
    "Adam": lambda p, fused: torch.optim.Adam(p, lr=0.02, eps=1e-4, fused=fused),
}


class Chosen(Plain):
    """The small network with another optimizer."""

    def __init__(self, optimizer: str, fused: bool) -> None:
        super().__init__()
        self.optimizer, self.fused = optimizer, fused

    def configure_optimizers(self) -> Any:
        """Return it."""
        return OPTIMIZERS[self.optimizer](self.parameters(), self.fused)


@pytest.mark.parametrize("clip", [None, 0.05])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("precision", ["bf16-mixed", "32-true", pytest.param("16-mixed", marks=needs_gpu)])
def test_a_turn_with_the_proximal_term_is_the_loop_by_hand(
    precision: str, optimizer: str, clip: float | None, found: Any
) -> None:
    L.seed_everything(3, verbose=False)
    start = Plain().state_dict()
    mu = 0.7 if clip is None else 50.0  # clipped steps are short: pull harder
    expected, free = (proximal_by_hand(start, optimizer, precision, pull, clip) for pull in (mu, 0.0))
    assert apart(expected, free) > 0.01, "the proximal term moves nothing"
    near = 0.05 * apart(expected, {key: start[f"net.{key}"] for key in expected})
    for engine, fused in itertools.product(("trainer", "fabric"), (False, True)):
        module: Any = Chosen(optimizer, fused)
        module.load_state_dict(start)
        settings: Any = {"engine": engine, "precision": precision, "proximal_mu": mu, "gradient_clip_val": clip}
        data = Blobs(shuffle=False)
        what = f"{engine}{', fused' if fused else ''}"
        try:
            federate(module, 1, data=data, partitioner=Consecutive([40]), local=fl.LocalTraining(**settings), **ACCELERATOR)
        except Exception as error:  # a fused optimizer removes the scale inside its step, after gradients are clipped
            if not (fused and clip is not None and precision.endswith("mixed")):
                raise
            found[what] = f"refused: {error}"
            continue
        found[what] = apart(weights(module.net), expected)
        assert found[what] < near, what


def proximal_by_hand(start: Any, optimizer_name: str, precision: str, mu: float, clip: float | None) -> dict[str, Any]:
    """Return the weights after an epoch of FedProx as one would write it; the optimizer is not fused."""
    module = Plain()
    module.load_state_dict(start)
    net = module.net.to(DEVICE)
    anchors = [parameter.detach().clone() for parameter in net.parameters()]
    optimizer = OPTIMIZERS[optimizer_name](net.parameters(), False)
    scaler = torch.amp.GradScaler(DEVICE, enabled=precision == "16-mixed")
    dtype = torch.float16 if precision == "16-mixed" else torch.bfloat16
    inputs, labels = (tensor.to(DEVICE).split(5) for tensor in Blobs().train)
    for x, y in zip(inputs, labels, strict=True):
        optimizer.zero_grad()
        with torch.autocast(DEVICE, dtype, enabled=precision != "32-true"):
            loss = F.cross_entropy(net(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        for parameter, anchor in zip(net.parameters(), anchors, strict=True):
            parameter.grad += mu * (parameter.detach() - anchor)
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(net.parameters(), clip)
        scaler.step(optimizer)
        scaler.update()
    return weights(net)


# ---------------------------------------------------------------- data on the device


class Pictures(fl.ImageDataModule):
    """Generated images: each class has a bright square of its own, under noise.

    Args:
        train: number of training images.
        test: number of test images.
        **settings: see :class:`ImageDataModule`.
    """

    def __init__(self, train: int, test: int, **settings: Any) -> None:
        super().__init__(**settings)
        self.sizes = (train, test)
        self.arrived: set[tuple[str, torch.dtype]] = set()

    def load(self) -> Any:
        """Ten classes in turn."""
        generator, sets = torch.Generator().manual_seed(0), []
        for count in self.sizes:
            labels = torch.arange(count) % 10
            images = torch.randint(0, 100, (count, 1, 28, 28), dtype=torch.uint8, generator=generator)
            for k in range(10):
                row, column = 4 + 10 * (k // 5), 1 + 5 * (k % 5)
                images[labels == k, :, row : row + 8, column : column + 5] += 120
            sets.append(TensorDataset(images, labels))
        return tuple(sets)

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        """Note what arrived."""
        self.arrived.add((batch[0].device.type, batch[0].dtype))
        return super().on_after_batch_transfer(batch, dataloader_idx)


def test_images_that_lie_on_the_device_give_the_bits_of_those_that_do_not(found: Any) -> None:
    results, iterate = [], TensorLoader.__iter__
    for limit, place in ((None, DEVICE), (0.0, "cpu")):
        places: set[str] = set()

        def noted(loader: TensorLoader, places: set[str] = places) -> Any:
            places.update([loader.tensors[0].device.type] if loader.generator is not None else [])
            return iterate(loader)

        L.seed_everything(1, verbose=False)
        data = Pictures(200 if SMALL else 4000, 100, batch_size=20, eval_batch_size=500)
        task = fl.ClassificationTask(fl.LeNet(1, 28), 10, None, lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9))
        federation = fl.FederatedOrchestrator(local=fl.LocalTraining(precision="32-true", engine="fabric"))
        run = trainer(1 if SMALL else 4, federation, deterministic=True, **ON_IT)
        with patch.object(TensorLoader, "__iter__", noted):
            run.fit(task, fl.FederatedDataModule(data, fl.IIDPartitioner(5), memory_limit=limit))
        assert places == {place}
        assert data.arrived == {(DEVICE, torch.uint8)}
        results.append(weights(task))
        found[f"val_accuracy, on {place}"] = float(run.callback_metrics["val_accuracy"])
        assert SMALL or found[f"val_accuracy, on {place}"] > 0.9
    assert same_bits(*results)


# ---------------------------------------------------------------- checkpoints, ranks, memory


def resumed(folder: Path | None, rounds: int, module: Any, data: Any, federation: Any, **flags: Any) -> L.Trainer:
    """Fit up to a round, from the folder's last checkpoint if there is one."""
    callbacks, start = [], None
    if folder is not None:
        start = str(folder / "last.ckpt") if (folder / "last.ckpt").exists() else None
        callbacks, flags = [every_round(folder)], {"enable_checkpointing": True, "default_root_dir": str(folder), **flags}
    run = trainer(rounds, federation, *callbacks, devices=1, **flags)
    run.fit(module, data, ckpt_path=start)
    return run


@pytest.mark.parametrize("name", ["fedadam", "scaffold", "fedavgm", "compressed", "local only"])
def test_a_checkpoint_moves_from_the_cpu_and_back(name: str, found: Any) -> None:
    """Two rounds on the CPU, two on the device, one on the CPU: as five on the CPU, within rounding."""
    legs, ends = ((Path("moved"), 2, "cpu"), (Path("moved"), 4, ACCELERATOR["accelerator"]), (Path("moved"), 5, "cpu")), []
    for folder, rounds, accelerator in (*legs, (None, 5, "cpu")):
        module, data, federation = prepare(name)
        federation.local = replace(federation.local, precision="32-true")
        assert resumed(folder, rounds, module, data, federation, accelerator=accelerator).global_step == rounds
        ends.append(weights(module))
    found["apart"] = apart(ends[-2], ends[-1])
    assert found["apart"] < 1e-2


@functools.cache
def regularized(rounds: int, folder: str | None, engine: Any, precision: Any) -> dict[str, Any]:
    """AdaFed with class weights, dropout, BatchNorm and augmentation, by deterministic algorithms."""
    L.seed_everything(2, verbose=False)
    task = fl.ClassificationTask(
        network(), 10, fl.F1WeightedCrossEntropy(10), lambda p: torch.optim.SGD(p, lr=0.005, momentum=0.9)
    )
    data = Pictures(60 if SMALL else 600, 100, batch_size=20, augmentation=fl.RandomCropFlip(2))
    federation = fl.FederatedOrchestrator(
        fl.AdaFed(), fl.LocalTraining(engine=engine, precision=precision), clients_per_round=0.7
    )
    clients, where = fl.FederatedDataModule(data, fl.IIDPartitioner(4)), None if folder is None else Path(folder)
    resumed(where, rounds, task, clients, federation, deterministic=True, **ACCELERATOR)
    return weights(task)


def network() -> nn.Module:
    """A network with BatchNorm and dropout."""
    features = (nn.Conv2d(1, 8, 5, 2), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 16, 5, 2), nn.Flatten())
    return nn.Sequential(*features, nn.Dropout(0.3), nn.Linear(16 * 16, 10))


RUNS = [(engine, precision) for engine in ("trainer", "fabric") for precision in ("32-true", "16-mixed", "bf16-mixed")]


@pytest.mark.parametrize(("engine", "precision"), [*RUNS[:: 3 if SMALL else 1], ("stacked", "32-true")])
def test_a_second_run_and_a_resumed_run_have_the_same_bits(engine: str, precision: str, found: Any) -> None:
    whole = regularized(3, None, engine, precision)
    again = regularized.__wrapped__(3, None, engine, precision)
    regularized.__wrapped__(2, "kept", engine, precision)
    then = regularized.__wrapped__(3, "kept", engine, precision)
    found |= {"again": apart(whole, again), "resumed": apart(whole, then)}
    assert same_bits(whole, again)
    assert same_bits(whole, then)
    assert engine != "fabric" or same_bits(whole, regularized(3, None, "trainer", precision))


ON_RANKS = ("fedavg", "adafed", "scaffold", "fedadam", "fedmedian", "krum", "fedcyclic", "mediators", "clients' parts")


def as_rank(backend: str, ranks: str, rank: str, port: str, out: str) -> None:
    """Train as one rank of several, which are nodes of one device each: Lightning gives no GPU to two ranks of a node."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "NODE_RANK": rank, "LOCAL_RANK": "0"}
    os.environ |= {"NCCL_SOCKET_IFNAME": "lo", "GLOO_SOCKET_IFNAME": "lo"}
    finals = {}
    for name in ON_RANKS[:: 4 if SMALL else 1]:
        module, data, federation = prepare(name)
        federation.local = replace(federation.local, precision="32-true")
        strategy = DDPStrategy(process_group_backend=backend, cluster_environment=LightningEnvironment())
        trainer(2, federation, num_nodes=int(ranks), strategy=strategy, **ON_IT).fit(module, data)
        finals[name] = {key: tensor.cpu() for key, tensor in outcome(module, federation).items()}
    if rank == "0":
        torch.save(finals, out)


@pytest.mark.parametrize(("backend", "ranks"), [("gloo" if SMALL else "nccl", 1), ("gloo", 2)])
def test_ranks_that_share_the_device_give_what_one_process_gives(backend: str, ranks: int, found: Any) -> None:
    """Two by gloo, since NCCL refuses to use a GPU twice."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    start, environment = [sys.executable, __file__, backend, str(ranks)], os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    started = [subprocess.Popen([*start, str(rank), port, "finals.pt"], env=environment) for rank in range(ranks)]
    try:
        assert [process.wait(120) for process in started] == [0] * ranks
    finally:
        for process in started:
            process.kill()
    for name, ours in torch.load("finals.pt", weights_only=True).items():
        module, data, federation = prepare(name)
        federation.local = replace(federation.local, precision="32-true")
        trainer(2, federation, **ON_IT).fit(module, data)
        found[name] = apart(outcome(module, federation), ours)
        assert found[name] < 1e-5, name


@needs_gpu
def test_memory_grows_with_the_data_and_not_with_the_clients(found: Any) -> None:
    """Ten clients a round out of ever more."""
    beyond = []
    for number in (10, 100, 1000, 5000):
        data = Images(100 * number, 10, 0)
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        net = nn.Sequential(nn.Flatten(), nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 10))
        federation = fl.FederatedOrchestrator(local=fl.LocalTraining(engine="fabric"), clients_per_round=10)
        trainer(3, federation, **ON_IT).fit(Simple(net), fl.FederatedDataModule(data, Consecutive([100] * number)))
        beyond.append(torch.cuda.max_memory_allocated() - sum(tensor.nbytes for tensor in data.train))
        found[f"MiB beyond the data of {number} clients"] = round(beyond[-1] / 2**20, 1)
    assert beyond[-1] < 1.25 * beyond[0] + 8 * 2**20


class Greedy(Plain):
    """One client, with four batches, asks for more memory than any device has."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        """Ask."""
        if self.trainer.num_training_batches == 4:
            torch.empty(2**50, device=self.device)
        return super().training_step(batch, batch_idx)


@pytest.mark.parametrize("engine", ["trainer", "fabric"])
def test_a_client_that_runs_out_of_memory_is_left_out(engine: Any, found: Any) -> None:
    module = Greedy()
    run = federate(module, 2, local=fl.LocalTraining(engine=engine), faults=fl.Faults("skip"), **ACCELERATOR)
    assert (run.global_step, float(run.callback_metrics["federation/failures"])) == (2, 1)
    assert all(bool(torch.isfinite(parameter).all()) for parameter in module.parameters())


# ---------------------------------------------------------------- torch.compile and CUDA graphs


def lenets(make: Callable[[], Any], sizes: list[int], rounds: int = 3, cohort: float = 1.0, **local: Any) -> tuple[Any, Any]:
    """Return weights, and the seconds of the rounds, the accuracy and the number of graphs that were compiled."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    L.seed_everything(6, verbose=False)
    task = fl.ClassificationTask(make(), 10, None, lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9))
    settings, ends = fl.LocalTraining(**{"precision": "32-true", "stack_size": 32, **local}), list[float]()
    note: Any = lambda *_: ends.append(now(torch.device(DEVICE)))  # noqa: E731
    watch = LambdaCallback(on_train_start=note, on_train_epoch_end=note)
    run = trainer(rounds, fl.FederatedOrchestrator(local=settings, clients_per_round=cohort), watch, **ON_IT)
    run.fit(task, fl.FederatedDataModule(Pictures(sum(sizes), 100, batch_size=10), Consecutive(sizes)))
    seconds = [round(end - begun, 3) for begun, end in itertools.pairwise(ends)]
    graphs = int(torch._dynamo.utils.counters["stats"]["unique_graphs"])
    figures = {"seconds": seconds, "accuracy": float(run.callback_metrics["val_accuracy"]), "graphs": graphs}
    return {name.replace("_orig_mod.", ""): tensor for name, tensor in weights(task).items()}, figures


def lenet() -> nn.Module:
    """The usual network."""
    return fl.LeNet(1, 28)


CLIENTS = [40] * (3 if SMALL else 24)
GRAPHS = pytest.param(lenet, "reduce-overhead", 1e-3, marks=needs_gpu)


@pytest.mark.parametrize(("make", "compile", "near"), [(lenet, True, 2e-3), (network, True, 2e-3), GRAPHS])
def test_a_compiled_stack_has_the_weights_of_an_eager_one(make: Any, compile: Any, near: float, found: Any) -> None:
    (expected, found["eager"]), (ours, found["compiled"]) = (
        lenets(make, CLIENTS, engine="stacked", compile=kind) for kind in (False, compile)
    )
    found["apart"] = apart(expected, ours)
    assert found["apart"] < near
    assert found["compiled"]["graphs"] == 1


def test_cohorts_whose_groups_change_in_size_share_few_graphs(found: Any) -> None:
    sizes = [20] * 3 if SMALL else [20] * 12 + [40] * 12
    _, figures = lenets(lenet, sizes, 2 if SMALL else 6, 0.5, engine="stacked", compile=True)
    found |= figures
    assert found["graphs"] <= 8


@pytest.mark.parametrize(("engine", "precision"), [("trainer", "32-true"), ("fabric", "32-true"), ("fabric", "bf16-mixed")])
def test_a_network_that_the_user_has_compiled(engine: str, precision: str, found: Any) -> None:
    settings: Any = {"engine": engine, "precision": precision}
    expected, found["eager"] = lenets(lenet, [40] * 4, **settings)
    ours, found["compiled"] = lenets(lambda: torch.compile(fl.LeNet(1, 28)), [40] * 4, **settings)
    found["apart"] = apart(expected, ours)
    assert found["apart"] < (2e-3 if precision == "32-true" else 5e-2)
    assert found["compiled"]["seconds"][-1] < found["compiled"]["seconds"][0], (
        "the last round took as long as the one that compiles"
    )


def test_a_stack_learns_in_bf16_true_and_refuses_amp(found: Any) -> None:
    for precision in ("32-true", "bf16-true"):
        found[precision] = lenets(lenet, CLIENTS, 1 if SMALL else 30, engine="stacked", precision=precision)[1]
    assert SMALL or found["bf16-true"]["accuracy"] >= found["32-true"]["accuracy"] - 0.1 - 1e-6
    with pytest.raises(fl.ConfigurationError, match="Stacked clients do not support"):
        lenets(lenet, CLIENTS, 1, engine="stacked", precision="bf16-mixed")


# ---------------------------------------------------------------- speed: S with 1,000 clients, W and L, beside the loop by hand


_FULL: dict[str, Any] = {"precision": "32-true"}
_AMP: dict[str, Any] = {"precision": "bf16-mixed"}
_STACK = _FULL | {"engine": "stacked", "stack_size": 100, "skipped": 1}
ROWS: dict[str, tuple[dict[str, Any], int]] = {
    "S: stacked": (_STACK, 10),
    "S: stacked, compiled": (_STACK | {"compile": True}, 10),
    "S: stacked, CUDA graphs": (_STACK | {"compile": "reduce-overhead"}, 10),
    "S: fabric": (_FULL | {"engine": "fabric"}, 2),
    "S: trainer": (_FULL | {"engine": "trainer"}, 2),
    "W: plain Lightning": (_AMP, 3),
    "W: trainer": (_AMP | {"engine": "trainer"}, 3),
    "W: fabric": (_AMP | {"engine": "fabric"}, 3),
    "W: fabric in float32": (_FULL | {"engine": "fabric"}, 3),
    "L: trainer": (_AMP | {"engine": "trainer", "skipped": 1}, 3),
    "L: fabric": (_AMP | {"engine": "fabric", "skipped": 1}, 3),
    "L: fabric in float32": (_FULL | {"engine": "fabric", "skipped": 1}, 3),
}
"""The settings of the local training, and the rounds that are measured at once."""


@functools.lru_cache(maxsize=2)
def workload(name: str, rounds: int, cohort: int = 100) -> Workload:
    """Return a workload, small on a CPU."""
    if SMALL:
        return Workload(name, DEVICE, clients=20, cohort=2, rounds=1, share={"S": 1.0, "L": 1.0}.get(name, 0.02))
    return Workload(name, DEVICE, clients=1000, cohort=cohort, rounds=rounds)


@pytest.mark.parametrize("name", [pytest.param(name, marks=needs_gpu if "graphs" in name else ()) for name in ROWS])
def test_speed(name: str, found: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop by hand and the row in turn, and the loop by hand once more as the control; it keeps its data on the GPU."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)  # as users have it
    settings, rounds = ROWS[name]
    by_hand_on, ours_on = (workload(name[0], number) for number in (2, rounds))
    mixed = settings["precision"] == "bf16-mixed"
    by_hand: Any = functools.partial(by_hand_on.by_hand, autocast=torch.bfloat16 if mixed else None)
    ours = functools.partial(ours_on.centrally if "plain Lightning" in name else ours_on.ours, **settings)
    begun, limit = time.perf_counter(), 1 if SMALL else 60 if settings.get("compile") else 20
    torch._dynamo.reset()
    by_hand()
    first = ours()  # warm up, and compile
    if not SMALL:
        torch.cuda.reset_peak_memory_stats()
    own, theirs = [], []
    while len(own) < 5 and (not own or time.perf_counter() - begun < limit):
        theirs.append(by_hand())
        own.append(ours())
    ratios = sorted(mine / other for mine, other in zip(own, theirs, strict=True))
    found |= {"round": statistics.median(own), "by hand": statistics.median(theirs), "ratio": statistics.median(ratios)}
    found |= {"spread": (ratios[0], ratios[-1]), "control": by_hand() / found["by hand"], "first": first, "repeats": len(own)}
    if not SMALL:
        found["peak MiB"] = torch.cuda.max_memory_allocated() / 2**20


if __name__ == "__main__":
    as_rank(*sys.argv[1:])
