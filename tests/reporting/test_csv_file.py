"""Texts of sites in CSV files are texts for a spreadsheet, too."""

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
    for part in re.split("[;\t]", cell):
        try:
            float(cell)
        except ValueError:
            assert not part.startswith(("=", "+", "-", "@", "\r", "\n", "\uff1d"))


@given(st.floats(allow_nan=False), st.integers(), st.sampled_from(["hospital_a", "a - b", "1;2", "x=1", "-0.5", "+3", ""]))
def test_numbers_and_other_texts_stay(number, count, text):
    file = io.StringIO(newline="")
    write_rows(file, [[number, count, text, f"{number:.6g}"]])
    (row,) = csv.reader(io.StringIO(file.getvalue(), newline=""))
    assert [float(row[0]), int(row[1]), row[2], row[3]] == [number, count, text, f"{number:.6g}"]


def test_written_again_a_row_stays(tmp_path):
    """A resumed run reads its files and writes them anew."""
    write_csv(tmp_path / "new" / "a.csv", ["cause"], [["=1"], ["'=1"]])
    first = (tmp_path / "new" / "a.csv").read_text()
    with (tmp_path / "new" / "a.csv").open(newline="") as file:
        header, *rows = csv.reader(file)
    write_csv(tmp_path / "new" / "a.csv", header, rows)
    assert (tmp_path / "new" / "a.csv").read_text() == first == "cause\n'=1\n'=1\n"


def test_every_file_is_written_here():
    writers = [
        path.name
        for path in (ROOT / "fl_lightning").rglob("*.py")
        if re.search(r"csv\.(Dict)?[wW]riter|to_csv", path.read_text())
    ]
    assert writers == ["csv_file.py"]
