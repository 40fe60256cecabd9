"""Runs checks by name, one after another, in a process that may die: reads names, writes a line of JSON for each."""

from __future__ import annotations

import gc
import importlib
import json
import os
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any, TextIO

from gpu.setting import Findings, NotRunError, Setting
from gpu.stages import find

_FATAL = ("CUDA error", "device-side assert", "illegal memory access", "cudaError", "unspecified launch failure")
"""Errors after which a process cannot use its GPU any more."""


def serve(device: str, mnist: str | None) -> None:
    """Run the checks that standard input names; what anything else prints goes to standard error."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        record, fatal = run(Setting(device, line.strip(), mnist))
        _answer(answers, record)
        if fatal:
            os._exit(1)  # the context is gone: a new process takes the next check


def _answer(answers: TextIO, record: dict[str, Any]) -> None:
    answers.write(json.dumps(record, default=str) + "\n")
    answers.flush()


def run(setting: Setting) -> tuple[dict[str, Any], bool]:
    """Run one check: its record, and whether this process is of no use afterwards."""
    found, error, ok, fatal = Findings(), None, True, False
    begun, before = time.perf_counter(), Path.cwd()
    try:
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            os.chdir(folder)
            try:
                module, _, function = find(setting.name).function.partition(":")
                getattr(importlib.import_module(f"gpu.{module}"), function)(setting, found)
            finally:
                os.chdir(before)
    except NotRunError as reason:
        ok, error = None, str(reason)  # type: ignore[assignment]
    except BaseException as raised:
        ok, error = False, _text(raised)
        fatal = any(sign in error for sign in _FATAL)
    if found.failures:
        ok, error = False, "; ".join([*found.failures, *([error] if error else [])])
    record = {"name": setting.name, "ok": ok, "seconds": round(time.perf_counter() - begun, 2)}
    record |= {"figures": found.figures, "error": error}
    if not fatal:
        _clear()
    return record, fatal


def _text(error: BaseException) -> str:
    """Return an error with the end of its way through the code."""
    frames = traceback.extract_tb(error.__traceback__)[-4:]
    way = " > ".join(f"{Path(frame.filename).name}:{frame.lineno} {frame.name}" for frame in frames)
    return f"{type(error).__name__}: {str(error)[:1500]} [{way}]"


def _clear() -> None:
    gc.collect()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
