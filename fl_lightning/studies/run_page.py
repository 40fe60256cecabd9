"""The page of a single run: ``report.html`` beside its logs. It needs no package of the extra ``compare``."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from fl_lightning.errors import ConfigurationError
from fl_lightning.studies.collection import natural, read_run
from fl_lightning.studies.names import COSTS, MODELS, OF_CLIENTS, SETTINGS
from fl_lightning.studies.page import Shown, Table, matrix, write_page
from fl_lightning.studies.panels import Measure
from fl_lightning.studies.set_up import METRIC, code_of, common_table, on_test_set, set_up

PAGE = "report.html"
_SPENT = re.compile("/(epsilon|noise)_of_")
_KEEP = ("val*", "test*", "train*", "federation/*", "client_share/*", "client_comparison/*", "partition/*")


def write_run_page(folder: Path) -> Path:
    """Write ``report.html`` of a run from its logs, and return its path.

    Args:
        folder: folder of the run, with ``config.yaml`` and the CSV logger's ``csv``.

    Raises:
        ConfigurationError: if the folder has no configuration or no logs.
    """
    path = folder / "config.yaml"
    if not path.exists():
        raise ConfigurationError(
            f"'{folder}' is neither a run, which has a 'config.yaml', nor a study, which has a 'table.csv'. Name the folder of "
            "one."
        )
    config: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    curves: dict[str, dict[int, float]] = {}
    for round_idx, metric, value in read_run(folder, _KEEP):
        curves.setdefault(metric, {})[round_idx] = value
    curves = {metric: dict(sorted(curves[metric].items())) for metric in sorted(curves, key=natural)}
    if not any(metric.startswith(("val", "federation/")) for metric in curves):
        raise ConfigurationError(
            f"'{folder}' has no logs in 'csv', from which a report is made. Let the run have a CSVLogger of this name, as it "
            "has by default."
        )
    known = set_up(config, set(SETTINGS), folder)
    last = {metric: [*curve.values()][-1] for metric, curve in curves.items()}
    seed = int(config.get("seed_everything") or 0)
    lines = {metric: ([*curve], [*curve.values()], [0.0] * len(curve)) for metric, curve in curves.items()}
    write_page(
        folder / PAGE,
        folder.name,
        [Shown("", seed, lines, last)],
        results=[("At the end", [*_final(last, on_test_set([known])), *_cost(curves)]), ("Clients", [*_clients(last)])],
        set_up=[common_table(known["settings"], str(seed), Counter(code_of(folder).values()))],
        first=(config.get("best_checkpoint") or {}).get("monitor") or METRIC,
    )
    return folder / PAGE


def _final(last: Mapping[str, float], on_test: bool) -> Iterator[Table]:
    shown = [name for name in last if (name.startswith(("val", "test")) and "/" not in name) or _SPENT.search(name)]
    heads = [Measure(name, percent=False, on_test=on_test).label for name in shown]
    if shown:
        yield Table("At the end", ("run", *heads), [("run", *(f"{last[name]:.4f}" for name in shown))], "After the last round.")


def _cost(curves: Mapping[str, Mapping[int, float]]) -> Iterator[Table]:
    up, down, seconds, ticks = (curves.get(f"federation/{name}", {}) for name in ("bytes_up", "bytes_down", "seconds", "ticks"))
    if up:
        costs = {"MB": sum(up[r] + down.get(r, 0.0) for r in up) / 1e6, "s": sum(seconds.get(r, 0.0) for r in up)}
        costs |= {"ticks": [*ticks.values()][-1]} if ticks else {}
        row = ("run", *(f"{total:.1f}" for total in costs.values()))
        yield Table("Cost", ("run", *(f"total {unit}" for unit in costs)), [row], " ".join(COSTS[unit] for unit in costs))


def _clients(last: Mapping[str, float]) -> Iterator[Table]:
    clients, given, values = matrix(last, "client_comparison")
    models = [model for model in MODELS if model in given]
    rows = [(name, *(f"{own[given.index(m)]:.4f}" for m in models)) for name, own in zip(clients, values, strict=True)]
    if models:
        yield Table("Local, global, personalised", ("client", *models), rows, OF_CLIENTS)
