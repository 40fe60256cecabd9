"""The machine, and what is installed on it."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib import metadata

from gpu.setting import ROOT, Findings, Setting

_SHOWN = ("lightning", "torchmetrics", "torchvision", "triton", "numpy", "wandb", "jsonargparse", "peft", "mlxtend")


def environment(setting: Setting, found: Findings) -> None:
    """Note device, versions, and the requirements of the package that are not met."""
    import torch

    import fl_lightning

    found["python"] = platform.python_version()
    found["torch"] = torch.__version__
    found["cuda"] = torch.version.cuda
    found["cudnn"] = torch.backends.cudnn.version()
    found["cores"] = os.cpu_count()
    found["fl_lightning"] = fl_lightning.__version__
    found["commit"] = _first_line("git", "-C", str(ROOT), "rev-parse", "--short", "HEAD")
    found["versions"] = {name: version for name in _SHOWN if (version := _version(name))}
    unmet = unmet_requirements()
    found["unmet"] = unmet
    found.require(not unmet, f"requirements are not met: {', '.join(unmet)}")
    if setting.device == "cuda":
        found.require(torch.cuda.is_available(), "torch sees no GPU")
        properties = torch.cuda.get_device_properties(0)
        found["device"] = properties.name
        found["memory_gib"] = round(properties.total_memory / 2**30, 1)
        found["capability"] = f"{properties.major}.{properties.minor}"
        found["bf16"] = torch.cuda.is_bf16_supported(including_emulation=False)
        found["driver"] = _first_line("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
    else:
        found["device"] = f"CPU, {platform.machine()}"


def unmet_requirements() -> list[str]:
    """Return what pyproject.toml requires and what is not there, or too old."""
    from packaging.requirements import Requirement

    lines = (ROOT / "pyproject.toml").read_text().split("\ndependencies = [", 1)[1].split("\n]", 1)[0].splitlines()[1:]
    found = []
    for line in (line.strip().strip('",') for line in lines):
        if line:
            need = Requirement(line)
            version = _version(need.name)
            if version is None or not need.specifier.contains(version.split("+")[0], prereleases=True):
                found.append(f"{line} ({version or 'missing'})")
    return found


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _first_line(*command: str) -> str | None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except OSError:
        return None
    return done.stdout.strip().splitlines()[0] if done.returncode == 0 and done.stdout.strip() else None
