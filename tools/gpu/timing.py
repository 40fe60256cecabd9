"""The rows and profiles of tools/benchmark_gpu.py, each as a check."""

from __future__ import annotations

import benchmark_gpu

from gpu.setting import Findings, NotRunError, Setting


def measurement(setting: Setting, found: Findings) -> None:
    """Measure a row; a target that is missed is no failure, the report shows it."""
    compiled = (benchmark_gpu.ROWS[setting.name].settings or {}).get("compile")
    if compiled == "reduce-overhead" and setting.small:
        raise NotRunError("CUDA graphs need a GPU")
    limit = 60 if compiled else 20  # each run of a compiled row traces its step again
    found.figures |= benchmark_gpu.measure(setting.name, setting.device, setting.of(limit, 1), setting.of(5, 1))


def profile(setting: Setting, found: Findings) -> None:
    """Count what a step asks of the device."""
    found.figures |= benchmark_gpu.profile(setting.name.removeprefix("profile: "), setting.device)
