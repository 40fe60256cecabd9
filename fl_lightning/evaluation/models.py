"""Read the models to evaluate: the global one, clients' own ones, and other checkpoints, of which only values are read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lightning.pytorch import LightningModule
from torch import Tensor

from fl_lightning.clients.client_files import Kept
from fl_lightning.errors import CheckpointError
from fl_lightning.evaluation.client_models import memory_in, own_tensors
from fl_lightning.functional.model_state import ModelState
from fl_lightning.utilities.checkpoints import read_checkpoint

STAYS = "the model of a site stays there"
"""The reason why a site's own model has no figure at another site."""


@dataclass(frozen=True)
class Model:
    """Hold a row of the matrix.

    Attributes:
        name: its name.
        tensors: its parameters and buffers by name; empty if the model is at its client, or there is none.
        client: the client whose own model it is; None if it is not a client's own.
        reason: why the model has no figures; empty if it has.
    """

    name: str
    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    client: int | None = None
    reason: str = ""


def loaded(module: LightningModule, weights: Mapping[str, Tensor], source: object) -> dict[str, Tensor]:
    """Load weights into a module, and return copies of its parameters and buffers by name.

    Raises:
        CheckpointError: if names or shapes differ from the module's.
    """
    try:
        module.load_state_dict(weights)
    except RuntimeError as error:
        first = str(error).splitlines()[1:2] or [str(error)]
        raise CheckpointError(
            f"'{source}' does not fit {type(module).__name__} of this configuration: {first[0].strip()[:300]} Name a "
            "checkpoint of the same model, or set 'model' to that of the checkpoint."
        ) from error
    return {name: tensor.detach().cpu().clone() for name, tensor in ModelState(module).tensors().items()}


def weights_in(source: Path, trusted: Sequence[str]) -> dict[str, Tensor]:
    """Return the tensors of a file by name, of a checkpoint or of ``torch.save(module.state_dict())``; nothing else is used.

    Raises:
        CheckpointError: if it cannot be read, or holds no tensors by name.
    """
    found = read_checkpoint(source, "cpu", trusted)
    found = found.get("state_dict", found) if isinstance(found, Mapping) else found
    if not isinstance(found, Mapping) or not found or not all(isinstance(one, Tensor) for one in found.values()):
        raise CheckpointError(f"'{source}' holds no 'state_dict' of tensors by name. Name a checkpoint of a module.")
    return dict(found)


def models_of(
    module: LightningModule, checkpoint: Mapping[str, Any], state: Mapping[str, Any], source: Path, names: Sequence[str]
) -> list[Model]:
    """Return the models of a federation: the global one if it is complete, and those that clients keep.

    Args:
        module: the module, into which weights are loaded.
        checkpoint: the checkpoint.
        state: the state of the federation in it.
        source: its file.
        names: the names of the clients.
    """
    weights = dict(checkpoint["state_dict"])
    shared = loaded(module, weights, source)
    found = [] if state.get("held") else [Model("global", shared)]
    own: list[dict[str, Tensor]] = []
    if state["memory"]:
        memory = memory_in(state["memory"], source)
        own = [_own_of(module, memory.kept(client), weights, state, source) for client in range(len(names))]
    if any(own) or state.get("held"):
        for client, tensors in enumerate(own):
            reason = "" if tensors else "this client has no model of its own yet"
            found.append(Model(f"own of {names[client]}", tensors, client, reason))
    return found


def _own_of(
    module: LightningModule, kept: Kept, weights: Mapping[str, Tensor], state: Mapping[str, Any], source: Path
) -> dict[str, Tensor]:
    """Return a client's complete model; empty if it keeps none."""
    own = own_tensors(kept, state["tensor_names"], dict(weights))
    if not own and not state.get("held"):
        return {}
    return loaded(module, {**weights, **{name: tensor.to(weights[name]) for name, tensor in own.items()}}, source)


def models_of_others(module: LightningModule, sources: Sequence[Path], trusted: Sequence[str]) -> list[Model]:
    """Return the models of other checkpoints, each under the name of its file, or its path if several have this name."""
    stems = [source.stem for source in sources]
    return [
        Model(
            source.stem if stems.count(source.stem) == 1 else str(source), loaded(module, weights_in(source, trusted), source)
        )
        for source in sources
    ]
