"""Tables and their schemas."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from lightning.pytorch.demos.boring_classes import BoringDataModule
from refusing import Refusal, later, told
from small_tables import AGE, OUTCOME, SEX, set_up, small, write

import fl_lightning as fl
from fl_lightning import DataError
from fl_lightning.data.schema_file import parse_schema, read_schema
from fl_lightning.errors import VersionError
from fl_lightning.flower.wire.pool import FlowerPool

# ------ Tables


@later
def reading(files: str | dict[str, str], path: Any = "x.csv", **settings: Any) -> None:
    """Return a call that writes files, or the text of x.csv, and reads them."""
    for name, text in ({"x.csv": files} if isinstance(files, str) else files).items():
        write(name)
        Path(name).write_bytes(text.encode("latin-1"))
    set_up(path, **settings)


def by_schema(fields: tuple[str, ...], text: str, target: str = "", **settings: Any) -> Callable[[], Any]:
    """Return a call that reads x.csv by a schema of these fields."""
    return lambda: reading(
        text, schema=small(*fields, target=target), **{"standardize": False, "test_share": 0.0, **settings}
    )()


def patient(text: str, **settings: Any) -> Callable[[], Any]:
    return by_schema((AGE, SEX, OUTCOME), text, "outcome", **settings)


@later
def parquet(**columns: Any) -> None:
    pd.DataFrame({"a": [1, 2], "b": [0.1, 2.5], "y": [1.0, 2.0], **columns}).to_parquet("x.parquet")
    set_up("x.parquet", target="y")


def without_pyarrow() -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setitem(sys.modules, "pyarrow.csv", None)
        reading("a,target\n1,2\n")()


def unlike_schemas() -> None:
    made = {}
    for name, most in (("a", 9), ("b", 10)):
        Path(small(f"name: a, type: number, constraints: {{maximum: {most}}}")).rename(f"{name}.yaml")
        made[name] = fl.TableDataModule("x.csv", schema=f"{name}.yaml", standardize=False)
    fl.FederatedDataModule.from_clients(made)


GOOD = "a,b,target\n1,2,3\n4,5,6\n"
CLIENTS = {"c/ann.csv": "a,target\n1,2\n", "c/bob.csv": "a,target\n1,2\n"}
STATE = "If the file has another form, state it, such as 'data.datamodule.csv:"
SEMICOLONS, GERMAN = {"separator": ";"}, '{separator: ";", decimal: ","}'
CLASSES = {"kind": "classification"}
COLUMNS = {f"c/{name}.csv": "age,dose,target\n1,2,3\n" for name in ("ann", "bob", "cy")} | {
    "c/al.csv": "age,target\n1,2\n",
    "c/zoe.csv": "age,dosis,target,weight\n1,2,3,4\n",
}

FILES = [
    *(
        told(reading(text), words)
        for text, words in (
            ("", "'x.csv' is empty. Add a header with column names and at least one row"),
            ("a,b,target\n", "'x.csv' has a header but no rows"),
            ("1,2,3\n4,5,6\n", "'x.csv' begins with numbers (1, 2, 3). Add a header"),
            ("a,a,target\n1,2,3\n", "The header of 'x.csv' names the column 'a' twice"),
            ("a,,target\n1,2,3\n", "The header of 'x.csv' has a column without a name. Give every column"),
            ("a,b\n1,2\n", "'x.csv' has no column 'target'. Its columns are a, b. Set 'data.datamodule.target' to one of them"),
            ("target\n1\n2\n", "'x.csv' has no columns besides target. Add columns of features"),
            ("a,b,target\n1,2,3\n4,5\n", "x.csv, line 3 has 2 cells, but the header has 3. Fix that line"),
            ("a,target\n1,3\n\nfive,6\n", "x.csv, line 4: the column 'a' holds 'five', which is not a ... Write a number"),
            ("a,target\n1,3\n4,?\n", "x.csv, line 3: the column 'target' holds '?', which is not a number"),
            ("a,target\n,3\n", "line 2: the column 'a' is empty. Fill it, or remove the row; or set 'missing'"),
            ("a,target\n1,3\nnan,6\n", "x.csv, line 3: the column 'a' holds 'nan', which is not a number up to 3.4e+38"),
            ("a,target\n1e39,3\n", "line 2: the column 'a' holds '1e39', which is not a number up to 3.4e+38"),
            ("a,target\n1_0,3\n", "line 2: the column 'a' holds '1_0', which is not a number"),
            ("a,target\n1,\xff\n", "Cannot read 'x.csv' as a CSV file in UTF-8 ( ... ). ... Fix the file ... csv: {encoding:"),
            (",".join(f"c{k}" for k in range(30)) + "\n" + ",".join("1" * 30), "Its columns are c0, ..., c19 and 10 more. Set"),
            ("a;b,c;d\n1;2,3;4\n", f"no column 'target'. Its columns are a;b, c;d. {STATE} {GERMAN}'. Set 'data.data"),
            ("a;target\n1,5;2\n", f"The header of 'x.csv' is one column, 'a;target'. {STATE} {GERMAN}'."),
            ("a\ttarget\n1\t2\n", 'is one column, \'a?target\'. ... csv: {separator: "\\t", decimal: ","}\'.'),
            ('a,target\n"1,500",2\n', "holds '1,500', which is not ... without marks of thousands, ... {separator: \",\","),
            ("a,target\n1;5,2\n", f"line 2: the column 'a' holds '1;5', which is not a number ... {STATE} {GERMAN}"),
        )
    ),
    told(reading("a;target\n1;2\n2,25;3.5\n", csv=SEMICOLONS), f"line 3: ... holds '2,25', which is not ... {STATE} {GERMAN}"),
    *(
        told(reading(f"a;target\n{cell};2\n", csv={**SEMICOLONS, "decimal": ","}), f"holds '{cell}', which is not a number")
        for cell in ("1.5", "1.234,5", "1,5,0", "1,5_0")
    ),
    told(reading('a,b\n1,"two\nlines"\n\n2,x\nbad,y\n', target="b", **CLASSES), "x.csv, line 6: the column ... not a number"),
    *(
        told(reading(GOOD, csv={"encoding": name}), "Cannot read 'x.csv' as ... state its encoding")
        for name in ("none", "base64")
    ),
    told(reading("a,target\n1,3\n", csv=SEMICOLONS), 'is one ... \'data.datamodule.csv: {separator: ",", decimal: "."}\'.'),
    told(reading(COLUMNS, "c"), "'c/ann.csv' has dose; 'c/bob.csv' has dose; 'c/cy.csv' ... Give every file the same columns."),
    told(reading(CLIENTS | {"c/bob.csv": "b,target\n1,2\n"}, "c"), "'c/bob.csv' lacks columns: 'a'. Its columns are b,"),
    told(reading("a,b,target\n1,x,3\n2,3,4\n5,y,6\n7,x,8\n"), "line 2: ... holds 'x', ... up to 3.4e+38, in 3 of 4 rows."),
    told(reading({"x.csv": GOOD, "t.csv": "a,bee,target\n1,2,3\n"}, test_path="t.csv"), "'t.csv' lacks columns: 'b'. ... Add"),
    told(parquet(b=[None, 1.0]), "x.parquet, row 1: the column 'b' is empty. Fill it"),
    told(parquet(b=[[1], [2]]), "x.parquet ... column 'b'"),
    told(reading({"y.parquet": "PAR1"}, "y.parquet"), "Cannot read 'y.parquet' as a Parquet file"),
    Refusal(without_pyarrow, "pip install 'fl_lightning[tables]'", VersionError),
    # places
    told(reading({}, "no"), "'no' does not exist. Set 'data.datamodule.path' to a CSV or Parquet file, or"),
    told(reading({"c/notes.txt": ""}, "c"), "The folder 'c' has no CSV or Parquet file. Set 'data"),
    told(reading(GOOD, test_path="no"), "'no' does not exist. Set 'data.datamodule.test_path'"),
    Refusal(reading(CLIENTS, "c", test_path="c/ann.csv"), "'data.datamodule.test_path' must be files that are not in 'path'"),
    Refusal(reading(CLIENTS, "c/ann.csv", test_path="c"), "'data.datamodule.test_path' must be files that are not in 'path'"),
    Refusal(reading(CLIENTS, "c", client_column="a"), "client_column' must be null with a file for each client in 'path', but"),
    Refusal(reading({}, {}), "'data.datamodule.path' must be your table, or null at a server"),
    told(reading(CLIENTS | {"c/ann.parquet": ""}, "c"), "The folder 'c' has several tables named ... every client one file"),
    # clients and classes
    told(reading("a,site,target\n1,n,u\n2,,v\n", client_column="site", **CLASSES), "x.csv, line 3: the ... or remove the row"),
    told(reading(GOOD, client_column="place"), "has no column 'place'. Its columns are a, ... 'data.datamodule.client_column"),
    told(reading("person,a,target\np,1,2\n,3,4\n", person_column="person"), "line 3: the column 'person' is empty"),
    told(
        lambda: (reading(GOOD)(), fl.FederatedDataModule(fl.TableDataModule("x.csv"), fl.DomainPartitioner()).setup("fit")),
        "has no column 'domains' ... Put each client's files ... name a column of clients in a table, or add it, or set",
    ),
    told(reading("a,target\n1,u\n2,\n", **CLASSES), "x.csv, line 3: the column 'target' is empty. Fill it"),
    told(reading("a,target\n1,u\n2,u\n", **CLASSES), "The column 'target' of 'x.csv' has the single ... 'data.datamodule.tar"),
    told(
        reading({"x.csv": "a,target\n1,u\n2,v\n", "z.csv": "a,target\n1,u\n2,w\n"}, test_path="z.csv", **CLASSES),
        "z.csv, line 3: the column 'target' holds 'w', which is not a category of 'target' (u, v). Correct ... .classes'), or",
    ),
    Refusal(
        reading("a,client\n1,x\n2,y\n", target=None, test_share=0.5, client_column="client"),
        "'data.datamodule.test_share' must be 0 if no client has several rows (or persons), or give way to a 'test_path'",
    ),
]

NAMED_IN_YAML = [
    Refusal(lambda build=build, name=name, value=value: build({name: value}), f"'{setting}' has the name {name!r}, which is")
    for setting, build, value, names in (
        ("data.datamodule.path", fl.TableDataModule, "x.csv", (8, False, None, 0.5)),  # YAML's 010, no, null, .5 and 1e3
        ("data.datamodule.root", lambda given: fl.ImageFolderDataModule(given, test_share=0.2), "x", (8,)),
        ("data.clients", lambda given: fl.FederatedDataModule(clients=dict.fromkeys(given, BoringDataModule())), 0, (None,)),
        ("federation.pool.max_examples", lambda given: FlowerPool(max_examples=given), 1, (8,)),
    )
    for name in names
]

CELLS = [
    told(patient("years,sex,outcome\n1,male,healthy\n"), "'x.csv' lacks ... : 'age'. Its columns are years, ... COLUMN}}'."),
    told(patient("Age,sex,outcome\n1,male,healthy\n"), "'age'. Did you mean Age? Its columns are"),
    told(patient("age,sex,outcome\n1,male,healthy\n", columns={"age": {"from": "alter"}}), "'alter' for 'age'."),
    told(patient("age,sex,outcome\n1,male,healthy\n2,male,ill\n"), "line 3: the column 'outcome' holds 'ill', which is not"),
    told(patient('age,sex,outcome\n1,"=cmd()\x1b[2J",healthy\n'), "holds '=cmd()?[2J', which is not a category of 'sex'"),
    told(patient("age,sex,outcome\n1,male,healthy\n150,male,cancer\n"), "holds '150' but 'age' is at most 120 ... {age:"),
    told(
        patient("alter,sex,outcome\n-12,male,healthy\n", columns={"age": {"from": "alter", "scale": 0.5}}),
        "the column 'alter' holds '-12', -6 after conversion, but 'age' is at least 0 in the schema",
    ),
    told(patient("age,sex,outcome\n,male,healthy\n"), "x.csv, line 2: the column 'age' is ... of 'age' in the schema of all"),
    told(patient("age,sex,outcome\n1,male,\n"), "x.csv, line 2: the column 'outcome' is empty. Fill it, or remove the row."),
    told(patient("age,sex,outcome\n1,unknown,healthy\n", csv={"missing": ["unknown"]}), "'sex' holds 'unknown', which stands"),
    *(
        told(by_schema((field, "name: n, type: number"), f"a,n\n{cell},1\n"), words)
        for field, cell, words in (
            ("name: a, type: integer", "1.5", "the column 'a' holds '1.5' but 'a' is a whole number in the schema"),
            ("name: a, type: boolean", "maybe", "holds 'maybe', which is not true or false, yes ... Correct the cell, or tr"),
            ("name: a, type: date, since: 2000-01-01", "31.12.2020", "which is not a date of the ... {format: '%d.%m.%Y'}}'."),
            (
                "name: a, type: date, since: 2000-01-01, constraints: {maximum: 2001-01-01}",
                "2002-01-01",
                "holds '2002-01-01' but 'a' is at most 2001-01-01 in the schema. Correct the cell, or change the",
            ),
            ("name: a, type: number, unit: kg, constraints: {minimum: 2}", "1", "'1' but 'a' is at least 2 kg in the schema"),
        )
    ),
]

SETTINGS = [
    Refusal(lambda: fl.TableDataModule("x.csv", None, kind="classification"), "kind' must be left out without a 'target'"),
    *(
        Refusal(patient("", **wrong), f"'data.datamodule.{words}")
        for wrong, words in (
            ({"kind": "ranking"}, "kind' must be left out, or 'classification' as in the schema, but is 'ranking'"),
            ({"classes": ["a", "b"]}, "classes' must be left out, or ['healthy', 'cancer'] as in the schema"),
            ({"client_column": "sex"}, "client_column' must be a column that is no target, field of the schema or client"),
            ({"columns": {"age": {"scale": 0}}}, "columns.age.scale' must be a finite number; as a scale, other than 0, but"),
            ({"columns": {"age": {"offset": True}}}, "columns.age.offset' must be a finite number"),
            ({"columns": {"age": {"format": "%Z"}}}, "columns.age.format' must be a date's form"),
            ({"columns": {"sex": {"values": {True: "male"}}}}, "columns.sex.values' has True, which YAML does not"),
            ({"csv": {"missing": [-9.9]}}, "csv.missing' has -9.9, which YAML does not read as a text. Put quotes"),
            ({"csv": {"separator": "::"}}, "csv.separator' must be one character"),
            ({"csv": {"quote": "ä"}}, "csv.quote' must be one character"),
            ({"csv": {"decimal": ";"}}, "csv.decimal' must be '.' or ','"),
            ({"csv": {"encoding": 1252}}, "csv.encoding' must be an encoding such as cp1252"),
            ({"csv": {"missing": "NA"}}, "csv.missing' must be a list of cells"),
        )
    ),
    *(
        told(patient("", **wrong), f"'data.datamodule.{words}")
        for wrong, words in (
            ({"columns": {"agee": {}}}, "columns': the key 'agee' ... Use one of: age, sex, outcome. Did you mean age?"),
            ({"columns": {"age": {"form": "x"}}}, "columns.age': the key 'form' is not supported. Use one of: from, scale,"),
        )
    ),
    Refusal(patient("", columns={"age": "alter"}), "'columns' must be a dictionary or None, but is"),
    Refusal(by_schema(("name: age, type: number, missing: mean",), "", standardize=True), "'data.datamodule.standardize' must"),
    Refusal(unlike_schemas, "'schema' is '5ef5c41924b4a867' for 'a', but '064acb109df0dc98' for 'b'"),
    Refusal(lambda: fl.TableDataModule("x.csv", exports={}), "'exports' is now a TableDataModule for each client, in 'data"),
]


# ------ Files of a schema that cannot be used, also hostile ones


FIELD = "fields:\n- {name: a, type: number}\n"


def one(rest: str) -> str:
    """Return a schema of a field with this type and more."""
    return f"fields:\n- {{name: a, type: {rest}}}"


YAML = [
    # size and depth
    ("x" * (2**20 + 1), "It is larger than 1 MiB"),
    ("[" * 100_000, "It is not valid YAML (maximum recursion depth exceeded"),
    (FIELD + f"title: {'[' * 20}{']' * 20}", "The schema: 'title' is not a text."),
    (
        "fields:\n- {name: a, type: string, constraints: {enum: [" + ",".join(map(str, range(100_001))) + "]}}",
        "Its fields become 100001 features, but at most 100000 are supported",
    ),
    (f"fields:\n- {{name: {'a' * 101}, type: number}}", "'aaaaaaaaaaaaaaaaa...' has 101 characters, but at most 100"),
    # YAML that is more than data
    ("fields: &a\n- {name: b, type: number}\ntitle: *a\n", "Line 1 has a YAML anchor or alias. Write the value out."),
    ("fields: !!python/object/apply:os.system ['echo']", "Field 1: a mapping is missing. Its keys are name, type,"),
    ("fields:\n- {<<: {name: a}, type: number}", "Field 1: the key '<<' is not supported"),
    ("fields:\n- {name: a, name: b, type: number}", "The key 'name' occurs twice in line 2 or below. Remove one."),
    ("? [a, b]\n: c", "It is not valid YAML"),
    ("\x00", "It is not valid YAML"),
    ("", "The schema: a mapping is missing. Its keys are fields,"),
    # keys of Table Schema that would run something, or mean more than this reader knows
    (FIELD.replace("number", "number, constraints: {pattern: '(a+)+$'}"), "the key 'pattern' is not supported. Use one of: "),
    (FIELD.replace("number", "number, format: '%Y'"), "Field 1: the key 'format' is not supported. Use one of: name, type"),
    ("$schema: https://example.org\n" + FIELD, "The schema: the key '$schema' is not supported. Use one of: fields, target"),
    (FIELD + "misingValues: []", "the key 'misingValues' is not supported. Use one of: fields, target, missingValues, title, "),
    # names
    (FIELD + "- {name: a, type: boolean}", "Two fields have the name 'a'. Give every field a name of its own."),
    ("fields:\n- {name: '=cmd()', type: number}", "a spreadsheet would run the name '=cmd()' as a formula. Begin it with"),
    ("fields:\n- {name: '-2+cmd|x', type: number}", "a spreadsheet would run the name '-2+cmd|x' as a formula"),
    ("fields:\n- {name: 'a\\tb', type: number}".replace("'", '"'), "'a?b' contains control characters. Remove them."),
    ('fields:\n- {name: "a\\u202eb", type: number}', "'a?b' contains control characters"),
    ("fields:\n- {name: ' a', type: number}", "the name ' a' is empty, or begins or ends with a space"),
    ("fields:\n- {name: '', type: number}", "is empty"),
    ("fields:\n- {name: [a], type: number}", "Field 1, 'name': a text is missing."),
    (one("string, constraints: {enum: [=1+1, b]}"), "Field 'a', 'enum': a spreadsheet would run the name '=1+1' as a formula"),
    (
        "fields:\n- {name: 'a=b', type: number}\n- {name: a, type: string, constraints: {enum: [b, c]}}",
        "Two features would have the name 'a=b'. Rename one field or category.",
    ),
    # types and constraints
    (one("strng"), "Field 'a': the type 'strng' is not supported. Types: number, integer, boolean ... Did you mean string?"),
    (one("string"), "Field 'a': a text needs 'constraints: {enum: [...]}', its categories in order"),
    (one("string, constraints: {enum: [x]}"), "'enum' needs two or more categories, each once"),
    (one("string, constraints: {enum: [1, 1.0]}"), "'enum' needs two or more categories, each once; 1, 1.0 and 01 are the"),
    (one("integer, constraints: {enum: [1, b]}"), "has other values than whole numbers"),
    (one("number, constraints: {enum: [1, 2]}"), "'enum' is for the types string and integer"),
    (one("boolean, constraints: {minimum: 1}"), "'minimum' and 'maximum' are for numbers and dates"),
    (one("number, constraints: {minimum: 2, maximum: 1}"), "'minimum' is above 'maximum'"),
    (one("number, constraints: {minimum: .nan}"), "Field 'a', 'minimum': '.nan' is not a number"),
    (one("number, constraints: {minimum: 1e999}"), "'1e999' is not a number up to 3.4e+38"),
    (one("number, constraints: {required: true}"), "the key 'required' is not supported. Use one of: minimum, maximum, enum."),
    (one("date"), "a date needs 'since', the day from which days are counted"),
    (one("number, since: 2000-01-01"), "'since' is for dates"),
    (one("date, since: 2000-13-01"), "a date needs 'since', the day from which days are counted, as 2024-12-31"),
    # missing values and targets
    (one("number, missing: most_frequent"), "'most_frequent' is not supported. ... {indicator: VALUE}, or mean."),
    (one("string, constraints: {enum: [x, y]}, missing: mean"), "'mean' is not supported. Write refuse, ... or most_frequent."),
    (one("string, constraints: {enum: [x, y]}, missing: {mean: 3}"), "is not supported. Write refuse"),
    (one("number, missing: constant"), "'constant' is not supported. Write refuse, {constant: VALUE}"),
    (one("number, missing: {constant: x}"), "'x' is not a number"),
    (one("integer, missing: {constant: 1.5}"), "'1.5' is not a whole number"),
    (one("string, constraints: {enum: [x, y]}, missing: {constant: z}"), "Field 'a', 'missing': 'z' is not a category of 'a'"),
    (FIELD + "target: b", "'target': no field has the name 'b'. Add a field 'b'."),
    (FIELD + "target: a", "It has no features. Add the fields."),
    (FIELD + "- {name: y, type: date, since: 2000-01-01}\ntarget: y", "Field 'y': a target of type date ... classes in order"),
    (FIELD + "- {name: y, type: number, missing: indicator}\ntarget: y", "missing targets cannot be filled"),
    ("fields: []", "It has no features"),
    ("fields: {a: number}", "'fields': a list is missing"),
]
JSON = [
    ('{"fields": [], "fields": []}', "The key 'fields' occurs twice. Remove one."),
    ("[" * 200_000, "It is not valid JSON (maximum recursion depth exceeded"),
    ('{"fields": [{"name": "a", "type": "number", "constraints": {"minimum": NaN}}]}', "'NaN' is not a number"),
    ("{'fields': 1}", "It is not valid JSON"),
]


def file(name: str, content: bytes) -> None:
    Path(name).write_bytes(content)
    read_schema(name)


SCHEMA = [
    *(Refusal(lambda text=text: parse_schema(text), words, DataError) for text, words in YAML),
    *(Refusal(lambda text=text: parse_schema(text, is_json=True), words, DataError) for text, words in JSON),
    Refusal(lambda: read_schema("none.yaml"), "Cannot read the schema 'none.yaml' (No such ... Set 'schema' to a", DataError),
    told(lambda: file("big.yaml", b"#" * 2**20 + b"\n"), "The schema 'big.yaml' cannot be used: It is larger than 1 MiB"),
    told(lambda: file("a.yaml", "title: für".encode("latin-1")), "The schema 'a.yaml' cannot be used: It is not"),
]


REFUSALS = [*FILES, *NAMED_IN_YAML, *CELLS, *SETTINGS, *SCHEMA]
