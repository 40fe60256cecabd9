"""Private names of Opacus."""

from __future__ import annotations

from torch import nn

SAMPLE_ATTRIBUTES = ("grad_sample", "summed_grad", "_forward_counter")
"""What Opacus's hooks and optimizer write onto parameters."""


def forget_samples(module: nn.Module) -> None:
    """Remove what Opacus has left on parameters and layers; its ``remove_hooks`` leaves it there, and nothing public clears it."""
    for parameter in module.parameters():
        for name in SAMPLE_ATTRIBUTES:
            vars(parameter).pop(name, None)
    for layer in module.modules():
        if vars(layer).get("activations") == [] and any(True for _ in layer.parameters(recurse=False)):
            del layer.activations
