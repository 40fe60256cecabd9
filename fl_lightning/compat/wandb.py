"""Private names of Weights & Biases."""

from __future__ import annotations

from typing import Any

from fl_lightning.compat.private import MISSING, Private

_SPARINGLY = "sends a chart's table to W&B once for each chart"
_CHART = Private("wandb", "wandb.plot.custom_chart", "CustomChart", _SPARINGLY)
_TABLE_KEY = Private("wandb", "wandb.plot.custom_chart", "CustomChartSpec.table_key", _SPARINGLY)


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
