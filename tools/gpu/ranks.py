"""Ranks: NCCL with one, and two on one GPU by gloo (NCCL refuses a GPU twice)."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from algorithms import outcome, prepare
from federations import trainer

from gpu.setting import Findings, Setting, equal_bits, largest_difference

_ALGORITHMS = ("fedavg", "adafed", "scaffold", "fedadam", "fedmedian", "krum", "fedcyclic", "mediators", "clients' parts")


def one_rank(setting: Setting, found: Findings) -> None:
    """A process group of one by NCCL gives what no process group gives."""
    _compare(setting, found, "nccl" if setting.device == "cuda" else "gloo", 1, _ALGORITHMS[: setting.of(3, 1)])


def two_ranks(setting: Setting, found: Findings) -> None:
    """Two ranks that share the device give what one gives."""
    _compare(setting, found, "gloo", 2, _ALGORITHMS[: setting.of(9, 2)])


def _compare(setting: Setting, found: Findings, backend: str, ranks: int, names: tuple[str, ...]) -> None:
    import torch

    out = Path("finals.pt").resolve()
    failure = _launch(setting, backend, ranks, names, out)
    found.require(not failure, f"{backend}, {ranks} ranks: {failure}")
    if failure or not out.exists():
        return
    finals: dict[str, Any] = torch.load(out, weights_only=True)
    found["group"] = {name: int(size) for name, size in finals.pop("_backend").items()}
    for name in names:
        module, data, federation = prepare(name)
        federation.local = replace(federation.local, precision="32-true")
        trainer(2, federation, accelerator=setting.accelerator, devices=1).fit(module, data)
        alone = outcome(module, federation)
        gap = largest_difference(alone, finals[name])
        found[name] = {"same_bits": equal_bits(alone, finals[name]), "largest_difference": gap}
        found.require(gap < 1e-5, f"{name}: {ranks} ranks differ from one process by {gap:.2g}")


def _launch(setting: Setting, backend: str, ranks: int, names: tuple[str, ...], out: Path) -> str:
    options = ["--out", str(out), "--device", setting.device, "--backend", backend, "--algorithms", *names]
    return launch("rank.py", options, ranks, setting.of(120, 150))[0]


def launch(script: str, options: Sequence[str], ranks: int, limit: float) -> tuple[str, list[str]]:
    """Run a script of this folder as ranks that are nodes of one device each; return what went wrong and what each printed."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    command = [sys.executable, str(Path(__file__).with_name(script)), "--nodes", str(ranks), "--port", port, *options]
    logs = [open(f"rank{k}.log", "w+", encoding="utf-8") for k in range(ranks)]  # noqa: SIM115
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    started = [
        subprocess.Popen([*command, "--node", str(k)], stdout=log, stderr=subprocess.STDOUT, env=environment)
        for k, log in enumerate(logs)
    ]
    end = time.monotonic() + limit
    try:
        codes = [process.wait(timeout=max(1.0, end - time.monotonic())) for process in started]
    except subprocess.TimeoutExpired:
        codes = [process.poll() for process in started]  # type: ignore[misc]
    finally:
        for process in started:
            process.kill()
    told = []
    for log in logs:
        log.seek(0)
        told.append(log.read())
        log.close()
    if not any(codes) and None not in codes:
        return "", told
    ends = [
        f"rank {k} ended with {code}: {' | '.join(text.split(chr(10))[-5:])[-600:]}"
        for k, (code, text) in enumerate(zip(codes, told, strict=True))
    ]
    return "; ".join(ends), told
