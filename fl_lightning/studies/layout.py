"""Tables of a report in Markdown and LaTeX."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fl_lightning.studies.statistics import Sample


@dataclass(frozen=True)
class Cell:
    """Hold a cell of a table."""

    text: str
    bold: bool = False


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
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    note: str = ""

    def markdown(self) -> str:
        """Return the table in Markdown, with the best values in bold."""
        lines = [f"| {' | '.join(map(_cell, self.columns))} |", "|" + "---|" * len(self.columns)]
        for row in self.rows:
            cells = [f"**{_cell(cell.text)}**" if cell.bold else _cell(cell.text) for cell in row]
            lines.append(f"| {' | '.join(cells)} |")
        return "\n".join([f"**{self.title}.** {self.note}".rstrip(), "", *lines, ""])

    def latex(self, what: str = "") -> str:
        """Return the table as a LaTeX ``table`` environment, which needs the package booktabs.

        Args:
            what: subject of the table, for the caption.
        """
        title = f"{self.title} ({what})" if what else self.title
        lines = [r"\begin{table}", r"\centering", rf"\caption{{{_tex(f'{title}. {self.note}'.strip())}}}"]
        lines.append(rf"\label{{tab:{_key(title)}}}")
        lines += [rf"\begin{{tabular}}{{l{'r' * (len(self.columns) - 1)}}}", r"\toprule"]
        lines += [" & ".join(map(_tex, self.columns)) + r" \\", r"\midrule"]
        for row in self.rows:
            cells = [rf"\textbf{{{_tex(cell.text)}}}" if cell.bold else _tex(cell.text) for cell in row]
            lines.append(" & ".join(cells) + r" \\")
        return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", r"\end{table}", ""])


def latex_figure(file: str, what: str) -> str:
    """Return a picture as a LaTeX ``figure`` environment, which needs the package graphicx.

    Args:
        file: name of the PDF file, without suffix.
        what: what the picture shows.
    """
    lines = [r"\begin{figure}", r"\centering", rf"\includegraphics[width=\linewidth]{{{file}.pdf}}"]
    lines += [rf"\caption{{{_tex(what)}.}}", rf"\label{{fig:{_key(file)}}}", r"\end{figure}", ""]
    return "\n".join(lines)


def _key(title: str) -> str:
    """Return a title as a key of a label."""
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")


def _cell(text: str) -> str:
    """Escape text for a Markdown table."""
    return " ".join(text.split()).replace("|", "\\|")


_TEX = {
    "\\": r"\textbackslash ",
    **{sign: f"\\{sign}" for sign in "&%_#${}"},
    "±": r"$\pm$",
    "²": r"$^2$",
    "†": r"\dag{}",
    "‡": r"\ddag{}",
    "≥": r"$\geq$",
    "≤": r"$\leq$",
    **{sign: f"${sign}$" for sign in "<>|"},
    "^": r"\^{}",
    "~": r"\~{}",
}


def _tex(text: str) -> str:
    """Escape text for LaTeX, character by character, so that nothing is escaped twice."""
    return "".join(_TEX.get(sign, sign) for sign in text)


def spread(sample: Sample, scale: float = 1.0, digits: int = 2) -> str:
    """Format the mean and, over several seeds, the standard deviation; a dash if there are no values."""
    if not sample.values:
        return "-"
    text = f"{sample.mean * scale:.{digits}f}"
    return f"{text} ± {sample.std * scale:.{digits}f}" if len(sample.values) > 1 else text


def with_best(
    columns: Sequence[Sequence[Sample]],
    higher: Sequence[bool | None],
    show: Callable[[Sample, int], str],
    compete: Sequence[bool],
) -> list[list[Cell]]:
    """Turn columns of samples into rows of cells, with the best mean of each column in bold (all of them if tied).

    Args:
        columns: samples of each row, by column.
        higher: by column, whether higher is better; None if nothing is.
        show: formats a sample of a column, given by its number.
        compete: by row, whether it may be the best.
    """
    cells: list[list[Cell]] = []
    for number, (column, upwards) in enumerate(zip(columns, higher, strict=True)):
        means = [sample.mean for sample, takes_part in zip(column, compete, strict=True) if takes_part]
        means = [mean for mean in means if not math.isnan(mean)]
        top = None if upwards is None or len(means) < 2 else (max if upwards else min)(means)
        is_best = [takes_part and bool(x.values) and x.mean == top for x, takes_part in zip(column, compete, strict=True)]
        cells.append([Cell(show(sample, number), bold) for sample, bold in zip(column, is_best, strict=True)])
    return [list(row) for row in zip(*cells, strict=True)]


def table_of(
    title: str, first: str, names: Sequence[str], columns: Sequence[str], body: Sequence[Sequence[Cell]], note: str
) -> Table:
    """Return a table with a name at the head of each row."""
    rows = tuple((Cell(name), *cells) for name, cells in zip(names, body, strict=True))
    return Table(title, (first, *columns), rows, note)
