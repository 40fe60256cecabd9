"""The file of a schema: what it says, and what a hostile one is refused for."""

import contextlib
import json
import string
from dataclasses import replace
from datetime import date
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from table_refusals import YAML
from three_hospitals import SCHEMA

from fl_lightning import DataError
from fl_lightning.data.schema import Field, Schema
from fl_lightning.data.schema_file import parse_schema


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


def test_yes_and_no_are_categories_as_they_are_written():
    schema = parse_schema("fields:\n- {name: no, type: string, constraints: {enum: [no, yes, 1e3, 007]}}\n")
    assert schema.fields[0].enum == ("no", "yes", "1e3", "007")


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


def test_what_is_said_of_a_hostile_schema_is_short_and_printable():
    for text in (text for text, _ in YAML if len(text) < 5000):
        with pytest.raises(DataError) as caught:
            parse_schema(text)
        assert len(str(caught.value)) < 700
        assert str(caught.value).isprintable()


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
def test_a_schema_survives_yaml_and_json(found):
    values = {"fields": found}
    schema = parse_schema(yaml.safe_dump(values, allow_unicode=True))
    again = parse_schema(json.dumps(values), is_json=True)
    assert schema == again == parse_schema(schema.text, is_json=True)
    assert schema.digest() == again.digest()
    assert [one.name for one in schema.fields] == [one["name"] for one in found]
    changed = Schema((replace(schema.fields[0], unit="g"), *schema.fields[1:]), schema.target, schema.missing_values)
    assert changed.digest() != schema.digest()


@given(st.text(max_size=200))
def test_any_text_is_a_schema_or_a_message(text):
    for is_json in (False, True):
        with contextlib.suppress(DataError):  # anything else is a failure
            assert isinstance(parse_schema(text, is_json), Schema)
