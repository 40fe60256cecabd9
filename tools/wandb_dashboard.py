"""A W&B workspace for the runs of a project: accuracy and F1 by strategy, F1 by class, weights by client, costs.

    pip install wandb-workspaces
    python tools/wandb_dashboard.py --entity me --project fl_lightning             # makes it, and prints its address
    python tools/wandb_dashboard.py --project fl_lightning --out workspace.json    # without an account: its specification

Names of the metrics: docs/metrics.md.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import wandb_workspaces.reports.v2 as wr
import wandb_workspaces.workspaces as ws

STRATEGY = "config.federation.strategy.class_path"


def over_rounds(title: str, metrics: list[str], unit: str, by: str | None = STRATEGY, **more: Any) -> wr.LinePlot:
    """Lines over rounds: the mean over seeds with a band, by strategy; or each run by itself."""
    grouped = {"groupby": by, "groupby_aggfunc": "mean", "groupby_rangefunc": "stddev"} if by else {}
    return wr.LinePlot(title=title, x="round", y=metrics, title_x="round", title_y=unit, **grouped, **more)


def matching(title: str, prefix: str, unit: str) -> wr.LinePlot:
    """All metrics ``<prefix>/<number>``, however many there are."""
    return wr.LinePlot(title=title, x="round", metric_regex=f"^{prefix}/[0-9]+$", title_x="round", title_y=unit)


def workspace(entity: str, project: str) -> ws.Workspace:
    """The whole of it."""
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
            matching("Weights p_k by client", "client_share", "share of the sum of weights"),
            matching("Loss by client", "client_loss", "nats"),
            over_rounds("Worst and mean client", ["federation/client_worst", "federation/client_mean"], "metric", by=None),
            wr.MediaBrowser(title="Who holds what", media_keys=["partition_picture"]),
            wr.WeavePanelSummaryTable(table_name="clients"),
        ],
        "Costs": [
            over_rounds("Bytes of a round", ["federation/bytes_up", "federation/bytes_down"], "bytes", by=None),
            over_rounds("Seconds of a round", ["federation/seconds", "federation/waiting_seconds"], "s", by=None),
            matching("Seconds by client", "client_seconds", "s"),
        ],
    }
    return ws.Workspace(
        entity=entity,
        project=project,
        name="Federations",
        sections=[ws.Section(name=name, panels=panels, is_open=True) for name, panels in sections.items()],
        settings=ws.WorkspaceSettings(x_axis="round", smoothing_type="none"),
    )


def specification(made: ws.Workspace) -> dict[str, Any]:
    """What W&B would be sent."""
    spec: dict[str, Any] = json.loads(made._to_model().model_dump_json(by_alias=True, exclude_none=True))
    return spec


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--entity", default="", help="user or team; needed unless --out is given")
    parser.add_argument("--project", default="fl_lightning")
    parser.add_argument("--out", type=Path, help="write the specification there instead of sending it")
    args = parser.parse_args()
    made = workspace(args.entity, args.project)
    if args.out:
        args.out.write_text(json.dumps(specification(made), indent=1) + "\n")
        print(args.out)
    elif not args.entity:
        parser.error("whose project is it? Give --entity, or --out FILE for the specification alone.")
    else:
        made.save()
        print(made.url)


if __name__ == "__main__":
    main()
