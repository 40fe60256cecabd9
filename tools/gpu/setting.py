"""Where checks run, what they find, and what they share."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


class NotRunError(Exception):
    """Raised by a check that cannot run here; the message says why."""


@dataclass(frozen=True)
class Setting:
    """Where a check runs.

    Attributes:
        device: ``cuda``, or ``cpu`` for a dry run on little data.
        name: of the check.
        mnist: a folder with the full MNIST; None for the embedded digits.
    """

    device: str
    name: str = ""
    mnist: str | None = None

    @property
    def small(self) -> bool:
        """Whether this is a dry run."""
        return self.device == "cpu"

    @property
    def accelerator(self) -> str:
        """Lightning's name of the device."""
        return "cpu" if self.device == "cpu" else "gpu"

    def of(self, full: int, small: int) -> int:
        """Return a size: ``full`` on a GPU, ``small`` in a dry run."""
        return small if self.small else full


@dataclass
class Findings:
    """What a check has found so far: it survives an error.

    Attributes:
        figures: by name.
        failures: what is not as it must be.
    """

    figures: dict[str, Any] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    def __setitem__(self, name: str, value: Any) -> None:
        self.figures[name] = value

    def require(self, holds: object, message: str) -> None:
        """Note a failure unless something holds; the check goes on."""
        if not bool(holds):
            self.failures.append(message)


def largest_difference(one: dict[str, Any], other: dict[str, Any]) -> float:
    """Return the largest absolute difference of two models' weights, compared on the CPU; infinite if one is not finite."""
    import torch

    if one.keys() != other.keys():
        return float("inf")
    found = 0.0
    for name, tensor in one.items():
        gap = (tensor.detach().cpu().double() - other[name].detach().cpu().double()).abs()
        if gap.numel():
            largest = float(gap.max())
            found = max(found, largest) if torch.isfinite(gap).all() else float("inf")
    return found


def equal_bits(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Return whether two models agree to the last bit, wherever they are."""
    import torch

    return one.keys() == other.keys() and all(torch.equal(one[name].cpu(), other[name].cpu()) for name in one)
