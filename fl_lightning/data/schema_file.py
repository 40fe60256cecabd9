"""Read a schema from YAML or JSON. It may come from someone else, so it is bounded, and has no code, patterns or addresses."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import date, timedelta
from pathlib import Path
from typing import Any, get_args

from fl_lightning.data.class_names import class_name
from fl_lightning.data.schema import Field, FieldType, Missing, Schema
from fl_lightning.data.schema_text import (
    BYTES,
    NAME,
    boolean_from,
    date_of,
    is_number,
    list_of,
    mapping_of,
    name_of,
    number_of,
    parse_plain,
    refuse,
    shown,
    text_of,
)
from fl_lightning.errors import DataError, did_you_mean

_FIELDS, _CATEGORIES, _FEATURES, _MARKERS = 5000, 1000, 100_000, 100
_KEYS = ("fields", "target", "missingValues", "title", "description")
_FIELD_KEYS = ("name", "type", "title", "description", "unit", "constraints", "missing", "since", "format")
_CONSTRAINTS = ("minimum", "maximum", "enum", "required")
_TYPES: tuple[FieldType, ...] = get_args(FieldType)


def read_schema(path: str | Path) -> Schema:
    """Read a schema from a file, YAML or JSON (``.json``).

    Raises:
        DataError: if the file cannot be read, or is not a schema; the message says what is wrong and where.
    """
    try:
        with open(path, "rb") as file:
            content = file.read(BYTES + 1)
    except OSError as error:
        raise DataError(
            f"Cannot read the schema '{path}' ({error.strerror}). Set 'schema' to a file; 'fl-lightning schema --from own.csv "
            "--target NAME --output schema.yaml' proposes one."
        ) from error
    if len(content) > BYTES:
        raise DataError(f"The schema '{path}' is larger than 1 MiB. Use a smaller one.")
    try:
        return parse_schema(content.decode("utf-8-sig"), str(path).lower().endswith(".json"))
    except UnicodeDecodeError as error:
        raise DataError(f"The schema '{path}' is not UTF-8 ({error}). Save it as UTF-8.") from error
    except DataError as error:
        raise DataError(f"The schema '{path}' cannot be used: {error}") from error


def parse_schema(text: str, is_json: bool = False) -> Schema:
    """Read a schema from its text.

    Args:
        text: YAML or JSON.
        is_json: whether the text is JSON.

    Raises:
        DataError: if the text is not a schema.
    """
    found = mapping_of(parse_plain(text, is_json), "the schema", _KEYS)
    for key in ("title", "description"):
        text_of(found.get(key, ""), key)
    listed = list_of(found.get("fields"), "'fields'", _FIELDS)
    fields = tuple(_field(value, f"field {number}") for number, value in enumerate(listed, 1))
    names = [field.name for field in fields]
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise DataError(f"Two fields have the name '{name}'. Give every field a name of its own.")
        seen.add(name)
    markers = list_of(found.get("missingValues", [""]), "'missingValues'", _MARKERS)
    texts = tuple(dict.fromkeys(text_of(value, "'missingValues'", NAME).strip() for value in markers))
    schema = Schema(fields, _target(found.get("target"), names), texts)
    _check(schema)
    return schema


def _target(value: Any, names: list[str]) -> str | None:
    if value is None:
        return None
    name = name_of(value, "'target'")
    if name not in names:
        refuse("'target'", f"no field has the name '{name}'", did_you_mean(name, names).strip() or f"Add a field '{name}'.")
    return name


def _check(schema: Schema) -> None:
    """Refuse fields that cannot be features or targets."""
    target, features = schema.target_field, schema.feature_names
    if target is not None and target.type in ("date", "string") and not target.enum:
        refuse(
            f"field '{target.name}'",
            f"a target of type {target.type} needs 'constraints: {{enum: [...]}}', its classes in order",
        )
    if target is not None and target.missing != "refuse":
        refuse(f"field '{target.name}'", "missing targets cannot be filled", "Remove 'missing', and the rows without a target.")
    if not features and not schema.classes:
        raise DataError("It has neither features nor a target with classes. Add the fields.")
    if len(features) > _FEATURES:
        raise DataError(f"Its fields become {len(features)} features, but at most {_FEATURES} are supported.")
    if len(set(features)) < len(features):
        seen: set[str] = set()
        twice = next(name for name in features if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise DataError(f"Two features would have the name '{twice}'. Rename one field or category.")


def _field(value: Any, where: str) -> Field:
    found = mapping_of(value, where, _FIELD_KEYS)
    name = name_of(found.get("name"), f"{where}, 'name'")
    where = f"field '{name}'"
    kind = text_of(found.get("type", ""), f"{where}, 'type'", NAME)
    if kind not in _TYPES:
        refuse(where, f"the type '{kind}' is not supported", f"Types: {', '.join(_TYPES)}.{did_you_mean(kind, _TYPES)}")
    for key in ("title", "description"):
        text_of(found.get(key, ""), f"{where}, '{key}'")
    if found.get("format", "default") != "default":
        refuse(where, "'format' is not supported", "Dates are written as 2024-12-31; a site converts its own with 'columns'.")
    limits = mapping_of(found.get("constraints", {}), f"{where}, 'constraints'", _CONSTRAINTS)
    since = date_of(found["since"], f"{where}, 'since'") if "since" in found else None
    if (since is None) == (kind == "date"):
        refuse(where, "a date needs 'since', the day from which days are counted" if kind == "date" else "'since' is for dates")
    enum = _enum(limits, kind, where)
    if (enum or kind in ("boolean", "string")) and {"minimum", "maximum"} & set(limits):
        refuse(where, "'minimum' and 'maximum' are for numbers and dates without 'enum'")
    low, high = (_limit(limits.get(key), kind, since, f"{where}, '{key}'") for key in ("minimum", "maximum"))
    if low is not None and high is not None and low > high:
        refuse(where, "'minimum' is above 'maximum'")
    required = boolean_from(limits.get("required", "false"), f"{where}, 'required'")
    unit = text_of(found.get("unit", ""), f"{where}, 'unit'", NAME)
    plain = Field(name, kind, unit, low, high, enum, required, since=since)
    return _with_missing(plain, found.get("missing", "refuse"), f"{where}, 'missing'")


def _limit(value: Any, kind: str, since: date | None, where: str) -> float | None:
    if value is None:
        return None
    return number_of(value, where) if since is None else float((date_of(value, where) - since).days)


def _enum(limits: Mapping[str, Any], kind: str, where: str) -> tuple[str, ...]:
    if "enum" not in limits:
        if kind == "string":
            refuse(where, "a text needs 'constraints: {enum: [...]}', its categories in order", "Or remove the field.")
        return ()
    if kind not in ("string", "integer"):
        refuse(where, f"'enum' is for the types string and integer, not for {kind}")
    values = list_of(limits["enum"], f"{where}, 'enum'", _CATEGORIES)
    names = tuple(name_of(value, f"{where}, 'enum'") for value in values)
    codes = [class_name(name) for name in names]
    if len(names) < 2 or len(set(codes)) < len(names):
        twice = next((name for name, code in zip(names, codes, strict=True) if codes.count(code) > 1), "")
        refuse(where, f"'enum' has '{twice}' twice" if twice else "'enum' needs two or more categories")
    if kind == "integer" and not all(is_number(name) and float(name).is_integer() for name in names):
        refuse(where, "'enum' of an integer has other values than whole numbers", "Set 'type: string'.")
    return names


def _with_missing(field: Field, value: Any, where: str) -> Field:
    """Return the field with what its missing values become."""
    kind, given = next(iter(value.items())) if isinstance(value, dict) and len(value) == 1 else (value, None)
    kinds: tuple[Missing, ...] = get_args(Missing)
    alone = isinstance(value, str)
    if kind not in kinds or (alone and kind == "constant") or (not alone and kind in ("refuse", "mean", "most_frequent")):
        refuse(
            where,
            f"'{shown(value)}' is not supported",
            "Write refuse, {constant: VALUE}, indicator, {indicator: VALUE}, mean, or most_frequent.",
        )
    if field.required and kind != "refuse":
        refuse(where, "a field with 'required: true' has no missing values", "Remove one of the two.")
    if kind == "mean" and (field.enum or field.type == "boolean"):
        refuse(where, "categories have no mean", "Write most_frequent, indicator, or {constant: VALUE}.")
    if kind == "most_frequent" and not (field.enum or field.type == "boolean"):
        refuse(where, "only categories and booleans have a most frequent value", "Write mean, indicator, or {constant: VALUE}.")
    constant = None if alone else _constant(field, given, where)
    if kind == "indicator" and constant is None and not field.enum:
        constant = 0.0
    return replace(field, missing=kind, constant=constant)


def _constant(field: Field, given: Any, where: str) -> float:
    if field.enum:
        name = text_of(given, where, NAME)
        if name not in field.enum:
            refuse(where, f"'{name}' is not a category", f"Categories: {', '.join(field.enum[:20])}.")
        return float(field.enum.index(name))
    if field.type == "boolean":
        return float(boolean_from(given, where))
    if field.since is not None:
        return float((date_of(given, where) - field.since).days)
    number = number_of(given, where)
    if field.type == "integer" and not number.is_integer():
        refuse(where, f"'{shown(given)}' is not a whole number")
    return number


# ---------------------------------------------------------------- back to text


def schema_text(schema: Schema) -> str:
    """Return a schema as JSON, from which :func:`parse_schema` returns an equal one; without titles and comments."""
    values: dict[str, Any] = {"fields": [_values(field) for field in schema.fields]}
    values |= {} if schema.target is None else {"target": schema.target}
    return json.dumps(values | {"missingValues": schema.missing_values}, ensure_ascii=False)


def _values(field: Field) -> dict[str, Any]:
    """Return a field in the words of a file."""
    limits = {"minimum": field.minimum, "maximum": field.maximum}
    constraints: dict[str, Any] = {key: _written(field, value) for key, value in limits.items() if value is not None}
    constraints |= {"enum": field.enum} if field.enum else {}
    constraints |= {"required": True} if field.required else {}
    missing: Any = field.missing
    if field.constant is not None:
        missing = {missing: field.enum[int(field.constant)] if field.enum else _written(field, field.constant)}
    found = {"unit": field.unit, "since": field.since and field.since.isoformat(), "constraints": constraints}
    return {"name": field.name, "type": field.type, "missing": missing} | {key: value for key, value in found.items() if value}


def _written(field: Field, value: float) -> Any:
    """Return a number as a file has it: days as a date, 0 and 1 of a boolean as false and true."""
    if field.since is not None:
        return (field.since + timedelta(days=value)).isoformat()
    return bool(value) if field.type == "boolean" else value
