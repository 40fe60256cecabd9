"""Tables of two axes, such as attacks x defences, with one number for each pair."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from fl_lightning.studies.layout import Table, spread, table_of, with_best
from fl_lightning.studies.run_table import RunTable
from fl_lightning.studies.statistics import Sample, last_rounds
from fl_lightning.studies.tables import Measure, Panel


def cross_tables(table: RunTable, panels: Sequence[Panel], measures: Sequence[Measure]) -> Iterator[Table]:
    """Yield the final values of each metric, with the compared axis as rows and the other as columns; needs two axes.

    Args:
        table: run table of a study.
        panels: its settings, grouped by their choice on the other axis.
        measures: metrics; each that was logged gets a table. The best value of a column is bold if a direction is better.
    """
    if len(table.axes) != 2 or len(panels) < 2:
        return
    names = list(dict.fromkeys(name for panel in panels for name in panel.names))
    across = panels[0].title.split(": ", 1)[0]
    heads = [panel.title.split(": ", 1)[1] for panel in panels]
    for measure in measures:
        columns = [[_final(table, panel, name, measure) for name in names] for panel in panels]
        if not any(sample.values for column in columns for sample in column):
            continue
        body = with_best(columns, [measure.direction] * len(columns), partial(_shown, measure))
        title = f"{measure.name}{' in percent' if measure.percent else ''} at the end"
        note = "After the last round." if measure.last == 1 else f"Mean of the last {measure.last} rounds."
        yield table_of(title, panels[0].axis, names, heads, body, f"Columns: {across}. {note}")


def _shown(measure: Measure, sample: Sample, _: int) -> str:
    return spread(sample, measure.scale, measure.digits)


def _final(table: RunTable, panel: Panel, name: str, measure: Measure) -> Sample:
    if name not in panel.settings:
        return Sample(())
    return Sample(tuple(last_rounds(table.curves(panel.settings[name], measure.name), measure.last).values()))
