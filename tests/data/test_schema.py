"""The file of a schema: what it says, and what a hostile one is refused for."""

from __future__ import annotations

import contextlib
import json
import string
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from three_hospitals import SCHEMA

from fl_lightning import DataError
from fl_lightning.data.schema import Field, Schema
from fl_lightning.data.schema_file import parse_schema, read_schema, schema_text


def test_a_schema_is_read():
    schema = parse_schema(SCHEMA)
    assert schema.target == "outcome"
    assert schema.classes == ("healthy", "relapse", "dead")
    assert schema.missing_values == ("", "NA")
    age, height, platelets, sex, stage, smoker, admitted, outcome = schema.fields
    assert age == Field("age", "number", "years", 0.0, 120.0)
    assert height == Field("height", "number", "m", 0.3, 2.5, missing="indicator", constant=1.7)
    assert platelets == Field("platelets", "integer", "10^9 per litre", 0.0, 2000.0, missing="constant", constant=250.0)
    assert sex.enum == ("male", "female", "diverse")
    assert (stage.missing, stage.constant) == ("indicator", None)
    assert smoker == Field("smoker", "boolean")
    assert admitted.since == date(2020, 1, 1)
    assert schema.target_field is outcome
    assert schema.feature_names == (
        *("age", "height", "height=missing", "platelets", "sex=male", "sex=female", "sex=diverse"),
        *("stage=I", "stage=II", "stage=III", "stage=IV", "stage=missing", "smoker", "admitted"),
    )


def test_json_and_yaml_say_the_same():
    Path("schema.yaml").write_text(SCHEMA)
    Path("schema.json").write_text(json.dumps(yaml.safe_load(SCHEMA), default=str, indent=1))
    assert read_schema("schema.json") == read_schema("schema.yaml")
    Path("tabs.json").write_text(json.dumps(yaml.safe_load(SCHEMA), default=str, indent="\t"))
    assert read_schema("tabs.json").digest() == read_schema("schema.yaml").digest()


def test_yes_and_no_are_categories_as_they_are_written():
    schema = parse_schema("fields:\n- {name: no, type: string, constraints: {enum: [no, yes, 1e3, 007]}}\n")
    assert schema.fields[0].enum == ("no", "yes", "1e3", "007")


def test_the_text_of_a_schema_is_that_schema():
    further = (
        "  - {name: last, type: date, since: 2020-01-01, constraints: {minimum: 2019-01-01}, missing: {constant: 2021-02-03}}",
        "  - {name: ward, type: integer, constraints: {enum: [1, 2]}, missing: {indicator: 2}}",
        "  - {name: fever, type: boolean, missing: {constant: yes}}",
        "  - {name: id, type: number, constraints: {required: true}}",
    )
    schema = parse_schema(SCHEMA.replace("target:", "\n".join([*further, "target:"])))
    assert parse_schema(schema_text(schema), is_json=True) == schema


def test_what_counts_for_the_digest():
    schema = parse_schema(SCHEMA)
    same = [
        parse_schema(SCHEMA.replace("title: Outcome after one year\n", "description: another text\n")),
        parse_schema(SCHEMA.replace("years", "'years'").replace("minimum: 0,", "minimum: 0.0,")),
        parse_schema(SCHEMA.replace('["", NA]', '[NA, ""]')),
    ]
    assert {one.digest() for one in same} == {schema.digest()}
    other = [
        SCHEMA.replace("unit: years", "unit: months"),
        SCHEMA.replace("[I, II, III, IV]", "[I, II, IV, III]"),
        SCHEMA.replace("constant: 250", "constant: 251"),
        SCHEMA.replace("since: 2020", "since: 2021"),
        SCHEMA.replace("maximum: 120", "maximum: 121"),
        SCHEMA.replace("target: outcome", "target: smoker"),
        SCHEMA.replace("missing: {indicator: 1.7}", "missing: {constant: 1.7}"),
        SCHEMA.replace('["", NA]', '[""]'),
        SCHEMA.replace("name: age", "name: Age"),
    ]
    digests = {parse_schema(text).digest() for text in other}
    assert len(digests) == len(other)
    assert schema.digest() not in digests
    assert len(schema.digest()) == 16


FIELD = "fields:\n- {name: a, type: number}\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        # size and depth
        ("x" * (2**20 + 1), "It is larger than 1 MiB"),
        ("fields: [" + "1," * 200_000 + "1]", "It has more than 200000 keys and values. Use a smaller one."),
        ("[" * 100_000, "nested deeper than 8 levels"),
        ("- " * 50_000 + "a", "nested deeper than 8 levels"),
        ("fields:\n" + "- {name: a, type: number}\n" * 5001, "'fields': the list has 5001 entries, but at most 5000"),
        (
            "fields:\n- {name: a, type: string, constraints: {enum: [" + ",".join(map(str, range(1001))) + "]}}",
            "Field 'a', 'enum': the list has 1001 entries, but at most 1000 are supported",
        ),
        (f"fields:\n- {{name: {'a' * 101}, type: number}}", "'aaaaaaaaaaaaaaaaa...' has 101 characters, but at most 100"),
        (FIELD + f"description: {'x' * 2001}", "Description: 'xxxxxxxxxxxxxxxxx...' has 2001 characters"),
        (FIELD + f"missingValues: [{','.join(map(str, range(101)))}]", "the list has 101 entries, but at most 100"),
        # YAML that is more than data
        ("fields: &a\n- {name: b, type: number}\ntitle: *a\n", "Line 1 has a YAML anchor or alias. Write the value out."),
        ("a: *b", "Line 1 has a YAML anchor or alias"),
        ("fields: !!python/object/apply:os.system ['echo']", "Field 1: a mapping is missing. Write 'name: ...'."),
        ("fields:\n- {<<: {name: a}, type: number}", "Field 1: the key '<<' is not supported"),
        ("fields:\n- {name: a, name: b, type: number}", "Line 2 has the key 'name' again. Remove one."),
        ("{a: [}", "It is not valid YAML"),
        ("? [a, b]\n: c", "It is not valid YAML"),
        ("a: b\n---\nc: d", "It is not valid YAML"),
        ("\x00", "It is not valid YAML"),
        ("", "The schema: a mapping is missing. Write 'fields: ...'."),
        ("https://example.org/schema.json", "The schema: a mapping is missing"),
        # keys of Table Schema that would run something, or mean more than this reader knows
        (FIELD.replace("number", "number, constraints: {pattern: '(a+)+$'}"), "the key 'pattern' is not supported. Keys: "),
        (FIELD.replace("number", "number, format: '%Y'"), "Field 'a': 'format' is not supported. Dates are written as"),
        ("$schema: https://example.org\n" + FIELD, "The schema: the key '$schema' is not supported. Keys: fields, target"),
        (FIELD + "misingValues: []", "the key 'misingValues' is not supported. Keys: fields, target, missingValues, title, "),
        # names
        (FIELD + "- {name: a, type: boolean}", "Two fields have the name 'a'. Give every field a name of its own."),
        ("fields:\n- {name: '=cmd()', type: number}", "a spreadsheet would run the name '=cmd()' as a formula. Begin it with"),
        ("fields:\n- {name: '@SUM(A1)', type: number}", "a spreadsheet would run the name '@SUM(A1)' as a formula"),
        ("fields:\n- {name: '-2+cmd|x', type: number}", "a spreadsheet would run the name '-2+cmd|x' as a formula"),
        ("fields:\n- {name: 'a\\tb', type: number}".replace("'", '"'), "'a?b' contains control characters. Remove them."),
        ('fields:\n- {name: "a\\e[2J", type: number}', "'a?[2J' contains control characters"),
        ('fields:\n- {name: "a\\u202eb", type: number}', "'a?b' contains control characters"),
        ("fields:\n- {name: ' a', type: number}", "the name ' a' is empty, or begins or ends with a space"),
        ("fields:\n- {name: '', type: number}", "is empty"),
        ("fields:\n- {name: [a], type: number}", "Field 1, 'name': a text is missing."),
        ("fields:\n- {type: number}", "Field 1, 'name': a text is missing."),
        (
            "fields:\n- {name: a, type: string, constraints: {enum: [=1+1, b]}}",
            "Field 'a', 'enum': a spreadsheet would run the name '=1+1' as a formula",
        ),
        (
            "fields:\n- {name: 'a=b', type: number}\n- {name: a, type: string, constraints: {enum: [b, c]}}",
            "Two features would have the name 'a=b'. Rename one field or category.",
        ),
        # types and constraints
        ("fields:\n- {name: a, type: any}", "Field 'a': the type 'any' is not supported. Types: number, integer, boolean"),
        ("fields:\n- {name: a, type: strng}", "Did you mean string?"),
        ("fields:\n- {name: a, type: string}", "Field 'a': a text needs 'constraints: {enum: [...]}', its categories in order"),
        ("fields:\n- {name: a, type: string, constraints: {enum: [x]}}", "'enum' needs two or more categories"),
        ("fields:\n- {name: a, type: string, constraints: {enum: [1, 1.0]}}", "'enum' has '1' twice"),
        ("fields:\n- {name: a, type: integer, constraints: {enum: [1, b]}}", "has other values than whole numbers"),
        ("fields:\n- {name: a, type: number, constraints: {enum: [1, 2]}}", "'enum' is for the types string and integer"),
        ("fields:\n- {name: a, type: boolean, constraints: {minimum: 1}}", "'minimum' and 'maximum' are for numbers and dates"),
        ("fields:\n- {name: a, type: number, constraints: {minimum: 2, maximum: 1}}", "'minimum' is above 'maximum'"),
        ("fields:\n- {name: a, type: number, constraints: {minimum: .nan}}", "Field 'a', 'minimum': '.nan' is not a number"),
        ("fields:\n- {name: a, type: number, constraints: {minimum: 1e999}}", "'1e999' is not a number up to 1e30"),
        ("fields:\n- {name: a, type: number, constraints: {required: 3}}", "'3' is neither true nor false"),
        ("fields:\n- {name: a, type: date}", "a date needs 'since', the day from which days are counted"),
        ("fields:\n- {name: a, type: number, since: 2000-01-01}", "'since' is for dates"),
        ("fields:\n- {name: a, type: date, since: 2000-13-01}", "'2000-13-01' is not a date. Write it as 2024-12-31."),
        # missing values and targets
        (
            "fields:\n- {name: a, type: number, missing: median}",
            "Field 'a', 'missing': 'median' is not supported. Write refuse,",
        ),
        (
            "fields:\n- {name: a, type: number, missing: constant}",
            "'constant' is not supported. Write refuse, {constant: VALUE}",
        ),
        ("fields:\n- {name: a, type: number, missing: {constant: x}}", "'x' is not a number"),
        ("fields:\n- {name: a, type: integer, missing: {constant: 1.5}}", "'1.5' is not a whole number"),
        ("fields:\n- {name: a, type: date, since: 2000-01-01, missing: {constant: 3}}", "'3' is not a date"),
        ("fields:\n- {name: a, type: boolean, missing: {indicator: maybe}}", "'maybe' is neither true nor false"),
        (
            "fields:\n- {name: a, type: string, constraints: {enum: [x, y]}, missing: {constant: z}}",
            "Field 'a', 'missing': 'z' is not a category. Categories: x, y.",
        ),
        (
            "fields:\n- {name: a, type: number, constraints: {required: true}, missing: indicator}",
            "a field with 'required: true' has no missing values. Remove one of the two.",
        ),
        (FIELD + "target: b", "'target': no field has the name 'b'. Add a field 'b'."),
        (FIELD + "target: a", "It has neither features nor a target with classes. Add the fields."),
        (
            FIELD + "- {name: y, type: date, since: 2000-01-01}\ntarget: y",
            "Field 'y': a target of type date needs 'constraints: {enum: [...]}', its classes in order",
        ),
        (FIELD + "- {name: y, type: number, missing: indicator}\ntarget: y", "missing targets cannot be filled"),
        ("fields: []", "It has neither features nor a target with classes"),
        ("fields: {a: number}", "'fields': a list is missing"),
    ],
)
def test_schemas_that_are_refused(text, message):
    with pytest.raises(DataError) as caught:
        parse_schema(text)
    said = str(caught.value)
    assert message in said
    assert len(said) < 700
    assert all(letter.isprintable() for letter in said)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"fields": [], "fields": []}', "The key 'fields' occurs twice. Remove one."),
        ("[" * 200_000, "It is not valid JSON"),
        ('{"fields": ' + "[" * 20 + "]" * 20 + "}", "nested deeper than 8 levels"),
        ('{"fields": [{"name": "a", "type": "number", "constraints": {"minimum": NaN}}]}', "'NaN' is not a number"),
        ('{"fields": [{"name": null, "type": "number"}]}', "Field 1, 'name': a text is missing"),
        ("{'fields': 1}", "It is not valid JSON"),
        ('{"fields": [' + "1," * 200_000 + "1]}", "It has more than 200000 keys and values. Use a smaller one."),
        ("{" + ",".join(f'"{k}":1' for k in range(100_000)) + "}", "It has more than 200000 keys and values."),
    ],
)
def test_json_that_is_refused(text, message):
    with pytest.raises(DataError) as caught:
        parse_schema(text, is_json=True)
    assert message in str(caught.value)


def test_files_that_cannot_be_read():
    with pytest.raises(DataError, match=r"Cannot read the schema 'none.yaml' \(No such file or directory\). Set 'schema' to a"):
        read_schema("none.yaml")
    Path("big.yaml").write_text("#" * 2**20 + "\n")
    with pytest.raises(DataError, match=r"The schema 'big.yaml' is larger than 1 MiB"):
        read_schema("big.yaml")
    Path("latin.yaml").write_bytes("title: für".encode("latin-1"))
    with pytest.raises(DataError, match=r"The schema 'latin.yaml' is not UTF-8"):
        read_schema("latin.yaml")
    Path("wrong.yaml").write_text("fields: []")
    with pytest.raises(
        DataError, match=r"The schema 'wrong.yaml' cannot be used: It has neither features nor a target with classes"
    ):
        read_schema("wrong.yaml")


# ------------------------------------------------------------------ any schema

_LETTERS = string.ascii_letters + "äßж雪 _.,:#'\"{}[]%&*!|>?-"
NAMES = st.text(_LETTERS, min_size=1, max_size=12).map(lambda text: f"f{text}".strip())
NUMBERS = st.floats(-1e9, 1e9, allow_nan=False)


@st.composite
def fields(draw: Any) -> dict[str, Any]:
    kind = draw(st.sampled_from(["number", "integer", "boolean", "string", "date"]))
    found: dict[str, Any] = {"name": draw(NAMES), "type": kind, "unit": draw(st.sampled_from(["", "kg"]))}
    if kind == "string":
        found["constraints"] = {"enum": draw(st.lists(NAMES, min_size=2, max_size=5, unique=True))}
    if kind == "number" and draw(st.booleans()):
        found["constraints"] = {"minimum": draw(NUMBERS)}
        found["missing"] = {draw(st.sampled_from(["constant", "indicator"])): draw(NUMBERS)}
    if kind == "date":
        found["since"] = draw(st.dates(date(1900, 1, 1), date(2100, 1, 1))).isoformat()
    return found


@given(st.lists(fields(), min_size=1, max_size=6, unique_by=lambda one: one["name"]))
@settings(max_examples=80, deadline=None)
def test_a_schema_survives_yaml_and_json(found):
    values = {"fields": found}
    schema = parse_schema(yaml.safe_dump(values, allow_unicode=True))
    again = parse_schema(json.dumps(values), is_json=True)
    assert schema == again == parse_schema(schema_text(schema), is_json=True)
    assert schema.digest() == again.digest()
    assert [one.name for one in schema.fields] == [one["name"] for one in found]
    changed = Schema((replace(schema.fields[0], unit="g"), *schema.fields[1:]), schema.target, schema.missing_values)
    assert changed.digest() != schema.digest()


@given(st.text(max_size=200))
@settings(max_examples=150, deadline=None)
def test_any_text_is_a_schema_or_a_message(text):
    for is_json in (False, True):
        with contextlib.suppress(DataError):  # anything else is a failure
            assert isinstance(parse_schema(text, is_json), Schema)
