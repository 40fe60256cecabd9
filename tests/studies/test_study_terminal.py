"""What a study shows on the terminal: how far its runs are, and at the end its curves."""

from __future__ import annotations

import sys
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from fl_lightning.studies.execution import Job
from fl_lightning.studies.panels import Measure, panels
from fl_lightning.studies.run_table import Row, RunTable
from fl_lightning.studies.terminal import LiveStatus, mean_curve, print_curves, text_chart


def row(choice: str, seed: int, round_idx: int, value: float) -> Row:
    return Row(f"{choice}{seed}", (choice,), seed, round_idx, "val_accuracy", value)


def test_two_curves_and_their_last_values(capsys):
    rows = [row(name, seed, r, y + 0.1 * seed) for name, y in (("A", 0.2), ("B", 0.6)) for seed in (0, 1) for r in range(3)]
    table = RunTable(["strategy"], rows)
    print_curves(table, panels(table), Measure())
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "Validation accuracy in percent over rounds, mean of 2 seeds"
    assert lines[1] == "        65 |" + "*" * 60
    assert lines[14] == "        25 |" + "o" * 60
    assert lines[16].split() == ["round", "1", "3"]
    assert lines[17:] == ["  o A  25.00 after 3 rounds", "  * B  65.00 after 3 rounds"]


@given(st.dictionaries(st.integers(0, 40), st.integers(-(10**6), 10**6).map(lambda k: k / 100), min_size=1, max_size=20))
def test_every_round_of_a_curve_is_drawn_within_its_frame(curve):
    text = text_chart({"one": curve}, Measure("loss", higher=False, percent=False), 1)
    if max(curve) == 0:
        assert text == ""
        return
    frame = [line[12:] for line in text.splitlines()[1:15]]
    assert all(len(line) <= 60 for line in frame)
    columns = {k for line in frame for k, mark in enumerate(line) if mark == "o"}
    first, last = min(curve), max(curve)
    assert min(columns) <= -(-first * 59 // last) + 1
    assert max(columns) == 59


def test_values_that_are_not_finite_are_left_out():
    rows = [row("A", seed, r, x) for seed, xs in enumerate(((1.0, float("nan"), 3.0), (3.0, 1.0))) for r, x in enumerate(xs)]
    assert mean_curve(RunTable(["strategy"], rows).curves(("A",), "val_accuracy")) == {0: 2.0}
    assert text_chart({"one": {}}, Measure(), 1) == ""


def test_studies_with_several_panels_have_their_figures(capsys):
    rows = [Row("r", (a, b), 0, r, "val_accuracy", 0.5) for a in "ab" for b in "cd" for r in (0, 1)]
    table = RunTable(["one", "other"], rows)
    print_curves(table, panels(table), Measure())
    assert capsys.readouterr().out == ""


def test_the_live_line_on_a_terminal(tmp_path, capsys, monkeypatch):
    jobs = [Job(name, tmp_path / name, "", ()) for name in ("one", "two")]
    jobs[0].folder.mkdir()
    jobs[0].log.write_text("Seed set to 0\nRound 0/3: val_accuracy 0.1\nRound 1/3: val_accuracy 0.2\nsomething\n")
    LiveStatus().show(jobs)
    assert capsys.readouterr().out == ""  # a file or a pipe
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    status = LiveStatus()
    status.show(jobs)
    status.clear()
    shown = "\r\033[Kone: Round 1/3: val_accuracy 0.2   two: starting"
    assert capsys.readouterr().out == f"{shown[: 3 + 79 + 1]}\r\033[K"
    assert Path(jobs[0].log).exists()
