"""Figures of lines: a metric over rounds, F1 by class, shares by client."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fl_lightning.studies.drawing import draw_lines, finish, grid, plain, where
from fl_lightning.studies.names import family
from fl_lightning.studies.panels import Measure, Panel
from fl_lightning.studies.run_table import RunTable
from fl_lightning.studies.styles import MOST_STYLES, Style, style, styles

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MOST_LINES = 12
"""Largest number of settings in one panel; more are drawn in families."""


def curves(
    table: RunTable, panels: Sequence[Panel], measure: Measure, families_of: Mapping[str, Sequence[str]] | None = None
) -> Figure | None:
    """Draw a metric over rounds: mean over seeds, band of one standard deviation, and a panel for each group of settings.

    A setting has the same look in every panel. Many settings are drawn by family, with the baseline in every panel.

    Args:
        table: run table of a study.
        panels: groups of settings to compare.
        measure: metric to draw.
        families_of: choices to draw in one panel, by its title; by default the groups of ``fl-lightning algorithms`` if there
            are more than 12.
    """
    logged = [panel for panel in panels if any(panel.curves(table, measure.name))]
    shown = [(part, title) for panel in logged for title, part in _parts(panel, families_of or {})]
    if not shown:
        return None
    looks = looks_of(panels)
    single, together = len(shown) == 1, len(shown) == len(logged)
    figure, axes = grid(len(shown), 6.0 if single else 3.8, 3.9 if single else 3.0 if together else 3.7, sharey=True)
    whole = _shared(panels)
    for axis, (panel, title) in zip(axes, shown, strict=True):
        lines = zip(panel.names, panel.curves(table, measure.name), strict=True)
        looked = ((panel.label(name), looks[name], by_seed) for name, by_seed in lines if by_seed)
        draw_lines(axis, looked, measure.scale)
        if not together:
            place: dict[str, Any] = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.2), "ncols": 2}
            axis.legend(fontsize="x-small", frameon=False, handlelength=3.2, **place)
        own = f"\npartition: {panel.partition}" if not whole and panel.partition else ""
        axis.set_title(plain(title + own), fontsize="medium")
    over = _seeds([len(by_seed) for panel in logged for by_seed in panel.curves(table, measure.name) if by_seed])
    words = f"Lines: mean over {over}; bands: ± one standard deviation" if over else "One seed"
    finish(figure, axes, measure.label, words if together else None, f"Partition: {whole}" if whole else None)
    if not together:
        figure.supxlabel(words, fontsize="small")
    return figure


def looks_of(panels: Sequence[Panel]) -> dict[str, Style]:
    """Return the look of each choice, which is the same in every panel and figure."""
    labels = {name: panel.label(name) for panel in panels for name in panel.names}
    found = styles(list(labels.values()), [panel.label(name) for panel in panels for name in panel.references])
    return {name: found[label] for name, label in labels.items()}


def _seeds(counts: Sequence[int]) -> str | None:
    """Describe over how many seeds lines are means, such as ``3 to 5 seeds``; None if each is a single run."""
    least, most = min(counts), max(counts)
    if most == 1:
        return None
    return f"{most} seeds" if least == most else f"{least} to {most} seeds"


def _shared(panels: Sequence[Panel]) -> str | None:
    """Return the partition if all panels have the same one."""
    found = {panel.partition for panel in panels}
    return found.pop() if len(found) == 1 else None


def _parts(panel: Panel, families_of: Mapping[str, Sequence[str]]) -> list[tuple[str, Panel]]:
    """Divide a panel with many settings into families, each with its title; the baseline is in all of them."""
    if len(panel.names) <= _MOST_LINES and not families_of:
        return [(panel.title, panel)]
    groups: dict[str, list[str]] = {}
    chosen = {choice: title for title, choices in families_of.items() for choice in choices}
    for name in panel.names:
        title = "Baselines" if name in panel.references else family(panel.label(name)) or "Others"
        groups.setdefault(chosen.get(name, title if not families_of else "Others"), []).append(name)
    if len(groups) == 1:  # one family, or none known: equal parts
        (names,) = groups.values()
        count = math.ceil(len(names) / _MOST_LINES)
        size = math.ceil(len(names) / count)
        groups = {f"{part + 1} of {count}": names[part * size : (part + 1) * size] for part in range(count)}
    before = f"{panel.title}: " if panel.title else ""
    return [(before + title, panel.some({panel.against, *names})) for title, names in groups.items()]


def families(table: RunTable, panel: Panel, prefix: str, ylabel: str, of: str) -> Figure | None:
    """Draw all curves ``<prefix>/<member>`` of each setting side by side, as means over seeds: F1 by class, shares by client.

    Clients are those of the first seed if the others divide the data differently.

    Return None if there is no such curve, or too many to distinguish.
    """
    members = table.families(prefix)
    settings = {name: s for name, s in panel.settings.items() if any(table.curves(s, f"{prefix}/{m}") for m in members)}
    if not settings or len(members) > MOST_STYLES:
        return None
    figure, axes = grid(len(settings), 3.6, 2.9, sharey=True)
    for axis, (name, setting) in zip(axes, settings.items(), strict=True):
        read = table.of_clients if of == "client" else table.curves
        lines = ((member, style(k), read(setting, f"{prefix}/{member}")) for k, member in enumerate(members))
        draw_lines(axis, (line for line in lines if line[2]), 1.0, bands=False)
        axis.set_title(plain(panel.label(name)), fontsize="medium")
    axes[0].set_ylim(bottom=0)  # shared by all
    over = _seeds([len(table.seeds(setting)) for setting in settings.values()])
    words = f" (mean over {over})" if over else ""
    if over and of == "client" and not all(map(table.has_same_clients, settings.values())):
        words = f" (seed {min(map(min, map(table.seeds, settings.values())))}; others divide the data differently)"
    finish(figure, axes, ylabel, of + words, where(panel))
    return figure
