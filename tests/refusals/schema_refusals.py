"""Files of a schema that cannot be used, also hostile ones."""

from __future__ import annotations

from pathlib import Path

from refusing import Refusal

from fl_lightning import DataError
from fl_lightning.data.schema_file import parse_schema, read_schema

FIELD = "fields:\n- {name: a, type: number}\n"


def one(rest: str) -> str:
    """Return a schema of a field with this type and more."""
    return f"fields:\n- {{name: a, type: {rest}}}"


YAML = [
    # size and depth
    ("x" * (2**20 + 1), "It is larger than 1 MiB"),
    ("[" * 100_000, "It is not valid YAML (maximum recursion depth exceeded"),
    ("- " * 50_000 + "a", "It is not valid YAML (maximum recursion depth exceeded"),
    (FIELD + f"title: {'[' * 20}{']' * 20}", "The schema: 'title' is not a text."),
    (
        "fields:\n- {name: a, type: string, constraints: {enum: [" + ",".join(map(str, range(100_001))) + "]}}",
        "Its fields become 100001 features, but at most 100000 are supported",
    ),
    (f"fields:\n- {{name: {'a' * 101}, type: number}}", "'aaaaaaaaaaaaaaaaa...' has 101 characters, but at most 100"),
    # YAML that is more than data
    ("fields: &a\n- {name: b, type: number}\ntitle: *a\n", "Line 1 has a YAML anchor or alias. Write the value out."),
    ("a: *b", "Line 1 has a YAML anchor or alias"),
    ("fields: !!python/object/apply:os.system ['echo']", "Field 1: a mapping is missing. Its keys are name, type,"),
    ("fields:\n- {<<: {name: a}, type: number}", "Field 1: the key '<<' is not supported"),
    ("fields:\n- {name: a, name: b, type: number}", "The key 'name' occurs twice in line 2 or below. Remove one."),
    ("{a: [}", "It is not valid YAML"),
    ("? [a, b]\n: c", "It is not valid YAML"),
    ("a: b\n---\nc: d", "It is not valid YAML"),
    ("\x00", "It is not valid YAML"),
    ("", "The schema: a mapping is missing. Its keys are fields,"),
    ("https://example.org/schema.json", "The schema: a mapping is missing"),
    # keys of Table Schema that would run something, or mean more than this reader knows
    (FIELD.replace("number", "number, constraints: {pattern: '(a+)+$'}"), "the key 'pattern' is not supported. Use one of: "),
    (FIELD.replace("number", "number, format: '%Y'"), "Field 1: the key 'format' is not supported. Use one of: name, type"),
    ("$schema: https://example.org\n" + FIELD, "The schema: the key '$schema' is not supported. Use one of: fields, target"),
    (FIELD + "misingValues: []", "the key 'misingValues' is not supported. Use one of: fields, target, missingValues, title, "),
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
    (one("string, constraints: {enum: [=1+1, b]}"), "Field 'a', 'enum': a spreadsheet would run the name '=1+1' as a formula"),
    (
        "fields:\n- {name: 'a=b', type: number}\n- {name: a, type: string, constraints: {enum: [b, c]}}",
        "Two features would have the name 'a=b'. Rename one field or category.",
    ),
    # types and constraints
    (one("any"), "Field 'a': the type 'any' is not supported. Types: number, integer, boolean"),
    (one("strng"), "Did you mean string?"),
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
    (one("string, constraints: {enum: [x, y]}, missing: {most_frequent: x}"), "is not supported. Write refuse"),
    (one("number, missing: median"), "Field 'a', 'missing': 'median' is not supported. Write refuse,"),
    (one("number, missing: constant"), "'constant' is not supported. Write refuse, {constant: VALUE}"),
    (one("number, missing: {constant: x}"), "'x' is not a number"),
    (one("integer, missing: {constant: 1.5}"), "'1.5' is not a whole number"),
    (one("date, since: 2000-01-01, missing: {constant: 3}"), "'3' is not a date of the form %Y-%m-%d"),
    (one("boolean, missing: {indicator: maybe}"), "'maybe' is not true or false, yes or no, 1 or 0"),
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
    ('{"fields": ' + "[" * 20 + "]" * 20 + "}", "Field 1: a mapping is missing"),
    ('{"fields": [{"name": "a", "type": "number", "constraints": {"minimum": NaN}}]}', "'NaN' is not a number"),
    ('{"fields": [{"name": null, "type": "number"}]}', "Field 1, 'name': a text is missing"),
    ("{'fields': 1}", "It is not valid JSON"),
]


def file(name: str, content: bytes) -> None:
    Path(name).write_bytes(content)
    read_schema(name)


REFUSALS = [
    *(Refusal(lambda text=text: parse_schema(text), words, DataError) for text, words in YAML),
    *(Refusal(lambda text=text: parse_schema(text, is_json=True), words, DataError) for text, words in JSON),
    Refusal(lambda: read_schema("none.yaml"), "Cannot read the schema 'none.yaml' (No such ... Set 'schema' to a", DataError),
    Refusal(
        lambda: file("big.yaml", b"#" * 2**20 + b"\n"),
        "The schema 'big.yaml' cannot be used: It is larger than 1 MiB",
        DataError,
    ),
    Refusal(lambda: file("a.yaml", "title: für".encode("latin-1")), "The schema 'a.yaml' cannot be used: It is not", DataError),
    Refusal(lambda: file("a.yaml", b"fields: []"), "The schema 'a.yaml' cannot be used: It has no features", DataError),
]
