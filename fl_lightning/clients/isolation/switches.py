"""What training freezes, thaws or puts into another mode, which holds for its client in later turns."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from fl_lightning.compat.torch import parameters_of, parts_of
from fl_lightning.messages import ModelLayout


def switches_of(module: nn.Module, layout: ModelLayout) -> dict[str, bool]:
    """Return what differs from a layout: which parameters are trained, by name, and which parts are, by ``<part>:mode``."""
    parts = parts_of(module)
    flags = zip(parameters_of(module, parts).items(), layout.trained, strict=True)
    frozen = {name: p.requires_grad for (name, p), trained in flags if p.requires_grad is not trained}
    modes = {f"{n}:mode": p.training for n, p in parts.items() if p.training is not layout.modes.get(n, (p.training, None))[0]}
    return frozen | modes


def set_switches(module: nn.Module, switches: Mapping[str, bool]) -> None:
    """Set what :func:`switches_of` returned."""
    if not switches:
        return
    parts = parts_of(module)
    for name, parameter in parameters_of(module, parts).items():
        parameter.requires_grad_(switches.get(name, parameter.requires_grad))
    for name, part in parts.items():
        part.training = switches.get(f"{name}:mode", part.training)
