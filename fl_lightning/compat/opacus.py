"""Private names of Opacus."""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn

SAMPLE_ATTRIBUTES = ("grad_sample", "summed_grad", "_forward_counter")
"""What Opacus's hooks and optimizer write onto parameters. One that a release does not write needs no removal."""
LAYER_ATTRIBUTES = ("activations",)
"""What its hooks write onto layers."""


def forget_samples(module: nn.Module, layers: Iterable[nn.Module]) -> None:
    """Remove what Opacus has left on parameters; its ``remove_hooks`` leaves it there, and no public function clears it.

    Args:
        module: the module whose parameters it has written onto.
        layers: the layers that it has written onto, and that have no such attributes of their own.
    """
    for parameter in module.parameters():
        for name in SAMPLE_ATTRIBUTES:
            vars(parameter).pop(name, None)
    for layer in layers:
        for name in LAYER_ATTRIBUTES:
            vars(layer).pop(name, None)
