"""The workloads on a GPU: engines against the loop by hand on the same GPU, and what a step asks of it.

S has 1,000 clients here, 100 a round. The loop by hand keeps its data on the GPU and waits for nothing within a round.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import statistics
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import lightning as L
import torch
from benchmark_loop import Workload
from torch.profiler import ProfilerActivity

BF16 = torch.bfloat16
_STEPS = 10
"""Of a client of S in an epoch."""


@dataclass(frozen=True)
class Row:
    """One row of the table.

    Attributes:
        workload: its name.
        settings: of the local training; None for the loop by hand again.
        central: whether a plain Trainer runs on all examples instead: what Lightning itself costs.
        autocast: of the loop by hand that it is compared with.
        rounds: that are measured at once.
        target: the ratio to the loop by hand that is wanted; None for any.
    """

    workload: str
    settings: dict[str, Any] | None = field(default_factory=dict)
    autocast: torch.dtype | None = None
    rounds: int = 3
    target: float | None = None
    central: bool = False


_FULL, _AMP = {"precision": "32-true"}, {"precision": "bf16-mixed"}
_STACK = _FULL | {"engine": "stacked", "stack_size": 100, "skipped": 1}
ROWS = {
    "S: hand again": Row("S", None),
    "S: stacked": Row("S", _STACK, rounds=10, target=0.1),
    "S: stacked, compiled": Row("S", _STACK | {"compile": True}, rounds=10, target=0.1),
    "S: stacked, CUDA graphs": Row("S", _STACK | {"compile": "reduce-overhead"}, rounds=10, target=0.1),
    "S: fabric": Row("S", _FULL | {"engine": "fabric"}, rounds=2, target=1.05),
    "S: trainer": Row("S", _FULL | {"engine": "trainer"}, rounds=2),
    "W bf16: plain Lightning": Row("W", {"precision": "bf16-mixed"}, BF16, central=True),
    "W bf16: trainer": Row("W", _AMP | {"engine": "trainer"}, BF16),
    "W bf16: fabric": Row("W", _AMP | {"engine": "fabric"}, BF16, target=1.05),
    "W float32: fabric": Row("W", _FULL | {"engine": "fabric"}, target=1.05),
    "L bf16: trainer": Row("L", _AMP | {"engine": "trainer", "skipped": 1}, BF16),
    "L bf16: fabric": Row("L", _AMP | {"engine": "fabric", "skipped": 1}, BF16),
    "L float32: fabric": Row("L", _FULL | {"engine": "fabric", "skipped": 1}),
}
PROFILES: dict[str, dict[str, Any]] = {
    "fabric": _FULL | {"engine": "fabric"},
    "stacked": _FULL | {"engine": "stacked", "stack_size": 100},
    "stacked, compiled": _FULL | {"engine": "stacked", "stack_size": 100, "compile": True},
}


@functools.lru_cache(maxsize=2)
def workload(name: str, device: str, rounds: int, cohort: int = 100) -> Workload:
    """Return a workload, small on a CPU."""
    if device == "cpu":
        return Workload(name, device, clients=20, cohort=2, rounds=1, share={"S": 1.0, "L": 1.0}.get(name, 0.02))
    return Workload(name, device, clients=1000, cohort=cohort, rounds=rounds)


def measure(name: str, device: str, limit: float = 25.0, repeats: int = 5) -> dict[str, Any]:
    """Measure a row: the loop by hand, the row, in turn, and the loop by hand once more as the control.

    Args:
        name: of the row.
        device: ``cuda``, or ``cpu`` to try it out.
        limit: seconds after which nothing is repeated.
        repeats: at most.
    """
    row = ROWS[name]
    hand_work, own_work = workload(row.workload, device, 2), workload(row.workload, device, row.rounds)
    hand: Callable[[], float] = lambda: hand_work.by_hand(autocast=row.autocast)  # noqa: E731
    ours: Callable[[], float] = hand
    if row.settings is not None:
        ours = functools.partial(own_work.centrally if row.central else own_work.ours, **row.settings)
    begun = time.perf_counter()
    torch._dynamo.reset()
    hand()
    first = ours()  # warm up, and compile
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    own, theirs = [], []
    while len(own) < repeats and (not own or time.perf_counter() - begun < limit):
        theirs.append(hand())
        own.append(ours())
    control = hand()
    ratios = sorted(mine / other for mine, other in zip(own, theirs, strict=True))
    figures = {
        "seconds_per_round": statistics.median(own),
        "hand": statistics.median(theirs),
        "ratio": statistics.median(ratios),
        "spread": [ratios[0], ratios[-1]],
        "control": control / statistics.median(theirs),
        "first": first,
        "repeats": len(own),
        "target": row.target,
    }
    if device == "cuda":
        figures["peak_mib"] = torch.cuda.max_memory_allocated() / 2**20
    return {name: round(value, 4) if isinstance(value, float) else value for name, value in figures.items()}


# ---------------------------------------------------------------- what a step asks of the device

KINDS = {
    "item": ("aten::_local_scalar_dense",),
    "nonzero": ("aten::nonzero",),
    "synchronisations": ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize"),
    "copies to the device": ("Memcpy HtoD",),
    "copies from the device": ("Memcpy DtoH",),
    "copies within the device": ("Memcpy DtoD",),
    "launches": ("cudaLaunchKernel", "cuLaunchKernel", "cudaGraphLaunch"),
    "operators": ("aten::",),
}
"""What is counted, and how the profiler's names of it begin."""


class Second(L.Callback):
    """Enters a context for the second round alone: in the first, things are built.

    Args:
        context: entered before the round and left after it.
    """

    def __init__(self, context: contextlib.AbstractContextManager[Any]) -> None:
        self._context = context

    def on_train_epoch_start(self, trainer: L.Trainer, *_: Any) -> None:
        if trainer.current_epoch == 1:
            self._context.__enter__()

    def on_train_epoch_end(self, trainer: L.Trainer, *_: Any) -> None:
        if trainer.current_epoch == 1:
            if trainer.strategy.root_device.type == "cuda":
                torch.cuda.synchronize()
            self._context.__exit__(None, None, None)


def counted(events: Any) -> Counter[str]:
    """Return how often the profiler saw each kind of event."""
    found: Counter[str] = Counter()
    for event in events:
        for kind, names in KINDS.items():
            if event.key.startswith(names):
                found[kind] += event.count
    return found


def profile(name: str, device: str) -> dict[str, Any]:
    """Count what one more step costs: two local epochs against one, in the second round of S."""
    settings = PROFILES[name]
    work = workload("S", device, 2, 10 if settings["engine"] == "fabric" else 100)
    work.rounds = 2
    cohort = int(work.cohort)
    counts, places, busy = [], [], 0.0
    for epochs in (1, 2):
        activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if device == "cuda" else [])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            profiler = torch.profiler.profile(activities=activities)
            begun = time.perf_counter()
            work.ours(None, Second(profiler), max_epochs=epochs, **settings)
        events = profiler.key_averages()
        counts.append(counted(events))
        own = [event for event in events if event.device_type == torch.autograd.DeviceType.CUDA]
        busy = sum(event.self_device_time_total for event in own) / 1e6
        waits: Counter[str] = Counter()
        work.ours(None, Second(waiting(waits, device)), max_epochs=epochs, **settings)
        places.append(waits)
    steps = _STEPS * (cohort if settings["engine"] == "fabric" else 1)
    figures: dict[str, Any] = {kind: round((counts[1][kind] - counts[0][kind]) / steps, 2) for kind in KINDS}
    figures |= {"steps_in_a_round": steps, "device_seconds_of_two_epochs": round(busy, 4)}
    figures["round_besides_steps"] = {kind: 2 * counts[0][kind] - counts[1][kind] for kind in KINDS if kind != "operators"}
    figures["waits_per_step"] = {
        place: round((places[1][place] - places[0][place]) / steps, 2)
        for place, _ in places[1].most_common(12)
        if places[1][place] > places[0][place]
    }
    figures["waits_besides_steps"] = dict(places[0].most_common(8))
    figures["seconds"] = round(time.perf_counter() - begun, 1)
    return figures


@contextlib.contextmanager
def waiting(found: Counter[str], device: str) -> Iterator[None]:
    """Count the lines of Python that wait for the GPU."""
    if device != "cuda":
        yield
        return
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode("default")
            for warning in told:
                if "synchronizing" in str(warning.message):
                    found[f"{'/'.join(Path(warning.filename).parts[-3:])}:{warning.lineno}"] += 1


def gpu(args: argparse.Namespace) -> None:
    """Print both tables."""
    if args.device == "cuda" and not torch.cuda.is_available():
        raise SystemExit("There is no GPU here. To try the rows out: --device cpu")
    print("\n| on a GPU | seconds per round | by hand | ratio to hand | spread | control | wanted | peak MiB |")
    print("|---|---|---|---|---|---|---|---|")
    for name in ROWS:
        f = measure(name, args.device, repeats=args.repeats)
        spread = f"{f['spread'][0]:.2f} to {f['spread'][1]:.2f}"
        cells = (name, f"{f['seconds_per_round']:.3f}", f"{f['hand']:.3f}", f"{f['ratio']:.3f}", spread, f"{f['control']:.2f}")
        print(f"| {' | '.join(cells)} | {f['target'] or ''} | {f.get('peak_mib', '')} |", flush=True)
    print("\n| a step of S | " + " | ".join(PROFILES) + " |\n|---|" + "---|" * len(PROFILES))
    profiles = {name: profile(name, args.device) for name in PROFILES}
    for kind in KINDS:
        print(f"| {kind} | " + " | ".join(str(found[kind]) for found in profiles.values()) + " |")


MEASUREMENTS: dict[str, Callable[[argparse.Namespace], None]] = {"gpu": gpu}
