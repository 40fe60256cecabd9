"""AMP: what is trained in 16-mixed and bf16-mixed, against float32 and against a loop by hand."""

from __future__ import annotations

import csv
import itertools
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import lightning as L
import torch
from federations import Blobs, Consecutive, Plain, federate, trainer, weights
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from fl_lightning import LocalTraining
from gpu.setting import ROOT, Findings, NotRunError, Setting, largest_difference

# ---------------------------------------------------------------- adafed_mnist


class Scales:
    """Sees the scale of every ``GradScaler`` before and after each update: a lower one says that the step was skipped.

    Attributes:
        fits: for each scaler in turn, which is one for each fit of a client, whether its steps were skipped.
    """

    def __init__(self) -> None:
        self.fits: list[list[bool]] = []
        self._last: Any = None

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Watch the updates within."""
        update = torch.amp.GradScaler.update

        def watching(scaler: Any, *args: Any, **kwargs: Any) -> None:
            if scaler is not self._last:
                self.fits.append([])
                self._last = scaler
            before = scaler.get_scale()
            update(scaler, *args, **kwargs)
            self.fits[-1].append(scaler.get_scale() < before)

        with patch.object(torch.amp.GradScaler, "update", watching):
            yield

    @property
    def skipped(self) -> tuple[int, int, int]:
        """Return all steps, those that were skipped before the first that counted, and those that were skipped later."""
        total = first = later = 0
        for steps in self.fits:
            begin = next((k for k, skip in enumerate(steps) if not skip), len(steps))
            total, first, later = total + len(steps), first + begin, later + sum(steps[begin:])
        return total, first, later


def adafed_mnist(setting: Setting, found: Findings) -> None:
    """Fit ``adafed_mnist`` by the command line in three precisions: accuracy, losses, skipped steps."""
    rounds = setting.of(10, 2)
    accuracy = {}
    for precision in ("32-true", "16-mixed", "bf16-mixed"):
        scales = Scales()
        begun = time.perf_counter()
        with scales.watched():
            rows = _command_line(setting, precision, rounds)
        accuracy[precision] = _last(rows, "val_accuracy")
        losses = [float(value) for row in rows for name, value in row.items() if value and name.endswith("loss")]
        total, first, later = scales.skipped
        found[precision] = {
            "val_accuracy": accuracy[precision],
            "val_loss": _last(rows, "val_loss"),
            "seconds": round(time.perf_counter() - begun, 1),
            "scaled_steps": total,
            "skipped_at_first": first,
            "skipped_later": later,
        }
        found.require(losses and all(math.isfinite(value) for value in losses), f"{precision}: a loss is not finite")
        few = first + later <= max(3 * len(scales.fits), 0.02 * total)  # which ones: see the check 'scaled_steps'
        found.require(few, f"{precision}: {first + later} of {total} steps were skipped in {len(scales.fits)} fits")
    if setting.device == "cuda":
        found.require(found.figures["16-mixed"]["scaled_steps"] > 0, "16-mixed trained without gradient scaling")
    for precision, value in accuracy.items():
        near = value >= accuracy["32-true"] - 0.03
        found.require(near, f"{precision}: accuracy {value:.4f}, float32 {accuracy['32-true']:.4f}")
    least = 0.85 if not setting.small else 0.0
    found.require(accuracy["32-true"] >= least, f"float32: accuracy {accuracy['32-true']:.4f} after {rounds} rounds")


def _command_line(setting: Setting, precision: str, rounds: int) -> list[dict[str, str]]:
    from fl_lightning.cli.federation_cli import main

    folder = Path(precision).resolve()
    args = [f"--config={ROOT / 'configs' / 'adafed_mnist.yaml'}", f"--trainer.max_epochs={rounds}"]
    args += [f"--trainer.accelerator={setting.accelerator}", "--trainer.devices=1", f"--federation.local.precision={precision}"]
    args += [
        "--trainer.logger=CSVLogger",
        f"--trainer.logger.save_dir={folder}",
        f"--trainer.default_root_dir={folder / 'run'}",
    ]
    args += ["--trainer.enable_progress_bar=false", "--federation_report.partition=false"]
    root = [f"--data.datamodule.root={setting.mnist}"] if setting.mnist else ["--data.datamodule.source=embedded"]
    if setting.small:
        args += [
            "--model.init_args.network=LeNet",
            "--federation.local.max_epochs=1",
            "--federation.local.limit_train_batches=2",
        ]
        args += ["--trainer.limit_val_batches=1"]
    main(["fit", *args, *root])
    (metrics,) = folder.glob("lightning_logs/*/metrics.csv")
    with metrics.open() as file:
        return list(csv.DictReader(file))


def _last(rows: list[dict[str, str]], name: str) -> float:
    return [float(row[name]) for row in rows if row.get(name)][-1]


# ---------------------------------------------------------------- which steps are skipped


class Growing(Plain):
    """A loss that grows from step to step, so that its scaled gradients overflow again and again."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        """Return the loss times 8, 16, 32, ..."""
        return super().training_step(batch, batch_idx) * 2.0 ** min(self.trainer.global_step + 3, 20)


def scaled_steps(setting: Setting, found: Findings) -> None:
    """One client that keeps its optimizer, 16-mixed: the steps that plain training skips, and its weights."""
    if setting.small:
        raise NotRunError("16-mixed needs a GPU")
    rounds, epochs, size = 3, 2, 23
    flags = {"accelerator": setting.accelerator, "devices": 1}

    def module() -> Growing:
        torch.manual_seed(3)
        return Growing(lr=1e-5)

    scales, plain = Scales(), module()
    with scales.watched():
        run = trainer(rounds * epochs, precision="16-mixed", **flags)
        run.fit(plain, DataLoader(TensorDataset(*Blobs(size).train), 5))
    expected = [skip for fit in scales.fits for skip in fit]
    found["steps"], found["skipped"] = len(expected), sum(expected)
    found.require(any(expected[5:]), "plain training skips no later step, so this compares nothing")
    for engine in ("trainer", "fabric"):
        scales, client = Scales(), module()
        local = LocalTraining(engine=engine, max_epochs=epochs, precision="16-mixed", optimizer_state="kept")
        with scales.watched():
            data, parts = Blobs(size, shuffle=False), Consecutive([size])
            federate(client, rounds, data=data, partitioner=parts, local=local, accelerator=setting.accelerator)
        skipped = [skip for fit in scales.fits for skip in fit]
        gap = largest_difference(weights(plain), weights(client))
        found[engine] = {"same steps": skipped == expected, "largest_difference": gap}
        found.require(skipped == expected, f"{engine}: skips {skipped}, where plain training skips {expected}")
        found.require(gap < 1e-5, f"{engine}: {gap:.2g} from plain training")


# ---------------------------------------------------------------- the proximal gradient and clipping under gradient scaling

OPTIMIZERS: dict[str, Callable[..., Any]] = {
    "SGD": lambda p, fused: torch.optim.SGD(p, lr=0.2, fused=fused),
    "SGD with momentum": lambda p, fused: torch.optim.SGD(p, lr=0.1, momentum=0.9, fused=fused),
    "Adam": lambda p, fused: torch.optim.Adam(p, lr=0.02, eps=1e-4, fused=fused),
}


class Chosen(Plain):
    """The small network with another optimizer."""

    def __init__(self, name: str, fused: bool) -> None:
        super().__init__()
        self.name, self.fused = name, fused

    def configure_optimizers(self) -> Any:
        """Return it."""
        return OPTIMIZERS[self.name](self.parameters(), self.fused)


def proximal(setting: Setting, found: Findings) -> None:
    """One client, one round: FedProx with and without clipping, by engine, precision and optimizer, against a loop by hand."""
    L.seed_everything(3, verbose=False)
    start = Plain().state_dict()
    precisions = ("16-mixed", "bf16-mixed", "32-true") if setting.device == "cuda" else ("bf16-mixed", "32-true")
    compared, worst = 0, ("", 0.0)
    for precision, name, clip in itertools.product(precisions, OPTIMIZERS, (None, 0.05)):
        mu = 0.7 if clip is None else 50.0  # clipped steps are short: pull harder
        expected = by_hand(start, name, precision, mu, clip, setting.device)
        without = by_hand(start, name, precision, 0.0, clip, setting.device)
        pulled = largest_difference(expected, without)
        found.require(pulled > 0.01, f"{name}, {precision}: the proximal term moves nothing, {pulled}")
        near = 0.05 * largest_difference(expected, {key: start[f"net.{key}"] for key in expected})
        for engine, fused in itertools.product(("trainer", "fabric"), (False, True)):
            what = f"{engine}, {precision}, {name}{', fused' if fused else ''}{', clipped' if clip else ''}"
            try:
                ours = _federated(setting, start, name, fused, engine, precision, mu, clip)
            except Exception as error:
                found[what] = f"refused: {type(error).__name__}: {str(error)[:200]}"
                allowed = fused and clip is not None and precision.endswith("mixed") and "clip" in str(error)
                found.require(allowed, f"{what}: {type(error).__name__}: {str(error)[:200]}")
                continue
            compared += 1
            gap = largest_difference(ours, expected)
            worst = max(worst, (what, gap), key=lambda pair: pair[1])
            found.require(gap < near, f"{what}: {gap:.2g} from the loop by hand, where {near:.2g} is allowed")
    found["compared"], found["largest_difference"] = compared, {"where": worst[0], "value": worst[1]}


def by_hand(start: Any, name: str, precision: str, mu: float, clip: float | None, device: str) -> dict[str, Any]:
    """Return the weights after an epoch of FedProx as one would write it; the optimizer is not fused."""
    module = Plain()
    module.load_state_dict(start)
    net = module.net.to(device)
    anchors = [parameter.detach().clone() for parameter in net.parameters()]
    optimizer = OPTIMIZERS[name](net.parameters(), False)
    scaler = torch.amp.GradScaler(device, enabled=precision == "16-mixed")
    dtype = torch.float16 if precision == "16-mixed" else torch.bfloat16
    inputs, labels = Blobs().train
    for x, y in zip(inputs.to(device).split(5), labels.to(device).split(5), strict=True):
        optimizer.zero_grad()
        with torch.autocast(device, dtype, enabled=precision != "32-true"):
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


def _federated(
    setting: Setting, start: Any, name: str, fused: bool, engine: Any, precision: Any, mu: float, clip: float | None
) -> dict[str, Any]:
    module = Chosen(name, fused)
    module.load_state_dict(start)
    local = LocalTraining(engine=engine, precision=precision, proximal_mu=mu, gradient_clip_val=clip)
    data = Blobs(shuffle=False)
    federate(module, 1, data=data, partitioner=Consecutive([40]), local=local, accelerator=setting.accelerator)
    return weights(module.net)
