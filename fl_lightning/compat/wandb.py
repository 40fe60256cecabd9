"""Private names of Weights & Biases."""

from __future__ import annotations

import json
from typing import Any

from fl_lightning.compat.private import MISSING, Private

_TO_MODEL = Private("wandb-workspaces", "wandb_workspaces.workspaces.Workspace", "_to_model")
_SPARINGLY = "sends a chart's table to W&B once for each chart"
_CHART = Private("wandb", "wandb.plot.custom_chart", "CustomChart", _SPARINGLY)
_TABLE_KEY = Private("wandb", "wandb.plot.custom_chart", "CustomChartSpec.table_key", _SPARINGLY)


def workspace_specification(workspace: Any) -> dict[str, Any]:
    """Return what a workspace sends to W&B, which wandb-workspaces can only send.

    Args:
        workspace: a ``wandb_workspaces.workspaces.Workspace``.

    Raises:
        VersionError: if wandb-workspaces has another way.
    """
    model = _TO_MODEL.require("'fl-lightning dashboard'", workspace)()
    specification: dict[str, Any] = json.loads(model.model_dump_json(by_alias=True, exclude_none=True))
    return specification


def chart_of_table(table: Any, key: str, chart: str, fields: dict[str, str], texts: dict[str, str]) -> Any:
    """Return a chart to log that is drawn from a table with a key of its own, so that several charts can share the table.

    Args:
        table: a ``wandb.Table``.
        key: key of the table in the run.
        chart: name of the chart's Vega specification.
        fields: columns of the table, by the fields of the chart.
        texts: texts, by the strings of the chart.
    """
    for name in (_CHART, _TABLE_KEY):
        if name.look_up() is MISSING:
            name.tell()
            import wandb

            return wandb.plot_table(chart, table, fields, texts)
    from wandb.plot.custom_chart import CustomChart, CustomChartSpec

    class OfTable(CustomChartSpec):
        @property
        def table_key(self) -> str:
            return key

    return CustomChart(table, OfTable(chart, fields, texts))
