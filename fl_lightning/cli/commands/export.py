"""The command ``fl-lightning export``: write one client's complete model, with its personal parts or as its own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fl_lightning.errors import CheckpointError, ConfigurationError, did_you_mean
from fl_lightning.utilities.argument_parser import ArgumentParser

_KEPT = ("pytorch-lightning_version", "hparams_name", "hyper_parameters", "datamodule_hparams_name", "epoch", "global_step")


def main(arguments: Sequence[str]) -> None:
    """Run the command.

    Args:
        arguments: the arguments after ``export``.

    Raises:
        FederationError: if the model cannot be exported.
    """
    parser = ArgumentParser("fl-lightning export", description="Write one client's complete model.")
    parser.add_argument("--client", required=True, metavar="NAME", help="the client, by its name or its number")
    parser.add_argument("--ckpt_path", required=True, metavar="PATH", help="a checkpoint of the federation, such as best.ckpt")
    parser.add_argument("--output", metavar="PATH", help="the file to write (default: <checkpoint>_<client>.ckpt beside it)")
    parser.add_argument("--site", metavar="FOLDER", help="at the site NAME of a real federation: its folder (site_NAME)")
    parser.add_argument("--trusted_classes", nargs="*", default=[], help="as federation.checkpoints.trusted_classes")
    given = parser.parse_args(arguments)
    source = Path(given.ckpt_path)
    target = Path(given.output) if given.output else source.with_name(f"{source.stem}_{given.client}.ckpt")
    if target.exists():
        raise ConfigurationError(f"'{target}' already exists and was not changed. Name another file with '--output'.")
    site = None if given.site is None else Path(given.site)
    print(export(source, given.client, target, given.trusted_classes, site))


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
    from fl_lightning.evaluation.client_models import kept_by_site, memory_in, own_tensors, state_of_federation
    from fl_lightning.utilities.checkpoints import AtomicCheckpointIO, read_checkpoint

    checkpoint = read_checkpoint(source, "cpu", trusted)
    weights = dict(checkpoint["state_dict"])
    state = state_of_federation(checkpoint, source)
    number = _number(client, state.get("client_names", []), int(state["clients"]))
    memory = state["memory"]
    kept = kept_by_site(site, checkpoint, state, number) if site else memory_in(memory, source).kept(number)
    own = own_tensors(kept, state["tensor_names"], weights)
    if not own and not state.get("held"):
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
    if "model" in kept:
        return f"{target}: the own model of client {client}."
    return f"{target}: the shared model with {len(own)} tensors of client {client}."


def _number(client: str, names: Sequence[str], count: int) -> int:
    known = list(names) or [str(number) for number in range(count)]
    if client in known:
        return known.index(client)
    if client.isdecimal() and int(client) < count:
        return int(client)
    shown = ", ".join(known[:10]) + (", ..." if len(known) > 10 else "")
    raise ConfigurationError(f"There is no client '{client}'.{did_you_mean(client, known)} The federation has {shown}.")
