"""``fl-lightning schema``: the proposal fits its table, says where to look, and tells no ranges of patients."""

from pathlib import Path

import pandas as pd
import pytest
import torch
from three_hospitals import clean

from fl_lightning import TableDataModule
from fl_lightning.data.schema_file import parse_schema


@pytest.fixture
def proposed(typed):
    """Return a function that types the command, and returns what it prints; it must succeed."""

    def run(*arguments: str) -> str:
        status, said = typed("schema", *arguments)
        assert status == 0, said
        return said

    return run


@pytest.fixture
def own() -> pd.DataFrame:
    frame = clean().drop(columns="hospital")
    frame["patient"] = [f"P{k}" for k in range(len(frame))]
    frame["note"] = "as agreed"
    frame["empty"] = ""
    frame.to_csv("own.csv", index=False, na_rep="NA")
    return frame


def test_the_proposal_fits_its_table(own, proposed):
    text = proposed("--from", "own.csv", "--target", "outcome", "--output", "schema.yaml")
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


def test_what_the_author_should_look_at(proposed):
    rows = [
        f"{k};{k % 3};{'yes' if k % 2 else 'no'};{k},5;{k:02d}.01.2024;{'unknown' if k == 7 else 3 * k};{k % 2}"
        for k in range(1, 29)
    ]
    Path("x.csv").write_text("\n".join(["id;code;no;dose;day;size;class", *rows]))
    text = proposed("--from", "x.csv", "--target", "class", "--csv", '{separator: ";", decimal: ","}')
    schema = parse_schema(text)
    assert [one.type for one in schema.fields] == ["integer", "integer", "boolean", "number", "date", "integer", "boolean"]
    assert schema.missing_values == ("", "unknown")
    assert "# all values differ: remove the field if it is an identifier" in text
    assert "# few different values: if it is a category" in text
    assert "# this table: columns: {...: {format: '%d.%m.%Y'}}" in text
    Path("x.csv").write_text("a,class\n1,2\n2,10\n3,1\n")
    text = proposed("--from", "x.csv", "--target", "class")
    assert parse_schema(text).classes == ("1", "2", "10")
    Path("x.csv").write_text(f"a,class\n1,{2**53 + 1}\n2,{2**53}\n3,01\n4,1.0\n")
    text = proposed("--from", "x.csv", "--target", "class")
    assert parse_schema(text).classes == ("1", str(2**53), str(2**53 + 1))
    times = pd.to_datetime(["2024-01-31 12:30", None, "2024-02-01 00:15"])
    pd.DataFrame({"seen": times, "a": [1, 2, 3]}).to_parquet("x.parquet")
    text = proposed("--from", "x.parquet")
    assert [one.type for one in parse_schema(text).fields] == ["date", "integer"]
