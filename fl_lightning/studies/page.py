"""Tables of a report, and the report as one HTML file that opens without a network, with charts to hover over and filter."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from fl_lightning.studies.collection import natural
from fl_lightning.utilities.atomic_file import write_whole
from fl_lightning.utilities.csv_file import read_rows


class Bold(str):
    """A cell in bold: the best value of its column."""

    __slots__ = ()


@dataclass(frozen=True)
class Table:
    """Hold a table of a report.

    Attributes:
        title: what the table shows.
        columns: headings of the columns.
        rows: rows with one cell per column.
        note: how to read the table.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""

    def markdown(self) -> str:
        """Return the table in Markdown, with the best values in bold."""
        body = [[f"**{_cell(cell)}**" if isinstance(cell, Bold) else _cell(cell) for cell in row] for row in self.rows]
        head, *rows = (f"| {' | '.join(row)} |" for row in [list(map(_cell, self.columns)), *body])
        return "\n".join([f"**{self.title}.** {self.note}".rstrip(), "", head, "|" + "---|" * len(self.columns), *rows, ""])

    def latex(self, what: str = "") -> str:
        """Return the table as a LaTeX ``table`` environment, which needs the package booktabs.

        Args:
            what: subject of the table, for the caption.
        """
        import pandas as pd  # the page of a single run does without

        title = f"{self.title} ({what})" if what else self.title
        body = [[rf"\textbf{{{_tex(cell)}}}" if isinstance(cell, Bold) else _tex(cell) for cell in row] for row in self.rows]
        text: str = pd.DataFrame(body, columns=range(len(self.columns))).to_latex(
            index=False,
            header=list(map(_tex, self.columns)),
            column_format="l" + "r" * (len(self.columns) - 1),
            caption=_tex(f"{title}. {self.note}".strip()),
            label=f"tab:{re.sub(r'[^a-z0-9]+', '-', title.lower()).strip('-')}",
        )
        return text.replace("\\begin{table}\n", "\\begin{table}\n\\centering\n")


def _cell(text: str) -> str:
    """Escape text for a Markdown table."""
    return " ".join(text.split()).replace("|", "\\|")


_TEX = str.maketrans(
    {
        **{sign: f"\\{sign}" for sign in "&%_#${}"},
        **{sign: f"${sign}$" for sign in "<>|"},
        **{"\\": r"\textbackslash ", "^": r"\^{}", "~": r"\~{}", "†": r"\dag{}", "‡": r"\ddag{}"},
        **{"±": r"$\pm$", "²": r"$^2$", "≥": r"$\geq$", "≤": r"$\leq$"},
    }
)


def _tex(text: str) -> str:
    """Escape text for LaTeX, character by character, so that nothing is escaped twice."""
    return text.translate(_TEX)


# ---------------------------------------------------------------- the page


MEMBERS = {"val_f1": "F1 of each class", "client_share": "clients' shares of the aggregate"}
"""Families of metrics with a chart of their own, by the beginning of their names."""
MATRICES = {
    "partition": ("Training examples of each client", "client"),
    "val_confusion": ("Confusion at the end: true classes down, predicted ones across", "true"),
}
"""Metrics that are cells of a matrix, by the beginning of their names: its heading, and the word in its corner."""
_NO_CURVES = ("client_comparison/", "test", *(f"{prefix}/" for prefix in (*MEMBERS, *MATRICES)))
_MOST_MEMBERS, _MOST_CELLS, _MOST_FAILURES = 60, 4_000, 200

Sections = Sequence[tuple[str, Sequence[Table]]]
"""Tables by heading."""


class Shown(NamedTuple):
    """Hold what a page draws of a run, or of the runs of a setting.

    Attributes:
        label: its name for readers; empty for the only run.
        seed: the seed of which matrices are shown.
        curves: rounds, means over seeds and standard deviations of each metric.
        cells: values of the metrics that are cells of matrices.
    """

    label: str
    seed: int
    curves: Mapping[str, tuple[Sequence[int], Sequence[float], Sequence[float]]]
    cells: Mapping[str, float]


def write_page(
    path: Path, title: str, shown: Sequence[Shown], results: Sections = (), first: str = "", **more: Sections | Sequence[Any]
) -> None:
    """Write the page: the result, curves, further tables, the set-up, and what the files of the runs in its folder say.

    Args:
        path: the file.
        title: the title of the report.
        shown: what is drawn.
        results: tables of the result.
        first: the metric whose chart is shown first.
        more: ``details``, further tables; ``set_up``, tables of the set-up; and ``words``, sentences on how to read the report,
            in which code stands between backticks.
    """
    from jinja2 import Environment, FileSystemLoader  # torch requires it

    folder = Path(__file__).parent / "template"
    environment = Environment(loader=FileSystemLoader(folder), autoescape=True, trim_blocks=True, keep_trailing_newline=True)
    environment.tests["bold"] = lambda cell: isinstance(cell, Bold)
    charts = {"metrics": dict(_metrics(shown, first)), "members": dict(_members(shown))}
    style, script = ((folder / name).read_text(encoding="utf-8") for name in ("report.css", "report.js"))
    page = environment.get_template("report.html.j2").render(
        title=title,
        results=results,
        charts=charts,
        bands=any(any(spreads) for own in shown for _, _, spreads in own.curves.values()),
        numbers=json.dumps(charts, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c"),
        matrices=[(*MATRICES[prefix], found) for prefix in MATRICES if (found := _matrices(shown, prefix))],
        style=style,
        script=script,
        **more,
        **_of_runs(path.parent),
    )
    write_whole(path, page.encode())


def _line(name: str, curve: tuple[Sequence[int], Sequence[float], Sequence[float]]) -> dict[str, Any]:
    """Return a line: rounds that are done, means, of which those that are not finite are gaps, and standard deviations."""
    rounds, means, spreads = curve
    return {
        "name": name or "run",
        "x": [int(r) + 1 for r in rounds],
        "y": [float(f"{y:.6g}") if math.isfinite(y) else None for y in means],
        "s": [float(f"{s:.3g}") if math.isfinite(s) else 0.0 for s in spreads],
    }


def _metrics(shown: Sequence[Shown], first: str) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Yield the lines of each metric that has several rounds."""
    names = sorted({name for own in shown for name in own.curves if not name.startswith(_NO_CURVES)}, key=natural)
    for name in sorted(names, key=lambda name: (name != first, "/" in name)):
        lines = [_line(own.label, own.curves[name]) for own in shown if name in own.curves]
        if any(len(line["x"]) > 1 for line in lines):
            yield name, lines


def _members(shown: Sequence[Shown]) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    for prefix, what in MEMBERS.items():
        members = {name for own in shown for name in own.curves if name.startswith(f"{prefix}/")}
        for own in shown if len(members) <= _MOST_MEMBERS else ():
            names = sorted(members & own.curves.keys(), key=natural)
            if names:
                label = ": ".join(filter(None, (what, own.label)))
                yield label, [_line(name.removeprefix(f"{prefix}/"), own.curves[name]) for name in names]


def _matrices(shown: Sequence[Shown], prefix: str) -> list[tuple[str, list[str], list[str], list[list[float]], float]]:
    """Return what each matrix is of, its rows, columns and values, and the largest value; a single one if all are the same."""
    found = []
    for own in shown:
        rows, columns, values = matrix(own.cells, prefix)
        if 0 < len(rows) * len(columns) <= _MOST_CELLS:
            what = ": ".join(filter(None, (own.label, f"seed {own.seed}")))
            found.append((what, rows, columns, values, max(map(max, values)) or 1.0))
    same = len(found) > 1 and all(one[1:] == found[0][1:] for one in found)
    return [("all", *found[0][1:])] if same else found


def matrix(cells: Mapping[str, float], prefix: str) -> tuple[list[str], list[str], list[list[float]]]:
    """Return rows, columns and values of the metrics ``<prefix>/<row>/<column>``; a missing value is 0."""
    own = {name: cells[name] for name in sorted(cells, key=natural) if name.startswith(f"{prefix}/")}
    values = {tuple(name.split("/", 2)[1:]): value for name, value in own.items()}
    rows, columns = (list(dict.fromkeys(key[k] for key in values)) for k in (0, 1))
    return rows, columns, [[values.get((row, column), 0.0) for column in columns] for row in rows]


def _of_runs(folder: Path) -> dict[str, Any]:
    """Return what the files of a run, or of a study's runs, say: failures, and the whole configuration of the first."""
    runs = [folder] if (folder / "config.yaml").exists() else sorted(path.parent for path in folder.glob("runs/*/config.yaml"))
    if not runs:
        return {"failures": None}
    failed: list[Iterable[str]] = []
    for run in runs:
        head, *lines = read_rows(run / "failures.csv")
        own = [run.name] if len(runs) > 1 else []
        failed += [*([[*(["run"] if own else []), *head]] if lines and not failed else []), *([*own, *line] for line in lines)]
    what = f"{runs[0].name}/config.yaml, complete; the set-up says what differs" if len(runs) > 1 else "config.yaml, complete"
    text = (runs[0] / "config.yaml").read_text(encoding="utf-8")
    return {"failures": failed[: _MOST_FAILURES + 1], "configuration": (what, text)}
