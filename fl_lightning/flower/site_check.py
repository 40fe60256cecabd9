"""Test before the first round whether a site can take part, and say what the server would learn: ``site --check``."""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable
from pathlib import Path

from fl_lightning.flower.site_connection import ERRORS, connection_tests
from fl_lightning.flower.site_data import SiteData, SiteSettings, read_settings
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
        data = SiteData(settings)
        info = data.info(arguments.name, settings.policy, statistics=settings.policy.statistics)
    training = "a stream, whose length it learns in each round" if info.streams else f"{info.num_examples} training examples"
    lines = [f"the server would learn the name '{info.name}', {training}"]
    lines += [f"{info.num_validation} validation and {info.num_test} test examples"]
    lines += ["whether its classes and columns have the server's names"]
    lines += [f"the digest {info.schema} of its schema"] if info.schema else []
    lines += [f"the counts of the classes: {info.label_counts}"] if info.label_counts else ["no counts of classes"]
    lines += ["the ranges of its features, to two digits"] if info.ranges else []
    lines += ["to a server that asks, once, the exact sums of its inputs and of their squares"] if info.moments else []
    allowed = ", ".join(info.evaluations) or "none (FedLoss and AdaFed scored by clients need 'evaluations: [validation]')"
    lines += [f"evaluations that 'policy' allows: {allowed}", f"training would run on {device}"]
    lines += [f"note: {one.message}" for one in told if issubclass(one.category, UserWarning)]
    return "; ".join(lines)


def _print_comparison(settings: SiteSettings) -> None:
    """Print how the site's files differ from their schema; the server learns nothing of it."""
    for name in ("datamodule", "validation", "test"):
        compare = getattr(getattr(settings, name), "compare_with_schema", None)
        lines = compare() if callable(compare) else []
        if lines:
            print(f"note    {name}: compared with its schema, for this site's staff only:")
            for line in lines:
                print(f"        {printable(line)}", flush=True)
