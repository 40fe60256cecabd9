"""What a GPU waits for, counted without one: operators, launches, reads and calls of Python in a step, a client and a round.

The work of the host decides the speed of small models on a GPU. It is the same on a CPU, where it can be counted: every
operator that computes is a launch there, and whatever Python reads from a tensor waits for the device.

A round of n clients with s steps each takes ``a + n * (b + s * c)``, or ``a + n * b + s * c`` if clients step together. Counts
repeat exactly, so that three runs of the workload S, of which two differ in s or n, give a, b and c.
"""

from __future__ import annotations

import contextlib
import gc
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from typing import Any

import lightning as L
from benchmark_loop import Images, Workload
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

KINDS = {
    "operators": "operators of torch, views included",
    "launches": "operators that compute something",
    "reads": "values that Python reads from tensors",
    "calls": "calls of functions written in Python, by anyone",
}
PARTS = ("step", "client", "round")
ENGINES = ("hand", "fabric", "trainer", "stacked")
_CLIENTS, _STEPS = 2, 2
_READS = {"_local_scalar_dense", "equal", "nonzero", "masked_select", "_unique2"}
_METHODS = {Tensor.tolist, Tensor.numpy, Tensor.__array__}
"""Reads that are no operators on a CPU."""
_NO_KERNEL = {"_local_scalar_dense", "empty", "empty_like", "empty_strided", "new_empty", "unsafe_split"}


@cache
def computes(operator: Any) -> bool:
    """Return whether an operator launches a kernel: whether it returns new tensors, or changes some."""
    schema = operator._schema
    new = any(str(found.type).startswith(("Tensor", "List[Tensor]")) and found.alias_info is None for found in schema.returns)
    return operator.overloadpacket.__name__ not in _NO_KERNEL and (schema.is_mutable or new)


@contextlib.contextmanager
def operators(found: Counter[str]) -> Iterator[None]:
    """Count operators, launches and reads."""

    class Operators(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            found["operators"] += 1
            found["launches"] += computes(func)
            found["reads"] += func.overloadpacket.__name__ in _READS
            return func(*args, **(kwargs or {}))

    class Reads(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            found["reads"] += func in _METHODS
            return func(*args, **(kwargs or {}))

    with Reads(), Operators():
        yield


@contextlib.contextmanager
def calls(found: Counter[str]) -> Iterator[None]:
    """Count calls, and continued generators."""

    def note(frame: Any, event: str, arg: Any) -> None:
        if event == "call":
            found["calls"] += 1

    before = sys.getprofile()
    gc.disable()  # it calls finalizers
    sys.setprofile(note)
    try:
        yield
    finally:
        sys.setprofile(before)
        gc.enable()


COUNTERS = (operators, calls)


class _Rounds(L.Callback):
    """Use one counter in each round after the first, in which parts are built, and what clients share is compared."""

    def __init__(self, found: Counter[str]) -> None:
        self._found, self._open = found, contextlib.ExitStack()

    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if trainer.current_epoch:
            self._open.enter_context(COUNTERS[trainer.current_epoch - 1](self._found))

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._open.close()


def counts_of_round(engine: str, clients: int, steps: int) -> Counter[str]:
    """Return what a round of S asks for.

    Args:
        engine: the engine, or 'hand' for the loop by hand.
        clients: the number of clients in a round.
        steps: the number of each client's steps.
    """
    found, one_round = Counter[str](), Counter[str]()
    if engine != "hand":
        work, settings = _workload(clients, steps, 1 + len(COUNTERS)), {"stack_size": clients} if engine == "stacked" else {}
        work.ours(_Rounds(found), engine=engine, **settings)
        return found
    for rounds, counts_of_run in ((2, found), (1, one_round)):
        work = _workload(clients, steps, rounds)
        for counter in COUNTERS:
            with counter(counts_of_run):
                work.by_hand()
    found.subtract(one_round)
    return found


def _workload(clients: int, steps: int, rounds: int) -> Workload:
    work = Workload("S", clients=2 * clients, cohort=clients, rounds=rounds)
    work.sizes = [steps * work.data.batch_size] * (2 * clients)
    work.data = Images(sum(work.sizes), work.data.batch_size, 0)
    return work


def work_of(engine: str) -> dict[str, dict[str, int]]:
    """Return the counts of a step, of a client besides its steps, and of a round besides its clients, by kind."""
    n, s = _CLIENTS, _STEPS
    usual, longer, more = (counts_of_round(engine, *sizes) for sizes in ((n, s), (n, s + 1), (n + 1, s)))
    together = engine == "stacked"
    found: dict[str, dict[str, int]] = {part: {} for part in PARTS}
    for kind in KINDS:
        step, rest = divmod(longer[kind] - usual[kind], 1 if together else n)
        assert not rest, f"{engine} does not have the same number of {kind} in every step"
        client = more[kind] - usual[kind] - (0 if together else s * step)
        own = usual[kind] - n * client - (s if together else n * s) * step
        for part, value in zip(PARTS, (step, client, own), strict=True):
            found[part][kind] = value
    return found


def counts() -> None:
    """Print the table."""
    print(f"\n| {' | '.join(('', *(f'{kind}: {part}' for kind in KINDS for part in PARTS)))} |")
    print("|---" * (1 + len(KINDS) * len(PARTS)) + "|")
    for engine in ENGINES:
        found = work_of(engine)
        cells = (str(found[part][kind]) for kind in KINDS for part in PARTS)
        print(f"| {' | '.join((engine, *cells))} |", flush=True)
