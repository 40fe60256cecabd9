"""The rows and profiles of tools/benchmark_gpu.py, each as a check."""

from __future__ import annotations

import benchmark_gpu

from gpu.setting import Findings, NotRunError, Setting


def row(setting: Setting, found: Findings) -> None:
    """Measure a row; a target that is missed is no failure, the report shows it."""
    if benchmark_gpu.ROWS[setting.name].graphs and setting.small:
        raise NotRunError("CUDA graphs need a GPU")
    found.figures |= benchmark_gpu.measure(setting.name, setting.device, setting.of(30, 1), setting.of(5, 1))


def profile(setting: Setting, found: Findings) -> None:
    """Count what a step asks of the device."""
    found.figures |= benchmark_gpu.profile(setting.name.removeprefix("profile: "), setting.device)
