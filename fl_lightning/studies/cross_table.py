"""Tables of two axes, such as attacks x defences, with one number for each pair."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from fl_lightning.studies.layout import Table, spread, table_of, with_best
from fl_lightning.studies.panels import Measure, Panel
from fl_lightning.studies.run_table import RunTable
from fl_lightning.studies.statistics import Sample, last_rounds


def cross_tables(table: RunTable, panels: Sequence[Panel], measures: Sequence[Measure]) -> Iterator[Table]:
    """Yield the final values of each metric, with the compared axis as rows and the other as columns; needs two axes.

    Args:
        table: run table of a study.
        panels: its settings, grouped by their choice on the other axis.
        measures: metrics; each that was logged gets a table. The best value of a column is bold if a direction is better.
    """
    if len(table.axes) != 2 or len(panels) < 2:
        return
    panel = _together(panels)
    across = re.split(": | = ", panels[0].title, maxsplit=1)[0]
    heads = [re.split(": ", panel.title, maxsplit=1)[-1] for panel in panels]
    for measure in measures:
        columns = [[_final(table, own, name, measure) for name in panel.names] for own in panels]
        if not any(sample.values for column in columns for sample in column):
            continue
        shown = partial(_shown, measure)
        body = with_best(columns, [measure.direction] * len(columns), shown, panel.compete(measure.name))
        rounds = "After the last round." if measure.last == 1 else f"Mean of the last {measure.last} rounds."
        notes = (f"Columns: {across}.", rounds, panel.note(measure.name), _columns_differ(panels, measure))
        note = " ".join(filter(None, notes))
        yield table_of(f"{measure.title} at the end", panel.axis, panel.rows(measure.name), heads, body, note)


@dataclass(frozen=True)
class _Crossed(Panel):
    """Hold the choices of several panels; a choice that is not comparable in one of them is marked.

    Attributes:
        parts: the panels.
    """

    parts: Sequence[Panel] = ()

    def apart(self, metric: str) -> dict[str, str]:
        """Return the choices that are not comparable in some panel; see :meth:`Panel.apart`."""
        return {name: text for part in reversed(self.parts) for name, text in part.apart(metric).items()}


def _together(panels: Sequence[Panel]) -> _Crossed:
    first = panels[0]
    names = dict.fromkeys(name for panel in panels for name in panel.names)
    found = {name: next(panel for panel in panels if name in panel.settings) for name in names}
    return _Crossed(
        first.title,
        first.axis,
        {name: panel.settings[name] for name, panel in found.items()},
        {name: panel.label(name) for name, panel in found.items()},
        {name: panel.references[name] for name, panel in found.items() if name in panel.references},
        {name: panel.facts.get(name, {}) for name, panel in found.items()},
        first.baseline,
        panels,
    )


def _columns_differ(panels: Sequence[Panel], measure: Measure) -> str:
    sets = {panel.measured_on(panel.against, measure.name) for panel in panels} - {None}
    return "The columns are measured on different sets, so compare within a column." if len(sets) > 1 else ""


def _shown(measure: Measure, sample: Sample, _: int) -> str:
    return spread(sample, measure.scale, measure.digits)


def _final(table: RunTable, panel: Panel, name: str, measure: Measure) -> Sample:
    if name not in panel.settings:
        return Sample(())
    return Sample(tuple(last_rounds(table.curves(panel.settings[name], measure.name), measure.last).values()))
