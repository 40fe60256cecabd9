"""A report as one HTML file that opens without a network: tables, charts to hover over and filter, the configuration."""

from __future__ import annotations

import html
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fl_lightning.studies.collection import read_lines
from fl_lightning.studies.layout import Cell, Table
from fl_lightning.studies.panels import Panel
from fl_lightning.studies.run_table import RunTable, Setting
from fl_lightning.studies.statistics import Curves, Sample
from fl_lightning.utilities.atomic_file import write_whole

_PAGE = Path(__file__).parent / "page"
_OF_MEMBERS = {"val_f1": "F1 of each class", "client_share": "clients' shares of the aggregate"}
_NO_CURVES = ("study/", "partition/", "client_comparison/", "client_share/", "val_confusion/", "val_f1/")
_MOST_MEMBERS, _MOST_CELLS = 60, 4_000
_MOST_FAILURES = 200
_MEANS = "Lines are means over seeds, bands ± one standard deviation. "


def write_page(
    path: Path,
    title: str,
    table: RunTable,
    panels: Sequence[Panel],
    tables: Sequence[tuple[str, Sequence[Table]]],
    words: Sequence[str] = (),
    first: str = "",
) -> None:
    """Write the page.

    Args:
        path: the file.
        title: the title of the report.
        table: the run table.
        panels: its settings, grouped.
        tables: tables by heading; the first heading is empty, and its tables are the set-up.
        words: sentences on how to read the report.
        first: the metric whose chart is shown first.
    """
    charts: dict[str, dict[str, list[dict[str, Any]]]] = {
        "metrics": _metrics(table, panels, first),
        "members": dict(_members(table, panels)),
    }
    (_, start), *others = tables
    bands = any(len(table.seeds(setting)) > 1 for setting in table.settings)
    parts = [f"<h1>{html.escape(title)}</h1>", *(_table(one) for one in start), _list(words)]
    parts += ["<h2>Curves</h2>", _figure("metrics", charts, bands), _figure("members", charts, bands)]
    for heading, own in others:
        parts += [f"<h2>{html.escape(heading or 'Results')}</h2>", *(_table(one) for one in own)]
    parts += [*_fields(table, panels), *_of_runs(path.parent)]
    style, script = ((_PAGE / name).read_text(encoding="utf-8") for name in ("report.css", "report.js"))
    body = "\n".join(filter(None, parts))
    numbers = json.dumps(charts, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    page = (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">\n'
        f"<title>{html.escape(title)}</title>\n<style>\n{style}</style></head>\n<body>\n{body}\n"
        f'<script type="application/json" id="data">{numbers}</script>\n<script>\n{script}</script>\n</body></html>\n'
    )
    write_whole(path, page.encode())


def _list(words: Sequence[str]) -> str:
    return f"<ul>{''.join(f'<li>{_code(one)}</li>' for one in words)}</ul>" if words else ""


def _code(text: str) -> str:
    """Return text in which what Markdown writes between backticks is code."""
    parts = html.escape(text).split("`")
    return "".join(f"<code>{part}</code>" if k % 2 else part for k, part in enumerate(parts))


def _table(table: Table) -> str:
    heads = "".join(f"<th>{html.escape(column)}</th>" for column in table.columns)
    rows = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in table.rows)
    kind = "words" if table.title.startswith(("Set-up", "What")) else ""
    caption = f'<p class="soft"><strong>{html.escape(table.title)}.</strong> {html.escape(table.note)}</p>'
    body = f"<thead><tr>{heads}</tr></thead><tbody>{rows}</tbody>"
    return f'{caption}<div class="scroll"><table class="{kind}">{body}</table></div>'


def _cell(cell: Cell) -> str:
    text = html.escape(cell.text)
    return f"<td><b>{text}</b></td>" if cell.bold else f"<td>{text}</td>"


# ---------------------------------------------------------------- charts


def _figure(kind: str, charts: Mapping[str, Mapping[str, Any]], bands: bool) -> str:
    if not charts[kind]:
        return ""
    options = "".join(f"<option>{html.escape(name)}</option>" for name in charts[kind])
    label = "metric" if kind == "metrics" else "classes or clients"
    return (
        f'<figure data-chart="{kind}"><label>{label}: <select>{options}</select></label><div class="legend"></div>'
        f'<svg role="img" aria-label="curves over rounds"></svg><div class="tip"></div>'
        f"<figcaption>{_MEANS if bands else ''}Click a name to hide its line.</figcaption></figure>"
    )


def _metrics(table: RunTable, panels: Sequence[Panel], first: str) -> dict[str, list[dict[str, Any]]]:
    """Return the lines of each metric that has several rounds."""
    names = [name for name in table.metrics if not name.startswith(_NO_CURVES) and not name.startswith("test")]
    names.sort(key=lambda name: (name != first, "/" in name))
    found = {}
    for name in names:
        lines = [_line(_label(panel, choice), table.curves(setting, name)) for panel, choice, setting in _settings(panels)]
        lines = [line for line in lines if line["x"]]
        if any(len(line["x"]) > 1 for line in lines):
            found[name] = lines
    return found


def _members(table: RunTable, panels: Sequence[Panel]) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    for prefix, what in _OF_MEMBERS.items():
        members = table.families(prefix)
        if not 0 < len(members) <= _MOST_MEMBERS:
            continue
        read = table.of_clients if prefix == "client_share" else table.curves
        for panel, choice, setting in _settings(panels):
            lines = [_line(member, read(setting, f"{prefix}/{member}")) for member in members]
            lines = [line for line in lines if line["x"]]
            if lines:
                yield ": ".join(filter(None, (what, _label(panel, choice)))), lines


def _settings(panels: Sequence[Panel]) -> Iterator[tuple[Panel, str, Setting]]:
    return ((panel, choice, setting) for panel in panels for choice, setting in panel.settings.items())


def _label(panel: Panel, choice: str) -> str:
    return ", ".join(filter(None, (panel.label(choice) if choice != "all" else "", panel.title)))


def _line(name: str, curves: Curves) -> dict[str, Any]:
    """Return a line: rounds that are done, means over seeds, and standard deviations."""
    rounds = sorted({round_idx for curve in curves.values() for round_idx in curve})
    samples = [Sample(tuple(curve[r] for curve in curves.values() if r in curve)) for r in rounds]
    means = [None if math.isnan(one.mean) else float(f"{one.mean:.6g}") for one in samples]
    spreads = [0.0 if math.isnan(one.std) else float(f"{one.std:.3g}") for one in samples]
    return {"name": name or "run", "x": [r + 1 for r in rounds], "y": means, "s": spreads}


# ---------------------------------------------------------------- fields


def _fields(table: RunTable, panels: Sequence[Panel]) -> Iterator[str]:
    """Yield the partition and the confusion of each setting, of its first seed, as coloured tables."""
    for prefix, heading, corner in (
        ("partition", "Training examples of each client", "client"),
        ("val_confusion", "Confusion at the end: true classes down, predicted ones across", "true"),
    ):
        made = []
        for panel, choice, setting in _settings(panels):
            cells = {tuple(m.rsplit("/", 1)): table.curves(setting, f"{prefix}/{m}") for m in table.families(prefix)}
            values = {key: [*next(iter(by_seed.values())).values()][-1] for key, by_seed in cells.items() if by_seed}
            if 0 < len(values) <= _MOST_CELLS:
                seed = min(table.seeds(setting))
                made.append((": ".join(filter(None, (_label(panel, choice), f"seed {seed}"))), _field(values, corner)))
        if made:
            yield f"<h2>{html.escape(heading)}</h2>"
            same = len({field for _, field in made}) == 1
            for number, (what, field) in enumerate(made[:1] if same else made):
                opened, name = " open" if number == 0 else "", "all" if same and len(made) > 1 else what
                yield f"<details{opened}><summary>{html.escape(name)}</summary>{field}</details>"


def _field(values: Mapping[tuple[str, ...], float], corner: str) -> str:
    rows, columns = (dict.fromkeys(key[k] for key in values) for k in (0, 1))
    top = max(values.values()) or 1.0
    heads = "".join(f"<th>{html.escape(column)}</th>" for column in columns)
    body = []
    for row in rows:
        cells = []
        for column in columns:
            value = values.get((row, column), 0.0)
            back = f"color-mix(in srgb, #56b4e9 {100 * math.sqrt(max(value, 0.0) / top):.0f}%, #f7f9fb)"
            cells.append(f'<td style="background:{back}">{value:g}</td>')
        body.append(f"<tr><th>{html.escape(row)}</th>{''.join(cells)}</tr>")
    return f'<div class="scroll"><table class="field"><tr><th>{corner}</th>{heads}</tr>{"".join(body)}</table></div>'


# ---------------------------------------------------------------- a run's files


def _of_runs(folder: Path) -> Iterator[str]:
    """Yield what the files of a run, or of a study's runs, say: failures, and the whole configuration of the first."""
    runs = [folder] if (folder / "config.yaml").exists() else sorted(path.parent for path in folder.glob("runs/*/config.yaml"))
    if not runs:
        return
    found = [(run, read_lines(run / "failures.csv")) for run in runs]
    head = next((lines[0] for _, lines in found if lines[1:]), [])
    failed = [[*([run.name] if len(runs) > 1 else []), *line] for run, lines in found for line in lines[1:]]
    yield "<h2>Failures</h2>"
    named = ["run", *head] if len(runs) > 1 else head
    yield _plain_table(named, failed[:_MOST_FAILURES]) if failed else '<p class="soft">No client failed.</p>'
    text = html.escape((runs[0] / "config.yaml").read_text(encoding="utf-8"))
    what = f"{runs[0].name}/config.yaml, complete; the set-up says what differs" if len(runs) > 1 else "config.yaml, complete"
    yield f"<h2>Configuration</h2><details><summary>{html.escape(what)}</summary><pre>{text}</pre></details>"


def _plain_table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    heads = "".join(f"<th>{html.escape(column)}</th>" for column in head)
    rows = "".join(f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in line)}</tr>" for line in lines)
    return f'<div class="scroll"><table class="words"><tr>{heads}</tr>{rows}</table></div>'
