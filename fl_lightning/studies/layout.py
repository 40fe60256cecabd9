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
