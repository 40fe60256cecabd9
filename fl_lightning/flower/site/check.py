"""Test before the first round whether a site can take part, and say what the server would learn: ``site --check``."""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable
from pathlib import Path

from fl_lightning.errors import ConfigurationError
from fl_lightning.flower.site.budget import SiteBudget
from fl_lightning.flower.site.connection import ERRORS, connection_tests
from fl_lightning.flower.site.data import SiteData
from fl_lightning.flower.site.limits import SiteLimits
from fl_lightning.flower.site.policy import Policy, read_peers
from fl_lightning.flower.site.release import in_words, numbers_of, released
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
        settings = read_settings(Path(arguments.data))
        device = settings.torch_device()
        _print_comparison(settings)
        data, policy = SiteData(settings), settings.policy
        SiteLimits(policy).check_training(data)
        info = released(data.info(arguments.name, policy), policy)
    first = ", ".join(f"{name} {value}" for name, value in numbers_of(info).items() if value not in (None, "", []))
    lines = [f"before the first round leave: {first}"]
    lines += [*in_words(policy), *_masks(arguments.name, policy)]
    lines += [SiteBudget(policy.budget, data.names_persons).in_words()] if policy.budget is not None else []
    lines += [
        "its rows and persons are counted here alone: if another site holds them, too, their epsilons add up, and neither this "
        "site nor the server can know it"
    ]
    lines += [f"training would run on {device}"]
    lines += [f"note: {one.message}" for one in told if issubclass(one.category, UserWarning)]
    return "; ".join(lines)


def _masks(name: str, policy: Policy) -> list[str]:
    """Return in words with whose updates the site's is added.

    Raises:
        ConfigurationError: if no sum could have as many sites as the policy asks for.
    """
    if policy.update.masks is None:
        return []
    peers, least, lost = sorted(read_peers(policy).keys() - {name}), policy.update.masks.least, policy.update.masks.lost
    if len(peers) + 1 < least:
        keys = f"{len(peers)} other site{'' if len(peers) == 1 else 's'} ({', '.join(peers) or 'none'})"
        raise ConfigurationError(
            f"'policy.update.masks.peers' has the keys of {keys}, so a sum has {len(peers) + 1} sites at most, but "
            f"'policy.update.masks.least' is {least}. Ask the other sites for their files NAME.pub."
        )
    could = f"a server could compute the updates of {lost} sites that later sums lack ('policy.update.masks.lost')"
    same = could if lost else "all sums are over the same sites ('policy.update.masks.lost' is 0)"
    return [f"a sum has {least} sites or more, of {', '.join(peers)}, whose keys are in '{policy.update.masks.peers}'; {same}"]


def _print_comparison(settings: SiteSettings) -> None:
    """Print how the site's files differ from their schema; the server learns nothing of it."""
    for name in ("datamodule", "validation", "test"):
        compare = getattr(getattr(settings, name), "compare_with_schema", None)
        lines = compare() if callable(compare) else []
        if lines:
            print(f"note    {name}: compared with its schema, for this site's staff only:")
            for line in lines:
                print(f"        {printable(line)}", flush=True)
