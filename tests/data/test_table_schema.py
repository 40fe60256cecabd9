"""Tables that a schema describes: unlike exports give equal tensors, and each mistake its message."""

from __future__ import annotations

import csv
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from command_line import QUIET
from hypothesis import given, settings
from hypothesis import strategies as st
from test_other_tasks import bring_data
from three_hospitals import NAMES, SCHEMA, SETTINGS, clean, expected, write_exports

from fl_lightning import ConfigurationError, DataError, DomainPartitioner, FederatedDataModule, TableDataModule
from fl_lightning.errors import VersionError


@pytest.fixture
def schema() -> str:
    Path("schema.yaml").write_text(SCHEMA)
    return "schema.yaml"


def set_up(path: Any, **more: Any) -> TableDataModule:
    data = TableDataModule(path, **{"standardize": False, "test_share": 0.0, **more})
    data.setup("fit")
    return data


def small(*fields: str, target: str = "", more: str = "") -> str:
    """Write a schema of a few fields."""
    lines = [f"  - {{{field}}}" for field in fields]
    Path("small.yaml").write_text("\n".join(["fields:", *lines, f"target: {target}" if target else "", more, ""]))
    return "small.yaml"


AGE = "name: age, type: number, constraints: {minimum: 0, maximum: 120}"
SEX = "name: sex, type: string, constraints: {enum: [male, female]}"
OUTCOME = "name: outcome, type: string, constraints: {enum: [healthy, cancer]}"


# ------------------------------------------------------------------ unlike exports, equal tensors


def test_three_unlike_exports_are_the_clean_table(schema):
    frame = clean()
    paths = write_exports(Path("exports"), frame)
    with pytest.warns(UserWarning, match=r"Columns that the schema does not name are ignored: 'exports/north.csv' has ward\."):
        data = set_up(paths, schema=schema, exports=SETTINGS)
    features, classes = expected(frame)
    assert data.feature_names == data.train_set.feature_names == tuple(features.columns)
    assert data.train_set.classes == ("healthy", "relapse", "dead")
    inputs, targets = data.train_set.tensors
    assert torch.equal(inputs, torch.from_numpy(features.to_numpy(np.float32)))
    assert targets.tolist() == classes.tolist()
    assert data.train_set.domains_names == NAMES
    assert not (targets[data.train_set.domains == 1] == 2).any()  # no one in the south has died
    clean_columns = frame.drop(columns="hospital").assign(height=frame["height"].astype(float))
    clean_columns.to_csv("clean.csv", index=False)
    again = set_up("clean.csv", schema=schema)
    assert all(map(torch.equal, again.train_set.tensors, data.train_set.tensors))


def test_each_client_alone_has_the_same_features_and_classes(schema):
    """What a site reads of its own files is what the simulation reads of them."""
    paths = write_exports(Path("exports"), clean())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        together = set_up(paths, schema=schema, exports=SETTINGS)
        for k, name in enumerate(NAMES):
            alone = set_up(paths[name], schema=schema, **SETTINGS[name])
            mine = together.train_set.domains == k
            assert torch.equal(alone.train_set.tensors[0], together.train_set.tensors[0][mine])
            assert torch.equal(alone.train_set.tensors[1], together.train_set.tensors[1][mine])
            assert alone.train_set.classes == together.train_set.classes
            assert alone.feature_names == together.feature_names


def test_the_servers_set_lacks_a_class(schema):
    frame = clean()
    paths = write_exports(Path("exports"), frame)
    frame[frame["outcome"] != "healthy"].drop(columns="hospital").to_csv("server.csv", index=False)
    data = set_up(paths, schema=schema, exports=SETTINGS, test_path="server.csv", standardize=True)
    federated = FederatedDataModule(data, DomainPartitioner())
    federated.setup("fit")
    loader = data.val_dataloader()
    assert set(torch.cat([labels for _, labels in loader]).tolist()) == {1, 2}
    assert federated.label_counts().shape == (3, 3)
    alone = TableDataModule(None, schema=schema, test_path="server.csv", standardize=False)
    alone.setup("fit")
    assert torch.equal(alone.val_dataloader().tensors[1], loader.tensors[1])


def test_targets_of_all_types():
    Path("x.csv").write_text("a,b\n1,yes\n2,no\n3,TRUE\n")
    data = set_up("x.csv", schema=small("name: a, type: number", "name: b, type: boolean", target="b"))
    assert data.train_set.classes == ("false", "true")
    assert data.train_set.tensors[1].tolist() == [1, 0, 1]
    data = set_up("x.csv", schema=small("name: a, type: integer", "name: b, type: boolean", target="a"), kind="regression")
    assert data.train_set.tensors[1].tolist() == [1.0, 2.0, 3.0]
    assert data.kind == "regression"
    (inputs,) = set_up("x.csv", schema=small("name: a, type: integer", "name: b, type: boolean")).train_set.tensors
    assert inputs.tolist() == [[1, 1], [2, 0], [3, 1]]
    data = set_up(
        "x.csv", schema=small("name: b, type: boolean", "name: a, type: integer, constraints: {enum: [3, 2, 1]}", target="a")
    )
    assert data.train_set.tensors[1].tolist() == [2, 1, 0]


def test_categories_that_pandas_writes_as_floats():
    """A column of whole numbers with a gap becomes one of floats in most exports."""
    Path("x.csv").write_text("code,n\n1.0,1\n2.0,1\n,1\n01,1\n")
    data = set_up(
        "x.csv",
        schema=small("name: code, type: string, constraints: {enum: [1, 2]}, missing: indicator", "name: n, type: number"),
    )
    assert data.train_set.tensors[0][:, :3].tolist() == [[1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 0, 0]]


def test_dates_are_those_of_pandas():
    days = pd.date_range("1899-12-25", "2030-01-01", freq="37D")
    pd.DataFrame({"day": days.strftime("%Y-%m-%d"), "other": days.strftime("%d/%m/%y"), "n": 1}).to_csv("x.csv", index=False)
    data = set_up("x.csv", schema=small("name: day, type: date, since: 2000-02-29", "name: n, type: number"))
    assert data.train_set.tensors[0][:, 0].tolist() == (days - pd.Timestamp("2000-02-29")).days.tolist()
    pd.DataFrame({"day": days, "n": 1}).to_parquet("x.parquet")
    again = set_up("x.parquet", schema="small.yaml")
    assert torch.equal(again.train_set.tensors[0], data.train_set.tensors[0])


@pytest.mark.parametrize("scale", [0.0254, 0.01, 1 / 88.4, 18.018, -0.5, 3])
def test_a_unit_is_converted_by_its_factor(scale):
    """To float32, as the model gets it."""
    cells = [60.0, 70.5, 0.1, 12345.678]
    Path("x.csv").write_text("a\n" + "\n".join(map(repr, cells)) + "\n")
    data = set_up("x.csv", schema=small("name: a, type: number"), columns={"a": {"scale": scale, "offset": 0.25}})
    expected = [np.float32(cell * scale + 0.25) for cell in cells]
    assert data.train_set.tensors[0][:, 0].tolist() == pytest.approx(expected, rel=1e-7)


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
@pytest.mark.parametrize("zone", [None, "Asia/Tokyo"])
@pytest.mark.parametrize("columns", [{}, {"day": {"format": "%d.%m.%Y"}}])
def test_timestamps_of_parquet_are_dates_as_they_are(unit, zone, columns):
    """The day is that of the column's own time zone, whatever the form of dates in texts."""
    times = pd.date_range("1969-12-25 00:30:15", "2030-01-01", freq="1001h").tz_localize(zone).as_unit(unit)
    pd.DataFrame({"day": times, "n": 1}).to_parquet("x.parquet")
    schema = small("name: day, type: date, since: 2000-02-29, missing: {constant: 2000-03-01}", "name: n, type: number")
    data = set_up("x.parquet", schema=schema, columns=columns)
    days = times.tz_localize(None).normalize()
    assert data.train_set.tensors[0][:, 0].tolist() == (days - pd.Timestamp("2000-02-29")).days.tolist()
    assert not [text for text in data.compare_with_schema() if "not a date" in text]
    frame = pd.DataFrame({"day": [times[0], None], "n": 1})
    frame.assign(day=frame["day"].dt.date).to_parquet("x.parquet")  # a column of the type date
    again = set_up("x.parquet", schema=schema, columns=columns)
    assert again.train_set.tensors[0][:, 0].tolist() == [data.train_set.tensors[0][0, 0], 1]


@pytest.mark.parametrize(
    ("missing", "row"),
    [
        ("{constant: 40}", [40.0]),
        ("indicator", [0.0, 1.0]),
        ("{indicator: 40}", [40.0, 1.0]),
    ],
)
def test_what_a_missing_number_becomes(missing, row):
    Path("x.csv").write_text("age,n\n30,1\n-9,1\n NA ,1\n")
    schema = small(
        f"name: age, type: number, missing: {missing}", "name: n, type: number", more='missingValues: ["", NA, "-9"]'
    )
    data = set_up("x.csv", schema=schema)
    assert data.train_set.tensors[0][1:].tolist() == [[*row, 1.0]] * 2
    assert data.train_set.tensors[0][0].tolist() == [30.0, *([0.0] if len(row) > 1 else []), 1.0]


def test_missing_categories_and_markers_of_one_file():
    Path("x.csv").write_text("sex,yes,n\nmale,no,1\n?,x,1\n")
    both = small(
        f"{SEX}, missing: {{constant: female}}", "name: yes, type: boolean, missing: {constant: true}", "name: n, type: number"
    )
    data = set_up("x.csv", schema=both, columns={"yes": {"missing": ["x"]}}, csv={"missing": ["?"]})
    assert data.train_set.tensors[0].tolist() == [[1, 0, 0, 1], [0, 1, 1, 1]]


# ------------------------------------------------------------------ forms of files


@pytest.mark.parametrize(
    ("content", "csv"),
    [
        ("age;n\n1,5;2\n2,25;3\n", {}),
        ("age\tn\n1,5\t2\n2,25\t3\n", {}),
        ("age|n\n1.5|2\n2.25|3\n", {}),
        ('age,n\n"1,5",2\n"2,25",3\n', {}),
        ("age,n\r1.5,2\r2.25,3\r", {}),
        ("'age','n'\r\n'1.5','2'\r\n\r\n'2.25','3'\r\n", {"quote": "'"}),
        ("\ufeffage,n\n+1.5,2\n2.25,+3\n", {}),
        ("age;n\n1,500;2\n2,250;3\n", {"decimal": ","}),
        ("age/n\n1.5/2\n2.25/3\n", {"separator": "/"}),
    ],
)
def test_forms_of_csv(content, csv):
    for encoding in (None, "utf-16", "cp1252"):
        if encoding == "cp1252" and "\ufeff" in content:
            continue
        own = csv | ({"encoding": encoding} if encoding == "cp1252" else {})
        Path("x.csv").write_bytes(content.encode(encoding or "utf-8"))
        data = set_up("x.csv", target=None, csv=own)
        assert data.train_set.tensors[0].tolist() == [[1.5, 2], [2.25, 3]]
        assert set_up("x.csv", target="n", csv=own).train_set.tensors[1].tolist() == [2, 3]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            "a;b,c;d\n1;2,3;4\n",
            "'x.csv' may be separated by commas or semicolons. Set the one that it is, such as 'data.datamodule.csv",
        ),
        ("a;b\n1,500;2\n2,250;3\n", "x.csv, line 2: the column 'a' holds '1,500', which may be a decimal comma, or separate"),
        ("a;b\n1;2\n2,25;3.5\n", "x.csv, line 3: the column 'a' holds '2,25', while other cells have decimal points"),
        ("a;b\n1,234.5;2\n", "x.csv, line 2: the column 'a' holds '1,234.5', which is not a number"),
    ],
)
def test_what_is_ambiguous_is_said(content, message):
    Path("x.csv").write_text(content)
    with pytest.raises(DataError) as caught:
        set_up("x.csv", target=None)
    assert message in str(caught.value)


def test_the_line_of_a_cell_in_a_file_with_lines_in_quotes():
    Path("x.csv").write_text('a,b\n1,"two\nlines"\n\n2,x\nbad,y\n')
    with pytest.raises(DataError, match=r"x.csv, line 6: the column 'a' holds 'bad', which is not a number"):
        set_up("x.csv", target="b", kind="classification")


def test_tables_of_parquet_without_a_schema():
    frame = pd.DataFrame(
        {"a": np.array([1, 2], np.int8), "b": np.array([0.1, 2.5], np.float32), "site": ["n", "s"], "y": [1.0, 2.0]}
    )
    frame.to_parquet("x.parquet")
    data = set_up("x.parquet", target="y", client_column="site")
    assert data.feature_names == ("a", "b")
    assert torch.equal(data.train_set.tensors[0], torch.tensor([[1, 0.1], [2, 2.5]]))
    frame.assign(b=[None, 1.0]).to_parquet("x.parquet")
    with pytest.raises(DataError, match=r"x.parquet, row 1: the column 'b' is empty. Write a number"):
        set_up("x.parquet", target="y", client_column="site")
    Path("y.parquet").write_bytes(b"PAR1")
    with pytest.raises(DataError, match=r"Cannot read 'y.parquet' as a Parquet file"):
        set_up("y.parquet")
    frame.assign(b=[[1], [2]]).to_parquet("x.parquet")
    with pytest.raises(DataError, match=r"x.parquet.* column 'b'"):
        set_up("x.parquet", target="y", client_column="site")


def test_without_pyarrow_the_message_names_the_extra(monkeypatch):
    Path("x.csv").write_text("a,b\n1,2\n")
    monkeypatch.setitem(sys.modules, "pyarrow.csv", None)
    with pytest.raises(VersionError, match=r"pip install 'fl_lightning\[tables\]'"):
        set_up("x.csv", target="b")


# ------------------------------------------------------------------ the comparison with the schema


@pytest.mark.parametrize(
    ("low", "high", "wrong"),
    [(40, 600, [4.1, 5.2, 9.8]), (20, 400, [1.9, 3.4]), (0.1, 20, [62.0, 88.4, 115.0])],
    ids=["glucose", "LDL", "creatinine"],
)
def test_another_unit_is_asked_about_without_a_factor(low, high, wrong):
    """In mmol/l or micromol/l instead of mg/dl: the factors are 18.018, 38.67 and 1 / 88.4, which no range tells."""
    field = f"name: lab, type: number, unit: mg/dl, constraints: {{minimum: {low}, maximum: {high}}}"
    Path("x.csv").write_text("lab\n" + "\n".join(map(str, wrong)) + "\n")
    said = TableDataModule("x.csv", schema=small(field)).compare_with_schema()[-1]
    count = f"{len(wrong)} of {len(wrong)} values are out of range (at least {low:g} mg/dl and at most {high:g} mg/dl)."
    assert said == f"'x.csv': 'lab': {count} Is it another unit? Then set 'scale' of 'lab' to the factor from one to the other."
    Path("x.csv").write_text(f"lab\n{wrong[0]}\n" + 2 * f"{low}\n")
    assert "unit?" not in TableDataModule("x.csv", schema="small.yaml").compare_with_schema()[-1]


# ------------------------------------------------------------------ mistakes, each with its message


@pytest.mark.parametrize(
    ("rows", "settings", "message"),
    [
        (
            "years,sex,outcome\n1,male,healthy\n",
            {},
            "'x.csv' lacks columns of the schema: 'age'. Its columns are years, sex, outcome. Add the column, or name the one "
            "that holds it: 'data.datamodule.columns: {FIELD: {from: COLUMN}}'.",
        ),
        ("Age,sex,outcome\n1,male,healthy\n", {}, "'age'. Did you mean Age? Its columns are"),
        ("age,sex,outcome\n1,male,healthy\n", {"columns": {"age": {"from": "alter"}}}, "'alter' for 'age'."),
        (
            "age,sex,outcome\n1,male,healthy\n2,male,ill\n",
            {},
            "x.csv, line 3: the column 'outcome' holds 'ill', which is no category of 'outcome' in the schema (healthy, "
            "cancer). Correct the cell, translate it with 'data.datamodule.columns: {outcome: {values: {'ill': ...}}}', or add "
            "it to the schema of all.",
        ),
        ("age,sex,outcome\n1,m,healthy\n", {}, "x.csv, line 2: the column 'sex' holds 'm', which is no category of 'sex'"),
        (
            "age,sex,outcome\n1,male,healthy\n150,male,cancer\n",
            {},
            "x.csv, line 3: the column 'age' holds '150' but 'age' is at most 120 in the schema. Correct the cell, "
            "convert the unit with 'data.datamodule.columns: {age: {scale: ...}}', or change the schema of all.",
        ),
        (
            "alter,sex,outcome\n-12,male,healthy\n",
            {"columns": {"age": {"from": "alter", "scale": 0.5}}},
            "the column 'alter' holds '-12', -6 after conversion, but 'age' is at least 0 in the schema",
        ),
        (
            "age,sex,outcome\n,male,healthy\n",
            {},
            "x.csv, line 2: the column 'age' is empty. Fill it, or remove the row; or set 'missing' of 'age' in the schema of "
            "all.",
        ),
        ("age,sex,outcome\n1,male,\n", {}, "x.csv, line 2: the column 'outcome' is empty. Fill it, or remove the row."),
        (
            "age,sex,outcome\n1,unknown,healthy\n",
            {"csv": {"missing": ["unknown"]}},
            "the column 'sex' holds 'unknown', which stands for a missing value. Fill it, or remove the row; or set 'missing'",
        ),
        ("age,sex,outcome\nold,male,healthy\n", {}, "x.csv, line 2: the column 'age' holds 'old', which is not a number"),
    ],
)
def test_mistakes_in_files(rows, settings, message):
    Path("x.csv").write_text(rows)
    with pytest.raises(DataError) as caught:
        set_up("x.csv", schema=small(AGE, SEX, OUTCOME, target="outcome"), **settings)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("field", "cell", "message"),
    [
        ("name: a, type: integer", "1.5", "the column 'a' holds '1.5' but 'a' is a whole number in the schema"),
        ("name: a, type: boolean", "maybe", "holds 'maybe', which is neither true nor false, yes nor no, 1 nor 0"),
        (
            "name: a, type: date, since: 2000-01-01",
            "31.12.2020",
            "which is not a date of the form %Y-%m-%d. Correct the cell, or say how dates are written: "
            "'data.datamodule.columns: {a: {format: '%d.%m.%Y'}}'.",
        ),
        (
            "name: a, type: date, since: 2000-01-01, constraints: {maximum: 2001-01-01}",
            "2002-01-01",
            "holds '2002-01-01' but 'a' is at most 2001-01-01 in the schema. Correct the cell, or change the schema of all.",
        ),
        ("name: a, type: number", "1e39", "the column 'a' holds '1e39', which is not a finite number"),
        (
            "name: a, type: number, unit: kg, constraints: {minimum: 2}",
            "1",
            "holds '1' but 'a' is at least 2 kg in the schema",
        ),
    ],
)
def test_cells_that_do_not_fit_their_type(field, cell, message):
    Path("x.csv").write_text(f"a,n\n{cell},1\n")
    with pytest.raises(DataError) as caught:
        set_up("x.csv", schema=small(field, "name: n, type: number"))
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"target": "age"}, "'data.datamodule.target' is 'age', but the schema says 'outcome'. Remove 'target'"),
        ({"kind": "ranking"}, "'data.datamodule.kind' is 'ranking', but the schema says 'classification'"),
        ({"classes": ["a", "b"]}, "'data.datamodule.classes' must be left out with a 'schema'"),
        ({"client_column": "sex"}, "'data.datamodule.client_column' must be a column that is not a field of the schema"),
        ({"columns": {"agee": {}}}, "'data.datamodule.columns' has no 'agee'. It has age, sex, outcome. Did you mean age?"),
        ({"columns": {"age": {"form": "x"}}}, "'data.datamodule.columns.age' has no 'form'. It has from, scale,"),
        ({"columns": {"age": {"scale": 0}}}, "'data.datamodule.columns.age.scale' must be a number other than 0, but is 0"),
        ({"columns": {"age": {"format": "%Z"}}}, "'data.datamodule.columns.age.format' must be a date's form"),
        (
            {"columns": {"sex": {"values": {True: "male"}}}},
            "'data.datamodule.columns.sex.values' has True, which YAML does not",
        ),
        (
            {"csv": {"missing": [-9.9]}},
            "'data.datamodule.csv.missing' has -9.9, which YAML does not read as a text. Put quotes",
        ),
        ({"columns": {"age": "alter"}}, "'data.datamodule.columns.age' must be a mapping, but is 'alter'"),
        ({"csv": {"separator": "::"}}, "'data.datamodule.csv.separator' must be one character"),
        ({"csv": {"decimal": ";"}}, "'data.datamodule.csv.decimal' must be '.' or ','"),
        ({"csv": {"encoding": "base64"}}, "'data.datamodule.csv.encoding' must be an encoding such as cp1252"),
        ({"csv": {"missing": "NA"}}, "'data.datamodule.csv.missing' must be a list of cells"),
        ({"exports": {"a": {"colums": {}}}}, "'data.datamodule.exports.a' has no 'colums'. It has csv, columns. Did you mean"),
        ({"exports": {"a": {"columns": {"x": {}}}}}, "'data.datamodule.exports.a.columns' has no 'x'. It has age"),
    ],
)
def test_settings_of_schemas(settings, message):
    with pytest.raises(ConfigurationError) as caught:
        TableDataModule("x.csv", schema=small(AGE, SEX, OUTCOME, target="outcome"), **settings)
    assert message in str(caught.value)


def test_settings_that_need_a_schema_or_a_client():
    with pytest.raises(ConfigurationError, match=r"'data.datamodule.columns' needs 'data.datamodule.schema'"):
        TableDataModule("x.csv", columns={"age": {"from": "alter"}})
    Path("c").mkdir()
    for name in ("ann", "bob"):
        Path(f"c/{name}.csv").write_text("a,target\n1,2\n")
    with pytest.raises(ConfigurationError, match=r"names the client 'anne', who has no file in 'data.datamodule.path'. Did"):
        set_up("c", exports={"anne": {}})
    Path("c/ann.parquet").write_bytes(b"")
    with pytest.raises(DataError, match=r"The folder 'c' has several tables named 'ann'. Give every client one file"):
        set_up("c")


def test_a_formula_in_a_cell_is_text_in_a_message():
    Path("x.csv").write_text('age,sex,outcome\n1,"=cmd()\x1b[2J",healthy\n')
    with pytest.raises(DataError) as caught:
        set_up("x.csv", schema=small(AGE, SEX, OUTCOME, target="outcome"))
    assert "\x1b" not in str(caught.value)


def test_categories_in_another_order_are_columns_in_another_order(schema):
    """And the schema's digest differs, which sites compare."""
    Path("x.csv").write_text("sex,n\nmale,1\nfemale,2\n")
    one = set_up("x.csv", schema=small(SEX, "name: n, type: number"))
    other = set_up(
        "x.csv", schema=small("name: sex, type: string, constraints: {enum: [female, male]}", "name: n, type: number")
    )
    assert one.feature_names == ("sex=male", "sex=female", "n")
    assert torch.equal(one.train_set.tensors[0], other.train_set.tensors[0][:, [1, 0, 2]])
    assert one.schema.digest() != other.schema.digest()


@given(
    rows=st.lists(st.tuples(st.integers(-999, 999), st.floats(-1e6, 1e6), st.sampled_from(["male", "female", ""])), min_size=1),
    separator=st.sampled_from([",", ";", "\t", "|"]),
    decimal=st.sampled_from([".", ","]),
    quoting=st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]),
    end=st.sampled_from(["\n", "\r\n"]),
    encoding=st.sampled_from(["utf-8", "utf-8-sig", "utf-16", "cp1252"]),
    order=st.permutations(["n", "größe", "sex"]),
)
@settings(max_examples=120, deadline=None)
def test_a_table_survives_every_form_of_csv(rows, separator, decimal, quoting, end, encoding, order):
    values = [{"n": str(n), "größe": repr(x).replace(".", decimal), "sex": sex} for n, x, sex in rows]
    with open("x.csv", "w", newline="", encoding=encoding) as file:
        writer = csv.writer(file, delimiter=separator, quoting=quoting, lineterminator=end)
        writer.writerows([order, *([row[name] for name in order] for row in values)])
    schema = small("name: größe, type: number", f"{SEX}, missing: indicator", "name: n, type: integer")
    form = {"separator": separator, "decimal": decimal} | ({} if encoding.startswith("utf") else {"encoding": encoding})
    inputs = set_up("x.csv", schema=schema, csv=form).train_set.tensors[0]
    expected = [[x, sex == "male", sex == "female", sex == "", n] for n, x, sex in rows]
    assert torch.equal(inputs, torch.tensor(expected, dtype=torch.float64).float())


def test_a_resumed_run_has_the_same_schema(fl):
    bring_data("hospital_tables")
    arguments = ["fit", "--config", "hospital_tables", *QUIET, "--trainer.logger=false"]
    assert fl(*arguments, "--trainer.max_epochs=1")[0] == 0
    text = Path("data/schema.yaml").read_text()
    Path("data/schema.yaml").write_text(text.replace("[female, male, diverse]", "[male, female, diverse]"))
    status, said = fl(*arguments, "--trainer.max_epochs=2", "--ckpt_path=last")
    assert status == 1
    assert "written with 'data.datamodule.schema.fields.2.enum.0' 'female', but this run has 'male'" in " ".join(said.split())
    Path("data/schema.yaml").write_text(f"title: the same\n{text}")
    assert fl(*arguments, "--trainer.max_epochs=2", "--ckpt_path=last")[0] == 0
