"""Find clients' own models in a checkpoint of their federation, or at their sites."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fl_lightning.clients.client_files import Kept
from fl_lightning.clients.memory import HELD, MODEL, ClientMemory
from fl_lightning.clients.site import kept_after, no_longer_kept
from fl_lightning.errors import CheckpointError, ConfigurationError
from fl_lightning.wire import from_bytes


def state_of_federation(checkpoint: Any, source: Path) -> dict[str, Any]:
    """Return the state of the federation that wrote a checkpoint."""
    for state in checkpoint.get("callbacks", {}).values():
        if isinstance(state, dict) and "client_names" in state and "memory" in state:
            return state
    raise CheckpointError(
        f"'{source}' was not written by a federation, so it has no clients. Name a checkpoint of a federation, such "
        "as best.ckpt."
    )


def memory_in(memory: dict[Any, Any], source: Path) -> ClientMemory:
    """Return what clients have stored, from the state in a checkpoint."""
    if not memory:
        raise CheckpointError(
            f"'{source}' holds no client's state: the clients have not trained yet, keep nothing, or are sites, which keep "
            "theirs on their own disks. Use the file as it is, or run this command at the site, with a copy of the file and "
            "'--site' set to the site's folder."
        )
    clients = ClientMemory()
    clients.bound(source.absolute().parent.parent / "client_state", float("inf"))
    clients.load_state_dict(memory)
    return clients


def kept_by_site(site: Path, checkpoint: Any, state: dict[str, Any], client: int) -> Kept:
    """Return what the client of a site had stored when the server wrote a checkpoint."""
    path, round_idx = site / "federations" / state["federation"] / "state.bin", int(checkpoint["epoch"])
    if not path.exists():
        raise CheckpointError(
            f"'{path}' does not exist, so the site whose state is in '{site}' did not train in the federation of this "
            "checkpoint. Set '--site' to the folder of the site (site_NAME)."
        )
    stored = dict(from_bytes(path.read_bytes()))
    memory = kept_after(stored, round_idx)
    if memory is None:
        raise CheckpointError(no_longer_kept(round_idx))
    kept: Kept = dict(memory.get(str(client), {}))
    if not kept and memory:
        raise ConfigurationError(
            f"The state in '{site}' is that of client {', '.join(memory)}, not of client {client}. Name this site's client."
        )
    return kept


def own_tensors(kept: Kept, names: Sequence[Sequence[str]], weights: dict[str, Any]) -> dict[str, Any]:
    """Return by name the tensors of a client's complete model, or of the parts that it holds; empty if it keeps neither.

    Args:
        kept: what the client has stored.
        names: the names of parameters, averaged buffers and counters, in order.
        weights: tensors of the same shapes, by name.
    """
    if MODEL not in kept:
        return kept.get(HELD, {})
    parameters, floats, counters = names
    found: dict[str, Any] = {}
    model: dict[str, Any] = dict(kept[MODEL])
    for vector, chosen in ((model["vector"], [*parameters, *floats]), (model["counters"], counters)):
        sizes = [weights[name].numel() for name in chosen]
        found |= {name: part.view_as(weights[name]) for name, part in zip(chosen, vector.split(sizes), strict=True)}
    return found
