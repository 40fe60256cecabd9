"""The command ``fl-lightning export``: write one client's complete model, with its personal parts or as its own."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fl_lightning.errors import CheckpointError, ConfigurationError, FederationError, did_you_mean
from fl_lightning.utilities.argument_parser import ArgumentParser

_KEPT = ("pytorch-lightning_version", "hparams_name", "hyper_parameters", "datamodule_hparams_name", "epoch", "global_step")


def main(arguments: Sequence[str]) -> None:
    """Run the command; an error ends in one message and exit status 1, wrong arguments in exit status 2.

    Args:
        arguments: the arguments after ``export``.
    """
    parser = ArgumentParser("fl-lightning export", description="Write one client's complete model.")
    parser.add_argument("--client", required=True, metavar="NAME", help="the client, by its name or its number")
    parser.add_argument("--ckpt_path", required=True, metavar="PATH", help="a checkpoint of the federation, such as best.ckpt")
    parser.add_argument("--output", metavar="PATH", help="the file to write (default: <checkpoint>_<client>.ckpt beside it)")
    parser.add_argument("--site", metavar="FOLDER", help="at the site NAME of a real federation: its folder (site_NAME)")
    parser.add_argument("--trusted_classes", nargs="*", default=[], help="as federation.trusted_classes")
    given = parser.parse_args(arguments)
    source = Path(given.ckpt_path)
    target = Path(given.output) if given.output else source.with_name(f"{source.stem}_{given.client}.ckpt")
    try:
        if target.exists():
            raise ConfigurationError(f"'{target}' already exists and was not changed. Name another file with '--output'.")
        site = None if given.site is None else Path(given.site)
        print(export(source, given.client, target, given.trusted_classes, site))
    except FederationError as error:
        print(f"fl-lightning: error: {error}", file=sys.stderr)
        sys.exit(1)


def export(source: Path, client: str, target: Path, trusted: Sequence[str] = (), site: Path | None = None) -> str:
    """Write a client's complete model as a checkpoint of the module, and return a line that describes it.

    Args:
        source: a checkpoint of the federation.
        client: the client's name or number.
        target: the file to write.
        trusted: the dotted paths of classes that the checkpoint may contain besides tensors and plain values.
        site: the state folder of the client's site, if what it keeps is there; None for a simulation.

    Raises:
        CheckpointError: if the checkpoint cannot be read, or holds nothing of the client's own.
        ConfigurationError: if there is no such client.
    """
    from fl_lightning.clients.memory import held_part
    from fl_lightning.plugins.checkpoint_io import AtomicCheckpointIO
    from fl_lightning.utilities.checkpoint_file import read_checkpoint

    checkpoint = read_checkpoint(source, "cpu", trusted)
    weights = dict(checkpoint["state_dict"])
    state = _federation(checkpoint, source)
    number = _number(client, state.get("client_names", []), int(state["clients"]))
    kept = _kept(state["memory"], number, source) if site is None else _kept_at(site, checkpoint, state, number)
    own = _own_model(kept, state["tensor_names"], weights) if "vector" in kept else held_part(kept)
    if not own and not _has_personal(state):
        raise CheckpointError(
            f"'{source}' holds no model of client {client}'s own: its federation has no 'federation.personal', and no "
            "strategy or route that keeps clients' models, or the client has not trained yet. Use the file as it is."
        )
    for name, tensor in own.items():
        weights[name] = tensor.to(weights[name])
    rest = {name: checkpoint[name] for name in _KEPT if name in checkpoint}
    AtomicCheckpointIO().save_checkpoint({**rest, "state_dict": weights}, target)
    if not own:
        return f"{target}: client {client} has not trained yet, so its personal part is that with which clients begin."
    if "vector" in kept:
        return f"{target}: the own model of client {client}."
    return f"{target}: the shared model with {len(own)} tensors of client {client}."


def _federation(checkpoint: Any, source: Path) -> dict[str, Any]:
    """Return the state of the federation that wrote a checkpoint."""
    for state in checkpoint.get("callbacks", {}).values():
        if isinstance(state, dict) and "client_names" in state and "memory" in state:
            return state
    raise CheckpointError(
        f"'{source}' was not written by a federation, so it has no clients. Name a checkpoint of a federation, such "
        "as best.ckpt."
    )


def _has_personal(state: dict[str, Any]) -> bool:
    return bool(state.get("held"))


def _kept(memory: dict[Any, Any], client: int, source: Path) -> dict[str, Any]:
    """Return what a client has stored."""
    from fl_lightning.clients.memory import ClientMemory

    if not memory:
        raise CheckpointError(
            f"'{source}' holds no client's state: the clients have not trained yet, keep nothing, or are sites, which keep "
            "theirs on their own disks. Use the file as it is, or run this command at the site, with a copy of the file and "
            "'--site' set to the site's folder."
        )
    clients = ClientMemory()
    clients.bound(source.absolute().parent.parent / "client_state", float("inf"))
    clients.load_state_dict(memory)
    return clients.kept(client)


def _kept_at(site: Path, checkpoint: Any, state: dict[str, Any], client: int) -> dict[str, Any]:
    """Return what the client of a site had stored when the server wrote a checkpoint."""
    from fl_lightning.wire import from_bytes

    path, round_idx = site / "federations" / state["federation"] / "state.bin", int(checkpoint["epoch"])
    if not path.exists():
        raise CheckpointError(
            f"'{path}' does not exist, so the site whose state is in '{site}' did not train in the federation of this "
            "checkpoint. Set '--site' to the folder of the site (site_NAME)."
        )
    stored = dict(from_bytes(path.read_bytes()))
    later = sorted(int(k) for k in stored["before"] if int(k) > round_idx)
    if stored["next_round"] <= round_idx + 1:
        memory = stored["memory"]
    elif later and stored["forgotten"] <= round_idx:
        memory = stored["before"][str(later[0])]
    else:
        raise CheckpointError(
            f"The checkpoint is of round {round_idx}, but the site no longer has what it kept in that round. Use the last "
            "checkpoint of the federation, such as last.ckpt."
        )
    kept: dict[str, Any] = dict(memory.get(str(client), {}))
    if not kept and memory:
        raise ConfigurationError(
            f"The state in '{site}' is that of client {', '.join(memory)}, not of client {client}. Name this site's client."
        )
    return kept


def _own_model(kept: dict[str, Any], names: Sequence[Sequence[str]], weights: dict[str, Any]) -> dict[str, Any]:
    """Return the tensors of a client's complete model by name."""
    parameters, floats, counters = names
    found: dict[str, Any] = {}
    for vector, chosen in ((kept["vector"], [*parameters, *floats]), (kept["counters"], counters)):
        sizes = [weights[name].numel() for name in chosen]
        found |= {name: part.view_as(weights[name]) for name, part in zip(chosen, vector.split(sizes), strict=True)}
    return found


def _number(client: str, names: Sequence[str], count: int) -> int:
    known = list(names) or [str(number) for number in range(count)]
    if client in known:
        return known.index(client)
    if client.isdecimal() and int(client) < count:
        return int(client)
    shown = ", ".join(known[:10]) + (", ..." if len(known) > 10 else "")
    raise ConfigurationError(f"There is no client '{client}'.{did_you_mean(client, known)} The federation has {shown}.")
