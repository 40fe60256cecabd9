"""The command ``fl-lightning dashboard``: a W&B workspace for the runs of a project.

It shows accuracy and F1 by strategy, F1 by class, weights by client, and costs. docs/metrics.md explains the metrics.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from fl_lightning.compat.wandb import workspace_specification
from fl_lightning.errors import ConfigurationError, FederationError
from fl_lightning.utilities.argument_parser import ArgumentParser

STRATEGY = "config.federation.strategy.class_path"
EXAMPLES = """examples:
  fl-lightning dashboard --entity me --project fl_lightning           # create it, and print its address
  fl-lightning dashboard --project fl_lightning --out workspace.json  # without an account: write its specification
"""


def over_rounds(title: str, metrics: list[str], unit: str, by: str | None = STRATEGY, x: str = "round") -> Any:
    """Draw lines over rounds or another metric: by strategy, the mean over seeds with a band; otherwise each run."""
    wr = _package("reports.v2")
    grouped = {"groupby": by, "groupby_aggfunc": "mean", "groupby_rangefunc": "stddev"} if by else {}
    return wr.LinePlot(title=title, x=x, y=metrics, title_x=x.rpartition("/")[2], title_y=unit, **grouped)


def matching(title: str, prefix: str, unit: str) -> Any:
    """Draw all metrics ``<prefix>/<number>``."""
    wr = _package("reports.v2")
    return wr.LinePlot(title=title, x="round", metric_regex=f"^{prefix}/[0-9]+$", title_x="round", title_y=unit)


def by_client(title: str, figure: str) -> Any:
    """Draw a figure of the clients, with a line for each client or for each quantile, from the table of a run's own charts."""
    from fl_lightning.reporting.client_charts import CHART, FIELDS, TABLE  # imports torch, which --help does not need

    return _package("reports.v2").CustomChart(
        query={"summaryTable": {"tableKey": TABLE}},
        chart_name=CHART,
        chart_fields={**FIELDS, "lineVal": figure},
        chart_strings={"title": title, "xname": "round"},
    )


def workspace(entity: str, project: str) -> Any:
    """Return the workspace without sending it.

    Raises:
        ConfigurationError: if wandb-workspaces is not installed.
    """
    wr, ws = _package("reports.v2"), _package("workspaces")
    sections = {
        "Server": [
            over_rounds("Accuracy by strategy", ["val_accuracy"], "share of the server's set"),
            over_rounds("Macro-F1 by strategy", ["val_f1_macro"], "F1"),
            over_rounds("Weighted F1 by strategy", ["val_f1_weighted"], "F1"),
            over_rounds("Loss by strategy", ["val_loss"], "nats"),
            wr.BarPlot(title="Best accuracy", metrics=["val_accuracy.max"], groupby=STRATEGY, groupby_aggfunc="mean"),
        ],
        "Classes": [
            matching("F1 of each class", "val_f1", "F1"),
            matching("Class weights of the adaptive loss", "class_weight", "kappa"),
            wr.MediaBrowser(title="Confusion matrix", media_keys=["val_confusion_picture"]),
            wr.WeavePanelSummaryTable(table_name="val_confusion"),
        ],
        "Clients": [
            by_client("Weights p_k by client, as shares of their sum", "share"),
            by_client("Loss by client", "loss"),
            by_client("L2 norm of the update by client", "update_norm"),
            over_rounds("Worst and mean client", ["federation/client_worst", "federation/client_mean"], "metric", by=None),
            wr.MediaBrowser(title="Who holds what", media_keys=["partition_picture"]),
            wr.WeavePanelSummaryTable(table_name="clients"),
            wr.WeavePanelSummaryTable(table_name="client_rounds"),
        ],
        "Movement": [
            over_rounds("How far the model moves", ["federation/aggregate_norm", "federation/update_norm"], "L2 norm", by=None),
            over_rounds("How far clients drift apart", ["federation/drift"], "L2 norm"),
        ],
        "Costs": [
            over_rounds("Accuracy for megabytes", ["val_accuracy"], "share", x="federation/megabytes_total"),
            over_rounds("Accuracy for seconds", ["val_accuracy"], "share", x="federation/seconds_total"),
            over_rounds("Bytes of a round", ["federation/bytes_up", "federation/bytes_down"], "bytes", by=None),
            over_rounds("Seconds of a round", ["federation/seconds", "federation/waiting_seconds"], "s", by=None),
            by_client("Seconds by client", "seconds"),
        ],
    }
    return ws.Workspace(
        entity=entity,
        project=project,
        name="Federations",
        sections=[ws.Section(name=name, panels=panels, is_open=True) for name, panels in sections.items()],
        settings=ws.WorkspaceSettings(x_axis="round", smoothing_type="none"),
    )


def main(arguments: Sequence[str]) -> None:
    """Run the command; an error ends in one message and exit status 1.

    Args:
        arguments: the arguments after ``dashboard``.
    """
    parser = ArgumentParser(
        prog="fl-lightning dashboard",
        description="Create a W&B workspace for a project's runs: accuracy and F1 by strategy, by class, by client; costs.",
        epilog=EXAMPLES,
    )
    parser.add_argument("--entity", default="", help="user or team; required unless --out is given")
    parser.add_argument("--project", default="fl_lightning", help="project of the runs (default: %(default)s)")
    parser.add_argument("--out", type=Path, help="write the specification to this file instead of sending it")
    args = parser.parse_args(arguments)
    if not args.out and not args.entity:
        parser.error("no user or team given. Set --entity, or --out FILE to write only the specification")
    try:
        made = workspace(args.entity, args.project)
        print(_write(made, args.out) if args.out else _send(made))
    except FederationError as error:
        print(f"{parser.prog}: error: {error}", file=sys.stderr)
        sys.exit(1)


def _package(part: str) -> Any:
    try:
        return import_module(f"wandb_workspaces.{part}")
    except ImportError as error:
        raise ConfigurationError(
            "The dashboard needs the package wandb-workspaces. Install it with pip install 'fl_lightning[dashboard]'."
        ) from error


def _write(made: Any, path: Path) -> Path:
    try:
        path.write_text(json.dumps(workspace_specification(made), indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"'--out' is '{path}', which cannot be written ({error}). Choose another file.") from error
    return path


def _send(made: Any) -> str:
    from fl_lightning.reporting.wandb import has_api_key

    if not has_api_key():
        raise ConfigurationError(
            "W&B has no API key. Run 'wandb login' or set WANDB_API_KEY. --out FILE writes the specification without a key."
        )
    try:
        made.save()
    except Exception as error:  # network, server or permissions: W&B has no common error for them
        raise ConfigurationError(
            f"W&B did not accept the workspace for '{made.entity}/{made.project}' ({type(error).__name__}: {error}). Check "
            "--entity, --project and the network, or use --out FILE to write the specification."
        ) from error
    return str(made.url)
