"""Texts of sites in CSV files are texts for a spreadsheet, too."""

import contextlib
import csv
import io
import re

from command_line import ROOT
from hypothesis import example, given
from hypothesis import strategies as st

from fl_lightning.utilities.csv_file import write_csv, write_rows

texts = st.text(st.sampled_from("=+-@\t\r;,'\" aA1.e\n\uff1d"), max_size=6)


@given(texts)
@example('=HYPERLINK("http://a.example","b")')
@example("a;=1+1")
@example("-2+3+cmd|' /C calc'!A0")
def test_no_cell_begins_like_a_formula(text):
    """Excel and LibreOffice evaluate a cell that begins so, also after a semicolon where it separates cells."""
    file = io.StringIO(newline="")
    write_rows(file, [["site", text]])
    ((_, cell),) = csv.reader(io.StringIO(file.getvalue(), newline=""))
    with contextlib.suppress(ValueError):
        float(cell)
        return
    assert not any(part.startswith(("=", "+", "-", "@", "\r", "\n", "\uff1d")) for part in re.split("[;\t]", cell))


@given(st.floats(allow_nan=False), st.integers(), st.sampled_from(["hospital_a", "a - b", "1;2", "x=1", "-0.5", "+3", ""]))
def test_numbers_and_other_texts_stay(number, count, text):
    file = io.StringIO(newline="")
    write_rows(file, [[number, count, text, f"{number:.6g}"]])
    (row,) = csv.reader(io.StringIO(file.getvalue(), newline=""))
    assert [float(row[0]), int(row[1]), row[2], row[3]] == [number, count, text, f"{number:.6g}"]


def test_written_again_a_row_stays(tmp_path):
    """A resumed run reads its files and writes them anew."""
    path, rows = tmp_path / "new" / "a.csv", [["cause"], ["=1"], ["'=1"]]
    for _ in range(2):
        write_csv(path, rows[0], rows[1:])
        assert path.read_text() == "cause\n'=1\n'=1\n"
        rows = list(csv.reader(path.read_text().splitlines()))


def test_every_file_is_written_here():
    files = (ROOT / "fl_lightning").rglob("*.py")
    assert [f.name for f in files if re.search(r"csv\.(Dict)?[wW]riter|to_csv", f.read_text())] == ["csv_file.py"]
