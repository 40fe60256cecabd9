"""Load pretrained weights, by torchvision's name for them or from a local file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torchvision.models import get_model_weights

from fl_lightning.errors import ConfigurationError

_SETTING = "model.network.weights"


def load_weights(network: nn.Module, architecture: str, weights: str | None) -> None:
    """Load a torchvision network's weights, before its layers are replaced.

    Args:
        network: the network as torchvision builds it.
        architecture: torchvision's name of it, such as ``vgg19``.
        weights: None; a member of torchvision's enum for the architecture, such as ``IMAGENET1K_V1`` or ``DEFAULT``, which
            is downloaded once; or the path of a file with a state dict.

    Raises:
        ConfigurationError: if neither such a member nor such a file exists, if it does not fit, or if the download fails.
    """
    if weights is None or weights in ("None", "null"):  # the command line passes null as text
        return
    known = get_model_weights(architecture)
    if weights in known.__members__:
        try:
            state: Any = known[weights].get_state_dict(progress=True)
        except OSError as error:
            raise ConfigurationError(
                f"Cannot download the weights {weights} of {architecture} ({error}). Set '{_SETTING}' to a local file."
            ) from error
    elif Path(weights).is_file():
        state = _read(weights)
    else:
        raise ConfigurationError(
            f"'{_SETTING}' is '{weights}', which is neither a file nor one of torchvision's for {architecture}. Set it to a "
            f"file, or to one of {', '.join(known.__members__)}."
        )
    try:
        network.load_state_dict(state)
    except RuntimeError as error:
        raise ConfigurationError(
            f"The weights in '{weights}' are not those of torchvision's {architecture}: "
            f"{str(error).splitlines()[1].strip()} Set '{_SETTING}' to another file."
        ) from error


def _read(path: str) -> Mapping[str, Any]:
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # whatever torch raises for a file that is not a checkpoint
        raise ConfigurationError(
            f"'{_SETTING}' is '{path}', which is not a file of weights that torch can read. Set it to a file with a state dict."
        ) from error
    inner = state.get("state_dict", state) if isinstance(state, Mapping) else None
    if not isinstance(inner, Mapping):
        raise ConfigurationError(
            f"'{_SETTING}' is '{path}', which contains a {type(state).__name__}, not a state dict. Set it to another file."
        )
    return inner
