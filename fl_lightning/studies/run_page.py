"""The page of a single run: ``report.html`` beside its logs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from fl_lightning.errors import ConfigurationError
from fl_lightning.functional.metric_mode import known_direction
from fl_lightning.studies.collection import read_run
from fl_lightning.studies.facts import METRIC, code_of
from fl_lightning.studies.grid import Run
from fl_lightning.studies.html import write_page
from fl_lightning.studies.names import SETTINGS
from fl_lightning.studies.panels import Measure, panels
from fl_lightning.studies.run_table import Row, RunTable
from fl_lightning.studies.set_up import on_test_set, set_up, set_up_tables
from fl_lightning.studies.tables import clients_table, cost_table, final_table

PAGE = "report.html"
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
    seed = int(config.get("seed_everything") or 0)
    run = Run((), seed, folder.name, (), ())
    rows = read_run(run, folder, _KEEP)
    if not any(row.metric.startswith(("val", "federation/")) for row in rows):
        raise ConfigurationError(
            f"'{folder}' has no logs in 'csv', from which a report is made. Let the run have a CSVLogger of this name, as it "
            "has by default."
        )
    known = (*set_up(config, set(SETTINGS), folder), *code_of(folder))
    table = RunTable([], [*rows, *(Row(run.name, (), seed, 0, fact, 1.0) for fact in known)])
    (panel,) = panels(table, labels={"all": "run"})
    metric = (config.get("best_checkpoint") or {}).get("monitor") or METRIC
    on_test = on_test_set(table)
    final = [
        m for m in table.metrics if (m.startswith(("val", "test")) and "/" not in m) or "/epsilon_of_" in m or "/noise_of_" in m
    ]
    measures = [Measure(m, known_direction(m) is not False, percent=False, ranked=False, on_test=on_test) for m in final]
    shown = (final_table(table, panel, measures), cost_table(table, panel, Measure(metric, percent=False), []))
    made = [*(one for one in shown if one is not None)]
    clients = clients_table(table, panel, Measure(metric, percent=False))
    groups = [("", list(set_up_tables(table))), ("At the end", made), *([("Clients", [clients])] if clients else [])]
    write_page(folder / PAGE, folder.name, table, [panel], groups, first=metric)
    return folder / PAGE
