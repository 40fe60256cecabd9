"""Tables that a schema describes: unlike exports give equal tensors, and each mistake its message."""

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import small_tables
import torch
from command_line import QUIET
from federations import ready
from hypothesis import given
from hypothesis import strategies as st
from small_tables import SEX, bring_data, small, write
from three_hospitals import NAMES, SCHEMA, SETTINGS, clean, expected, write_exports

from fl_lightning import FederatedDataModule, TableDataModule


def set_up(path: Any, **more: Any) -> TableDataModule:
    return small_tables.set_up(path, **{"standardize": False, "test_share": 0.0, **more})


# ------------------------------------------------------------------ unlike exports, equal tensors


def test_three_unlike_exports_are_the_clean_table():
    """Each as a client of its own: the same features, classes and rows."""
    frame, schema = clean(), write("schema.yaml", SCHEMA)
    paths, own = write_exports(Path("exports"), frame), {"schema": schema, "standardize": False, "test_share": 0.0}
    with pytest.warns(UserWarning, match=r"Further columns are ignored: 'exports/north.csv' has ward\."):
        data = ready(FederatedDataModule.from_clients({n: TableDataModule(paths[n], **own, **SETTINGS[n]) for n in NAMES}))
    features, classes = expected(frame)
    inputs, targets = data.client_datasets.source.dataset.tensors
    assert torch.equal(inputs, torch.from_numpy(features.to_numpy(np.float32)))
    assert targets.tolist() == classes.tolist()
    assert [data.client_name(k) for k in range(3)] == [*NAMES]
    assert not (targets[data.indices[1]] == 2).any()  # no one in the south has died
    assert data.label_counts().shape == (3, 3)
    clean_columns = frame.drop(columns="hospital").assign(height=frame["height"].astype(float))
    clean_columns.to_csv("clean.csv", index=False)
    again = set_up("clean.csv", schema=schema)
    assert all(map(torch.equal, again.train_set.tensors, (inputs, targets)))
    assert again.feature_names == again.train_set.feature_names == tuple(features.columns)
    for one in (again, *data.datamodule.clients.values()):
        assert (one.train_set.classes, one.feature_names) == (("healthy", "relapse", "dead"), again.feature_names)


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
    schema = small("name: b, type: boolean", "name: a, type: integer, constraints: {enum: [3, 2, 1]}", target="a")
    data = set_up("x.csv", schema=schema)
    assert data.train_set.tensors[1].tolist() == [2, 1, 0]


def test_categories_that_pandas_writes_as_floats():
    """A column of whole numbers with a gap becomes one of floats in most exports."""
    Path("x.csv").write_text("code,n\n1.0,1\n2.0,1\n,1\n01,1\n")
    schema = small("name: code, type: string, constraints: {enum: [1, 2]}, missing: indicator", "name: n, type: number")
    data = set_up("x.csv", schema=schema)
    assert data.train_set.tensors[0][:, :3].tolist() == [[1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 0, 0]]


def test_dates_are_those_of_pandas():
    days = pd.date_range("1899-12-25", "2030-01-01", freq="37D")
    pd.DataFrame({"day": days.strftime("%Y-%m-%d"), "other": days.strftime("%d/%m/%y"), "n": 1}).to_csv("x.csv", index=False)
    data = set_up("x.csv", schema=small("name: day, type: date, since: 2000-02-29", "name: n, type: number"))
    assert data.train_set.tensors[0][:, 0].tolist() == (days - pd.Timestamp("2000-02-29")).days.tolist()


@pytest.mark.parametrize("scale", [0.0254, 1 / 88.4, -0.5, 3])
def test_a_unit_is_converted_by_its_factor(scale):
    """To float32, as the model gets it."""
    cells = [60.0, 70.5, 0.1, 12345.678]
    Path("x.csv").write_text("a\n" + "\n".join(map(repr, cells)) + "\n")
    data = set_up("x.csv", schema=small("name: a, type: number"), columns={"a": {"scale": scale, "offset": 0.25}})
    expected = [np.float32(cell * scale + 0.25) for cell in cells]
    assert data.train_set.tensors[0][:, 0].tolist() == pytest.approx(expected, rel=1e-7)


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
@pytest.mark.parametrize(("zone", "columns"), [(None, {}), ("Asia/Tokyo", {"day": {"format": "%d.%m.%Y"}})])
def test_timestamps_of_parquet_are_dates_as_they_are(unit, zone, columns):
    """The day is that of the column's own time zone, whatever the form of dates in texts."""
    times = pd.date_range("1969-12-25 00:30:15", "2030-01-01", freq="10001h").tz_localize(zone).as_unit(unit)
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
    ("missing", "row"), [("{constant: 40}", [40.0]), ("indicator", [0.0, 1.0]), ("{indicator: 40}", [40.0, 1.0])]
)
def test_what_a_missing_number_becomes(missing, row):
    Path("x.csv").write_text("age,n\n30,1\n-9,1\n NA ,1\n")
    age, markers = f"name: age, type: number, missing: {missing}", 'missingValues: ["", NA, "-9"]'
    schema = small(age, "name: n, type: number", more=markers)
    data = set_up("x.csv", schema=schema)
    assert data.train_set.tensors[0][1:].tolist() == [[*row, 1.0]] * 2
    assert data.train_set.tensors[0][0].tolist() == [30.0, *([0.0] if len(row) > 1 else []), 1.0]


def test_missing_categories_and_markers_of_one_file():
    Path("x.csv").write_text("sex,yes,n\nmale,no,1\n?,x,1\n")
    sex, yes = f"{SEX}, missing: {{constant: female}}", "name: yes, type: boolean, missing: {constant: true}"
    both = small(sex, yes, "name: n, type: number")
    data = set_up("x.csv", schema=both, columns={"yes": {"missing": ["x"]}}, csv={"missing": ["?"]})
    assert data.train_set.tensors[0].tolist() == [[1, 0, 0, 1], [0, 1, 1, 1]]


# ------------------------------------------------------------------ forms of files


@pytest.mark.parametrize(
    ("content", "csv"),
    [
        ('age,n\n"1,5",2\n"2,25",3\n', {"decimal": ","}),
        ("age/n\r+1.5/2\r2.25/+3\r", {"separator": "/"}),
        ("\ufeff'age','n'\r\n'1.5','2'\r\n\r\n'2.25','3'\r\n", {"quote": "'"}),
    ],
)
def test_forms_of_csv(content, csv):
    Path("x.csv").write_text(content, newline="")
    assert set_up("x.csv", target=None, csv=csv).train_set.tensors[0].tolist() == [[1.5, 2], [2.25, 3]]
    assert set_up("x.csv", target="n", csv=csv).train_set.tensors[1].tolist() == [2, 3]


def test_tables_of_parquet_without_a_schema():
    numbers = {"a": np.array([1, 2], np.int8), "b": np.array([0.1, 2.5], np.float32), "c": [True, False], "y": [1.0, 2.0]}
    pd.DataFrame({**numbers, "site": ["n", "s"]}).to_parquet("x.parquet")
    data = set_up("x.parquet", target="y", client_column="site")
    assert data.feature_names == ("a", "b", "c")
    assert torch.equal(data.train_set.tensors[0], torch.tensor([[1, 0.1, 1], [2, 2.5, 0]]))


# ------------------------------------------------------------------ the comparison with the schema


def test_values_out_of_range_are_counted_and_another_unit_is_asked_about():
    """In mmol/l instead of mg/dl, a factor of 18.018, which no range tells."""
    schema = small("name: lab, type: number, unit: mg/dl, constraints: {minimum: 40, maximum: 600}", "name: n, type: number")
    write("x.csv", "lab,n", "4.1,1", "700,1", "50,x", "9.8,1")
    size, low, high, text = TableDataModule("x.csv", schema=schema).compare_with_schema()
    fix = "Correct the cell, or change the schema of all. Is it another unit? Then set its factor: 'data.datamodule.columns:"
    assert size == "'x.csv' has 4 rows."
    where = "x.csv, line 2: the column 'lab' holds '4.1' but 'lab' is at least 40 mg/dl in the schema, in 2 of 4 rows."
    assert low == f"{where} {fix} {{lab: {{scale: ...}}}}'."
    assert high.startswith("x.csv, line 3: the column 'lab' holds '700' but 'lab' is at most 600 mg/dl in the schema. Correct")
    assert text.startswith("x.csv, line 4: the column 'n' holds 'x', which is not a number")


@given(
    rows=st.lists(st.tuples(st.integers(-999, 999), st.floats(-1e6, 1e6), st.sampled_from(["male", "female", ""])), min_size=1),
    separator=st.sampled_from([",", ";", "\t", "|"]),
    decimal=st.sampled_from([".", ","]),
    quoting=st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]),
    end=st.sampled_from(["\n", "\r\n"]),
    encoding=st.sampled_from(["utf-8", "utf-8-sig", "utf-16", "cp1252"]),
    order=st.permutations(["n", "größe", "sex"]),
)
def test_a_table_survives_every_form_of_csv(rows, separator, decimal, quoting, end, encoding, order):
    values = [{"n": str(n), "größe": repr(x).replace(".", decimal), "sex": sex} for n, x, sex in rows]
    with open("x.csv", "w", newline="", encoding=encoding) as file:
        writer = csv.writer(file, delimiter=separator, quoting=quoting, lineterminator=end)
        writer.writerows([order, *([row[name] for name in order] for row in values)])
    schema = small("name: größe, type: number", f"{SEX}, missing: indicator", "name: n, type: integer")
    form = {"separator": separator, "decimal": decimal} | ({} if encoding.startswith("utf-8") else {"encoding": encoding})
    inputs = set_up("x.csv", schema=schema, csv=form).train_set.tensors[0]
    expected = [[x, sex == "male", sex == "female", sex == "", n] for n, x, sex in rows]
    assert torch.equal(inputs, torch.tensor(expected, dtype=torch.float64).float())


@pytest.mark.slow
def test_a_resumed_run_has_the_same_schema(fl):
    bring_data("hospital_tables")
    arguments = ["fit", "--config", "hospital_tables", *QUIET, "--trainer.logger=false"]
    assert fl(*arguments, "--trainer.max_epochs=1")[0] == 0
    text = Path("data/schema.yaml").read_text()
    write("data/schema.yaml", text.replace("[male, female, diverse]", "[female, male, diverse]"))
    status, said = fl(*arguments, "--trainer.max_epochs=2", "--ckpt_path=last")
    assert status == 1
    assert "written with 'data.datamodule.schema.fields.3.enum.0' 'male', but this run has 'female'" in " ".join(said.split())
    write("data/schema.yaml", f"description: the same\n{text}")
    assert fl(*arguments, "--trainer.max_epochs=2", "--ckpt_path=last")[0] == 0
