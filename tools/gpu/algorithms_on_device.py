"""Every algorithm of the tests on the device against the CPU, where the tests compare it with its paper."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from algorithms import ALGORITHMS, prepare
from federations import trainer, weights

from fl_lightning.errors import EngineError
from gpu.setting import Findings, Setting, equal_bits, largest_difference

_ROUNDS = 2


def against_cpu(setting: Setting, found: Findings) -> None:
    """Compare the weights after two rounds in float32, by each engine that can train the algorithm."""
    names = list(ALGORITHMS)[:: setting.of(1, 12)]
    gaps: dict[str, float] = {}
    other_bits, refused = [], dict[str, str]()
    for name in names:
        expected = fitted(name, "cpu")
        by_engine = {}
        stacks = name in ("fedavg", "scaffold", "fednova", "adafed")
        for engine in ("trainer", "fabric", "stacked") if stacks else ("trainer", "fabric"):
            what = f"{name}, {engine}"
            try:
                ours = fitted(name, setting.accelerator, engine)
            except EngineError as refusal:  # as of a stream by 'fabric'
                refused[what] = str(refusal)[:80]
                continue
            except Exception as error:
                found.require(False, f"{what}: {type(error).__name__}: {str(error)[:200]}")
                continue
            by_engine[engine] = ours
            gaps[what] = largest_difference(expected, ours)
            # A choice between nearly equal models, or a rounding of an update, may fall otherwise: that shows as a jump.
            found.require(gaps[what] < 2e-2, f"{what}: {gaps[what]:.2g} from the CPU")
        if {"trainer", "fabric"} <= by_engine.keys() and not equal_bits(by_engine["trainer"], by_engine["fabric"]):
            other_bits.append(name)
    found["compared"], found["fabric with other bits than trainer"] = len(gaps), other_bits
    found.require(not other_bits, f"fabric has other bits than trainer: {', '.join(other_bits)}")
    found["refused"] = refused
    found["largest_differences"] = dict(sorted(gaps.items(), key=lambda pair: -pair[1])[:6])


def fitted(name: str, accelerator: str, engine: Any = "trainer", rounds: int = _ROUNDS, **flags: Any) -> dict[str, Any]:
    """Return the weights of an algorithm after some rounds in float32."""
    module, data, federation = prepare(name)
    federation.local = replace(federation.local, precision="32-true", engine=engine)
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    try:
        run = trainer(rounds, federation, accelerator=accelerator, devices=1, **flags)
        run.fit(module, data)
    finally:
        torch.backends.cudnn.allow_tf32 = before
    return weights(module)
