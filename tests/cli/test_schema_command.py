"""``fl-lightning schema``: the proposal fits its table, says where to look, and tells no ranges of patients."""

from __future__ import annotations

import sys
from pathlib import Path

import pandas as pd
import pytest
import torch
from three_hospitals import clean

from fl_lightning import TableDataModule
from fl_lightning.cli import command
from fl_lightning.data.schema_file import parse_schema


@pytest.fixture
def run(capsys, monkeypatch):
    """Run the command line, and return its exit status and its text."""

    def run(*arguments: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["fl-lightning", *arguments])
        try:
            command.main()
            status = 0
        except SystemExit as end:
            status = int(end.code or 0)
        said = capsys.readouterr()
        return status, said.out + said.err

    return run


@pytest.fixture
def own() -> pd.DataFrame:
    frame = clean().drop(columns="hospital")
    frame["patient"] = [f"P{k}" for k in range(len(frame))]
    frame["note"] = "as agreed"
    frame["empty"] = ""
    frame.to_csv("own.csv", index=False, na_rep="NA")
    return frame


def test_the_proposal_fits_its_table(own, run):
    status, text = run("schema", "--from", "own.csv", "--target", "outcome", "--output", "schema.yaml")
    assert status == 0, text
    assert "Edit it, then set it: data.datamodule.schema: schema.yaml" in text
    text = Path("schema.yaml").read_text()
    schema = parse_schema(text)
    assert {one.name: one.type for one in schema.fields} == {
        "age": "number" if "." in str(own["age"][0]) and own["age"][0] % 1 else "integer",
        "height": "number",
        "platelets": "integer",
        "sex": "string",
        "stage": "string",
        "smoker": "boolean",
        "admitted": "date",
        "outcome": "string",
    }
    assert schema.classes == ("dead", "healthy", "relapse")
    assert schema.missing_values == ("", "NA")
    assert all(one.minimum is None and one.maximum is None for one in schema.fields)
    assert "# 'patient' is left out: all its values differ, as those of an identifier." in text
    assert "# 'note' is left out: all its values are equal texts." in text
    assert "# 'empty' is left out: it has no values." in text
    assert text.count("# it has missing values") == 3
    Path("schema.yaml").write_text(text.replace("missing: refuse", "missing: indicator"))
    data = TableDataModule("own.csv", schema="schema.yaml", standardize=False, test_share=0.0)
    with pytest.warns(UserWarning, match="'own.csv' has patient, note, empty"):
        data.setup("fit")
    assert torch.isfinite(data.train_set.tensors[0]).all()
    status, text = run("schema", "--from", "own.csv", "--output", "schema.yaml")
    assert status == 1
    assert "'schema.yaml' already exists and was not changed. Name another file." in text


@pytest.mark.parametrize("gone", ["--ranges", "--without=patient"])
def test_ranges_and_columns_are_for_the_author(gone, run):
    """What a table of patients tells, no proposal contains."""
    assert run("schema", "--from", "own.csv", gone) == (
        2,
        f"fl-lightning schema: error: unrecognized arguments: {gone}. All settings: fl-lightning schema --help.\n",
    )


def test_what_the_author_should_look_at(run):
    rows = [
        f"{k};{k % 3};{'yes' if k % 2 else 'no'};{k},5;{k:02d}.01.2024;{'unknown' if k == 7 else 3 * k};{k % 2}"
        for k in range(1, 29)
    ]
    Path("x.csv").write_text("\n".join(["id;code;no;dose;day;size;class", *rows]))
    status, text = run("schema", "--from", "x.csv", "--target", "class", "--csv", '{separator: ";", decimal: ","}')
    assert status == 0, text
    schema = parse_schema(text)
    assert [one.type for one in schema.fields] == ["integer", "integer", "boolean", "number", "date", "integer", "boolean"]
    assert schema.missing_values == ("", "unknown")
    assert "# all values differ: remove the field if it is an identifier" in text
    assert "# few different values: if it is a category" in text
    assert "# this table: columns: {...: {format: '%d.%m.%Y'}}" in text
    Path("x.csv").write_text("a,class\n1,2\n2,10\n3,1\n")
    status, text = run("schema", "--from", "x.csv", "--target", "class")
    assert parse_schema(text).classes == ("1", "2", "10")
    Path("x.csv").write_text(f"a,class\n1,{2**53 + 1}\n2,{2**53}\n3,01\n4,1.0\n")
    status, text = run("schema", "--from", "x.csv", "--target", "class")
    assert parse_schema(text).classes == ("1", str(2**53), str(2**53 + 1))
    times = pd.to_datetime(["2024-01-31 12:30", None, "2024-02-01 00:15"])
    pd.DataFrame({"seen": times, "a": [1, 2, 3]}).to_parquet("x.parquet")
    status, text = run("schema", "--from", "x.parquet")
    assert [one.type for one in parse_schema(text).fields] == ["date", "integer"]


@pytest.mark.parametrize(
    ("content", "arguments", "message"),
    [
        ("a,b\n1,2\n", ["--target", "c"], "'x.csv' has no column 'c'. Its columns are a, b."),
        ("age,b\n1,2\n", ["--target", "Age"], "'x.csv' has no column 'Age'. Did you mean age?"),
        ("=cmd(),b\n1,2\n", [], "No schema can be proposed for 'x.csv': Field 1, 'name': a spreadsheet would run the name"),
        (
            "a,b\n1,2\n",
            ["--csv", "{encoding: none}"],
            "Cannot read 'x.csv' as a CSV file in NONE (unknown encoding: none). Fix the file, or state its encoding",
        ),
        ("a,b\n1,2\n", ["--csv", "{"], "'--csv' is not YAML"),
        ("a;b\n1;2\n", [], "'x.csv' is one column, 'a;b'. If the file"),
        ("a,b\n1,2\n", ["--from", "y.csv"], "'y.csv' is not a file. Set '--from' to a table."),
        ("a,b\n1,2\n", ["--output", "none/x.yaml"], "Cannot write 'none/x.yaml'"),
        ("a\nx\n", [], "No column of 'x.csv' can be a feature. 'a' is left out: all its values are equal texts."),
    ],
)
def test_what_cannot_be_proposed(content, arguments, message, run):
    Path("x.csv").write_text(content)
    status, text = run("schema", "--from", "x.csv", *arguments)
    assert status == 1
    assert message in " ".join(text.split())
