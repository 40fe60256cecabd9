"""The page of a study or a run: one file that opens without a network, with the numbers of the table."""

import json
import re

import pytest
import torch
from study_tables import of_curves, table, typed

from fl_lightning.studies.page import Bold, Table, write_page
from fl_lightning.studies.panels import panels
from fl_lightning.studies.report import shown_of


def page(path) -> tuple[str, dict]:
    text = path.read_text()
    numbers = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.S)
    assert numbers is not None
    return text, json.loads(numbers.group(1))


def written(folder, made, title="S", tables=(), notes=(), **more) -> tuple[str, dict]:
    write_page(folder / "report.html", title, shown_of(made, panels(made)), tables, words=notes, **more)
    return page(folder / "report.html")


def test_the_lines_are_means_over_seeds(tmp_path):
    """FedAvg after 2 rounds: 0.5, 0.4 and 0.6 have mean 0.5 and deviation 0.1."""
    _, numbers = written(tmp_path, table(), first="val_f1_macro")
    assert next(iter(numbers["metrics"])) == "val_f1_macro"
    line = numbers["metrics"]["val_accuracy"][0]
    assert (line["name"], line["x"]) == ("FedAvg, partition: paper", [1, 2, 3, 4])
    assert (line["y"][1], line["s"][1]) == (0.5, 0.1)
    costs = {f"federation/{n}" for n in ("bytes_down", "bytes_up", "seconds")}
    assert numbers["metrics"].keys() == {"val_accuracy", "val_f1_macro", *costs}
    shares = numbers["members"]["clients' shares of the aggregate: FedAvg, partition: paper"]
    assert [(line["name"], line["y"][0]) for line in shares] == [("0", 0.25), ("2", 0.25), ("10", 0.5)]


def test_it_needs_no_network_and_runs_nothing_of_names(tmp_path):
    made = of_curves({"<script>alert(1)</script>": [[0.0, 0.5]]}, axes=("a<b",))
    tables = [("", [Table("A & B", ("x",), ((Bold("</td><b>"),),), "5 < 6")])]
    text, numbers = written(tmp_path, made, "<i>", tables, ["`a<b` is"])
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "")  # the name of SVG, which nothing opens
    assert not re.search(r"\b(src|href|@import|url)\b *[=(]", text)
    assert text.count("<script") == 2  # the numbers and the code
    assert "<td><b>&lt;/td&gt;&lt;b&gt;</b></td>" in text
    assert "<li><code>a&lt;b</code> is</li>" in text
    assert numbers["metrics"]["val_accuracy"][0]["name"] == "<script>alert(1)</script>"


def test_numbers_that_are_not_finite_are_gaps(tmp_path):
    made = of_curves({"A": [[1.0, float("nan"), float("inf")]]}, "val_loss")
    assert written(tmp_path, made)[1]["metrics"]["val_loss"][0]["y"] == [1.0, None, None]


def test_a_study_has_a_page_of_its_own(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    pytest.importorskip("scipy")
    monkeypatch.setattr("fl_lightning.studies.report.draw_all", lambda *_: {})
    table().write(tmp_path / "table.csv")
    status, said = typed("report", tmp_path)
    names = ["report.html", "report.md", "report.tex"]
    files = ", ".join(str(tmp_path / name) for name in names)
    assert (status, said.splitlines()[-1]) == (0, f"Report: {files}, 0 figures as PNG, SVG and PDF")
    assert "does not say how those of" in said  # nothing is known of these runs
    assert sorted(path.name for path in tmp_path.iterdir()) == [*names, "study.json", "table.csv"]
    text, _ = page(tmp_path / "report.html")
    assert "<td>AdaFed</td><td><b>83.00 ± 2.65</b></td>" in text  # 81, 86 and 82
    assert '<tr><th>1</th><td style="background:color-mix(in srgb, #56b4e9 82%, #f7f9fb)">20</td>' in text  # sqrt(20 / 30)


def test_a_study_shows_the_failures_and_a_configuration_of_its_runs(tmp_path):
    for name, lines in (("A,seed=0", ""), ("B,seed=0", "2,north,exception\n")):
        (tmp_path / "runs" / name).mkdir(parents=True)
        (tmp_path / "runs" / name / "config.yaml").write_text(f"name: '<{name}>'\n")
        (tmp_path / "runs" / name / "failures.csv").write_text(f"round,client,kind\n{lines}")
    text, _ = written(tmp_path, table())
    assert "<tr><th>run</th><th>round</th><th>client</th><th>kind</th></tr>" in text
    assert "<tr><td>B,seed=0</td><td>2</td><td>north</td><td>exception</td></tr>" in text
    assert "<summary>A,seed=0/config.yaml, complete; the set-up says what differs</summary>" in text
    assert "<pre>name: &#39;&lt;A,seed=0&gt;&#39;\n</pre>" in text


def test_a_fit_ends_with_its_page(adafed_run, copied_run):
    assert f"Report: {copied_run / 'report.html'}\n" in adafed_run.text
    text, numbers = page(adafed_run.folder / "report.html")
    assert numbers["metrics"]["val_accuracy"][0]["x"] == [1, 2]
    assert "<td>network</td><td>LeNet</td>" in text
    assert f"torch {torch.__version__}" in text
    assert "<summary>config.yaml, complete</summary>" in text
    (copied_run / "report.html").unlink()
    assert typed("report", copied_run) == (0, f"Report: {copied_run / 'report.html'}\n")
    assert page(copied_run / "report.html")[1] == numbers


def test_other_folders_are_refused(tmp_path):
    status, said = typed("report", tmp_path)
    assert (status, "is neither a run, which has a 'config.yaml', nor a study, which has a 'table.csv'" in said) == (1, True)
    (tmp_path / "config.yaml").write_text("{}")
    status, said = typed("report", tmp_path)
    assert (status, "has no logs in 'csv', from which a report is made" in said) == (1, True)
