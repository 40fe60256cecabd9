"""Test before the first round whether a site can take part, and say what the server would learn: ``site --check``."""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

from fl_lightning.data.schema_file import read_schema
from fl_lightning.errors import ConfigurationError
from fl_lightning.flower.checks import digest_of_schema
from fl_lightning.flower.site.budget import SiteBudget
from fl_lightning.flower.site.connection import ERRORS, connection_tests
from fl_lightning.flower.site.data import SiteData
from fl_lightning.flower.site.figures import info_to_tell
from fl_lightning.flower.site.limits import SiteLimits
from fl_lightning.flower.site.peers import read_peers
from fl_lightning.flower.site.policy import Policy
from fl_lightning.flower.site.server_schema import kept_schema
from fl_lightning.flower.site.settings import SiteSettings, read_settings
from fl_lightning.flower.words import printable


def check(arguments: argparse.Namespace) -> bool:
    """Run all tests, print a line for each, and return whether all passed."""
    tests: list[tuple[str, Callable[[], str]]] = [*connection_tests(arguments), ("data", lambda: _data(arguments))]
    failed: list[str] = []
    for name, test in tests:
        if failed and name != "data":  # each needs the one before
            print(f"-       {name}: not tested")
            continue
        try:
            print(f"ok      {name}: {test()}", flush=True)
        except ERRORS as error:
            failed.append(name)
            print(f"FAILED  {name}: {error}", flush=True)
    return not failed


def _data(arguments: argparse.Namespace) -> str:
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        schema = _schema(arguments)
        settings = read_settings(Path(arguments.data), schema)
        device = settings.torch_device()
        if settings.waits:
            raise ConfigurationError(
                "The tables wait for the server's schema ('policy.schema' is 'server'), and no server has offered one yet. Ask "
                "for its file, and pass it with '--schema'."
            )
        _print_comparison(settings, schema)
        data = SiteData(settings)
        info = data.info(arguments.name, settings.policy, histograms=True)
        summed = settings.policy.secure_aggregation == "required"
        moments = data.moments(settings.policy, summed)
        SiteLimits(settings.policy).check_training(data)
        info, kept = info_to_tell(info, settings.policy, data)
    training = "a stream, whose length it learns in each round" if info.streams else f"{info.num_examples} training examples"
    lines = [f"the server would learn the name '{info.name}', {training}"]
    lines += [f"{info.num_validation} validation and {info.num_test} test examples"]
    lines += [f"not {', nor '.join(kept)} ('policy.min_examples')"] if kept else []
    lines += [f"{info.sampling[0]} batches an epoch, each of {info.sampling[1]:.3g} of its examples"] if info.sampling else []
    lines += ["whether its classes and columns have the server's names"]
    lines += [f"the digest {info.schema} of its schema"] if info.schema else []
    lines += [f"the counts of the classes: {info.label_counts}"] if info.label_counts else ["no counts of classes"]
    lines += ["the ranges of its features, to two digits"] if info.ranges else []
    names, within = data.names("feature_names"), " inside of a sum over sites" if summed else ""
    lines += [_sums(moments, names, settings.policy.statistics_epsilon) + within] if moments else []
    lines += ["to a server that asks, once, the counts of bins of its columns"] if info.histograms else []
    if settings.policy.budget is not None:
        lines += [SiteBudget(settings.policy.budget, data.names_persons).in_words()]
    lines += _masks(arguments.name, settings.policy)
    lines += [f"of each training: {_figures(settings.policy)}"]
    allowed = ", ".join(info.evaluations) or "none (FedLoss and AdaFed scored by clients need 'evaluations: [validation]')"
    lines += [f"evaluations that 'policy' allows: {allowed}"]
    lines += [
        "its rows and persons are counted here alone: if another site holds them, too, their epsilons add up, and neither this "
        "site nor the server can know it"
    ]
    lines += [f"training would run on {device}"]
    lines += [f"note: {one.message}" for one in told if issubclass(one.category, UserWarning)]
    return "; ".join(lines)


def _masks(name: str, policy: Policy) -> list[str]:
    """Return in words whether updates leave masked, and with whose updates they are added.

    Raises:
        ConfigurationError: if no sum could have as many sites as the policy asks for.
    """
    peers = sorted(read_peers(policy).keys() - {name})
    if policy.peers is None:
        return []
    if policy.secure_aggregation == "allowed":
        need = "masks are allowed, not required ('policy.secure_aggregation'), so a server can ask for the update itself"
    else:
        lost = f"a server could compute the updates of {policy.max_lost} sites that later sums lack ('policy.max_lost')"
        need = f"the update leaves only masked, in a sum of {policy.min_cohort} sites or more ('policy.min_cohort'); "
        need += lost if policy.max_lost else "all sums are over the same sites ('policy.max_lost' is 0)"
    if len(peers) + 1 < policy.min_cohort:
        keys = f"{len(peers)} other site{'' if len(peers) == 1 else 's'} ({', '.join(peers) or 'none'})"
        raise ConfigurationError(
            f"'policy.peers' has the keys of {keys}, so a sum has {len(peers) + 1} sites at most, but 'policy.min_cohort' is "
            f"{policy.min_cohort}. Ask the other sites for their files NAME.pub."
        )
    return [need, f"the keys in '{policy.peers}' admit {', '.join(peers)}"]


def _figures(policy: Policy) -> str:
    """Return in words what leaves beside an update."""
    if policy.secure_aggregation == "required":
        told = policy.min_noise == 0 and (policy.metrics == "any" or "train_loss" in policy.metrics)
        loss = " with its loss" if told else ""
        rounded = "rounded " if policy.examples == "rounded" else ""
        return f"the masked update{loss}, the number of steps and the {rounded}number of examples"
    if policy.min_noise > 0:
        return "the update with noise, the numbers of examples and steps, no figure"
    names = "all figures that its module logs" if policy.metrics == "any" else ", ".join(policy.metrics) or "no figure"
    digits = f", to {policy.digits} digits" if policy.digits else ""
    rounded = "rounded " if policy.examples == "rounded" else ""
    seconds = ", the seconds" if policy.seconds else ""
    return f"the update, {names}{digits}, the number of steps and the {rounded}number of examples{seconds}"


def _sums(moments: Sequence[Sequence[str]], names: Sequence[str] | None, epsilon: float | None) -> str:
    """Return in words which sums leave the site."""
    kept = [str(names[k]) if names else f"channel {k}" for k, count in enumerate(moments[0]) if count == "0"]
    why = "which would tell of few rows" if epsilon is None else "which have no range in the schema"
    without = f", but not those of {', '.join(kept)}, {why}" if kept else ""
    noise = "exact sums" if epsilon is None else f"sums with noise (epsilon {epsilon:g})"
    return f"to a server that asks, once, the {noise} of its inputs and of their squares{without}"


def _schema(arguments: argparse.Namespace) -> Path | None:
    """Return the file of the server's schema: that of ``--schema``, or the last one that a server has offered."""
    if arguments.schema:
        return Path(arguments.schema)
    return kept_schema(Path(arguments.folder or f"site_{arguments.name}"))


def _print_comparison(settings: SiteSettings, schema: Path | None) -> None:
    """Print how the site's files differ from their schema, and whether it is the server's; the server learns nothing of it."""
    if schema is not None:
        theirs, mine = read_schema(schema).digest(), digest_of_schema(settings.datamodule)
        same = "the same tables as this site's" if theirs == mine else f"other tables than this site's ({mine or 'none'})"
        print(f"note    schema: that of the server ({theirs}, {schema}) describes {same};", flush=True)
        print("        without 'schema' in data.yaml, the site takes the server's schema only with 'policy.schema: server'")
    for name in ("datamodule", "validation", "test"):
        compare = getattr(getattr(settings, name), "compare_with_schema", None)
        lines = compare() if callable(compare) else []
        if lines:
            print(f"note    {name}: compared with its schema, for this site's staff only:")
            for line in lines:
                print(f"        {printable(line)}", flush=True)
