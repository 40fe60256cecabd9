"""Tables of a report in Markdown and LaTeX."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass


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
        lines = [f"| {' | '.join(map(_cell, self.columns))} |", "|" + "---|" * len(self.columns)]
        for row in self.rows:
            cells = [f"**{_cell(cell)}**" if isinstance(cell, Bold) else _cell(cell) for cell in row]
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
            cells = [rf"\textbf{{{_tex(cell)}}}" if isinstance(cell, Bold) else _tex(cell) for cell in row]
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
