"""The command ``fl-lightning dashboard``: a W&B workspace for the runs of a project.

It adds what W&B does not draw by itself: the mean of each strategy, all classes, and all clients. docs/metrics.md explains the
metrics.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from fl_lightning.compat.wandb import workspace_specification
from fl_lightning.errors import ConfigurationError
from fl_lightning.utilities.argument_parser import ArgumentParser

_GROUPED = {"groupby": "config.federation.strategy.class_path", "groupby_aggfunc": "mean"}


def workspace(entity: str, project: str) -> Any:
    """Return the workspace without sending it.

    Raises:
        ConfigurationError: if wandb-workspaces is not installed.
    """
    ws, sections = _package("workspaces"), _sections(_package("reports.v2"))
    return ws.Workspace(
        entity=entity,
        project=project,
        name="Federations",
        sections=[ws.Section(name=name, panels=panels, is_open=True) for name, panels in sections.items()],
        settings=ws.WorkspaceSettings(x_axis="round", smoothing_type="none"),
        auto_generate_panels=True,
    )


def _sections(wr: Any) -> dict[str, list[Any]]:
    """Return the panels of each section, given the package that has their classes."""
    from fl_lightning.reporting.client_charts import CHART, FIELDS, TABLE  # imports torch, which --help does not need

    def by_strategy(title: str, metric: str, unit: str, x: str = "round") -> Any:
        """Draw the mean over seeds with a band for each strategy."""
        names = {"title": title, "title_x": x.rpartition("/")[2], "title_y": unit}
        return wr.LinePlot(x=x, y=[metric], groupby_rangefunc="stddev", **_GROUPED, **names)

    def matching(title: str, prefix: str, unit: str) -> Any:
        """Draw all metrics ``<prefix>/<number>``."""
        return wr.LinePlot(title=title, x="round", metric_regex=f"^{prefix}/[0-9]+$", title_x="round", title_y=unit)

    def by_client(title: str, figure: str) -> Any:
        """Draw a line for each client or for each quantile, from the table of a run's own charts."""
        query, names = {"summaryTable": {"tableKey": TABLE}}, {"title": title, "xname": "round"}
        return wr.CustomChart(query=query, chart_name=CHART, chart_fields={**FIELDS, "lineVal": figure}, chart_strings=names)

    return {
        "Strategies": [
            by_strategy("Accuracy by strategy", "val_accuracy", "share of the server's set"),
            by_strategy("Macro-F1 by strategy", "val_f1_macro", "F1"),
            by_strategy("Loss by strategy", "val_loss", "nats"),
            by_strategy("Accuracy for megabytes", "val_accuracy", "share", x="federation/megabytes_total"),
            by_strategy("Accuracy for seconds", "val_accuracy", "share", x="federation/seconds_total"),
            by_strategy("How far clients drift apart", "federation/drift", "L2 norm"),
            wr.BarPlot(title="Best accuracy", metrics=["val_accuracy.max"], **_GROUPED),
        ],
        "Classes": [
            matching("F1 of each class", "val_f1", "F1"),
            matching("Class weights of the adaptive loss", "class_weight", "kappa"),
        ],
        "Clients": [
            by_client("Weights p_k by client, as shares of their sum", "share"),
            by_client("Loss by client", "loss"),
            by_client("L2 norm of the update by client", "update_norm"),
            by_client("Seconds by client", "seconds"),
        ],
    }


def main(arguments: Sequence[str]) -> None:
    """Run the command.

    Args:
        arguments: the arguments after ``dashboard``.

    Raises:
        ConfigurationError: if the workspace cannot be made, written or sent.
    """
    parser = ArgumentParser(
        prog="fl-lightning dashboard",
        description="Create a W&B workspace for a project's runs: accuracy and F1 by strategy, by class and by client.",
    )
    parser.add_argument("--entity", default="", help="user or team; required unless --out is given")
    parser.add_argument("--project", default="fl_lightning", help="project of the runs (default: %(default)s)")
    parser.add_argument("--out", type=Path, help="write the specification to this file instead; needs no account")
    args = parser.parse_args(arguments)
    if not args.out and not args.entity:
        parser.error("no user or team given. Set --entity, or --out FILE to write only the specification")
    made = workspace(args.entity, args.project)
    if not args.out:
        print(_send(made))
        return
    try:
        args.out.write_text(json.dumps(workspace_specification(made), indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"'--out' is '{args.out}', which cannot be written ({error}). Choose another file.") from error
    print(args.out)


def _package(part: str) -> Any:
    try:
        return import_module(f"wandb_workspaces.{part}")
    except ImportError as error:
        raise ConfigurationError(
            "The dashboard needs the package wandb-workspaces. Install it with pip install 'fl_lightning[dashboard]'."
        ) from error


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
