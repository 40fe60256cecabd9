"""The command ``fl-lightning export``: write one client's complete model from a federation with personal parts."""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fl_lightning.errors import CheckpointError, ConfigurationError, FederationError, did_you_mean

_KEPT = ("pytorch-lightning_version", "hparams_name", "hyper_parameters", "datamodule_hparams_name", "epoch", "global_step")


def main(arguments: Sequence[str]) -> None:
    """Run the command; an error ends in one message and exit status 1, wrong arguments in exit status 2.

    Args:
        arguments: the arguments after ``export``.
    """
    parser = ArgumentParser(
        "fl-lightning export", description="Write one client's complete model: the shared part and its own."
    )
    parser.add_argument("--client", required=True, metavar="NAME", help="the client, by its name or its number")
    parser.add_argument("--ckpt_path", required=True, metavar="PATH", help="a checkpoint of the federation, such as best.ckpt")
    parser.add_argument("--output", metavar="PATH", help="the file to write (default: <checkpoint>_<client>.ckpt beside it)")
    parser.add_argument("--trusted_classes", nargs="*", default=[], help="as federation.trusted_classes")
    given = parser.parse_args(arguments)
    source = Path(given.ckpt_path)
    target = Path(given.output) if given.output else source.with_name(f"{source.stem}_{given.client}.ckpt")
    try:
        if target.exists():
            raise ConfigurationError(f"'{target}' already exists and was not changed. Name another file with '--output'.")
        print(export(source, given.client, target, given.trusted_classes))
    except FederationError as error:
        print(f"fl-lightning: error: {error}", file=sys.stderr)
        sys.exit(1)


def export(source: Path, client: str, target: Path, trusted: Sequence[str] = ()) -> str:
    """Write a client's complete model as a checkpoint of the module, and return a line that describes it.

    Args:
        source: a checkpoint of the federation.
        client: the client's name or number.
        target: the file to write.
        trusted: the dotted paths of classes that the checkpoint may contain besides tensors and plain values.

    Raises:
        CheckpointError: if the checkpoint cannot be read, or does not hold personal parts.
        ConfigurationError: if there is no such client.
    """
    from fl_lightning.checkpoint_file import read_checkpoint
    from fl_lightning.plugins.checkpoint_io import AtomicCheckpointIO

    checkpoint = read_checkpoint(source, "cpu", trusted)
    state = _federation(checkpoint, source)
    number = _number(client, state.get("client_names", []), int(state["clients"]))
    own = _personal(state["memory"], number, source)
    weights = dict(checkpoint["state_dict"])
    unknown = [name for name in own if name not in weights]
    if unknown:
        raise CheckpointError(
            f"'{source}' has no weights '{unknown[0]}', which the client keeps. Use the federation's own file."
        )
    for name, tensor in own.items():
        weights[name] = tensor.to(weights[name])
    kept = {name: checkpoint[name] for name in _KEPT if name in checkpoint}
    AtomicCheckpointIO().save_checkpoint({**kept, "state_dict": weights}, target)
    if not own:
        return f"{target}: client {client} has not trained yet, so its personal part is that of the start."
    return f"{target}: the shared model with {len(own)} tensors of client {client}."


def _federation(checkpoint: Any, source: Path) -> dict[str, Any]:
    """Return the state of the federation with personal parts that wrote a checkpoint."""
    callbacks = checkpoint.get("callbacks", {}) if isinstance(checkpoint, dict) else {}
    for state in callbacks.values():
        if isinstance(state, dict) and state.get("settings", {}).get("federation", {}).get("personal"):
            return state
    raise CheckpointError(
        f"'{source}' was not written by a federation with 'federation.personal', so there are no personal parts to add. Use "
        "the file as it is, or name a checkpoint of such a federation."
    )


def _personal(memory: dict[Any, Any], client: int, source: Path) -> dict[str, Any]:
    from fl_lightning.clients.memory import ClientMemory

    if not memory:
        raise CheckpointError(
            f"'{source}' holds no personal parts: the federation's clients are sites, which keep theirs on their own disks."
        )
    clients = ClientMemory()
    clients.bound(source.absolute().parent.parent / "client_state", float("inf"))
    clients.load_state_dict(memory)
    return clients.personal(client)


def _number(client: str, names: Sequence[str], count: int) -> int:
    known = list(names) or [str(number) for number in range(count)]
    if client in known:
        return known.index(client)
    if client.isdecimal() and int(client) < count:
        return int(client)
    shown = ", ".join(known[:10]) + (", ..." if len(known) > 10 else "")
    raise ConfigurationError(f"There is no client '{client}'.{did_you_mean(client, known)} The federation has {shown}.")
