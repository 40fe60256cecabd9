"""Read a schema from YAML or JSON. Files from others are safe: their size is limited, without code, patterns or addresses."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn, get_args

import yaml

from fl_lightning.data.labels import class_name, listed
from fl_lightning.data.schema import Field, FieldType, Schema, day_of, number_in, repeated, shown
from fl_lightning.errors import DataError, did_you_mean

_BYTES = 2**20
"""The size of the largest file."""
_NAME, _FEATURES = 100, 100_000
_KEYS = ("fields", "target", "missingValues", "title", "description")
_FIELD_KEYS = ("name", "type", "title", "description", "unit", "constraints", "missing", "since")
_CONSTRAINTS = ("minimum", "maximum", "enum")
_TYPES: tuple[FieldType, ...] = get_args(FieldType)


def read_schema(path: str | Path) -> Schema:
    """Read a schema from a file, YAML or JSON (``.json``).

    Raises:
        DataError: if the file cannot be read, or is not a schema; the message says what is wrong and where.
    """
    try:
        with open(path, "rb") as file:
            content = file.read(_BYTES + 1)
    except OSError as error:
        raise DataError(
            f"Cannot read the schema '{path}' ({error.strerror}). Set 'schema' to a file; 'fl-lightning schema --from own.csv "
            "--target NAME --output schema.yaml' proposes one."
        ) from error
    try:
        return parse_schema(content, str(path).lower().endswith(".json"))
    except DataError as error:
        raise DataError(f"The schema '{path}' cannot be used: {error}") from error


def parse_schema(text: str | bytes, is_json: bool = False) -> Schema:
    """Read a schema from its text.

    Args:
        text: YAML or JSON; bytes are UTF-8.
        is_json: whether the text is JSON.

    Raises:
        DataError: if the text is not a schema.
    """
    found = mapping_of(_plain(text, is_json), "the schema", _KEYS)
    _check_texts(found, "the schema")
    fields = tuple(_field(value, f"field {number}") for number, value in enumerate(_list(found.get("fields"), "'fields'"), 1))
    names = [field.name for field in fields]
    for name in repeated(names):
        raise DataError(f"Two fields have the name '{name}'. Give every field a name of its own.")
    markers = [_text(value, "'missingValues'").strip() for value in _list(found.get("missingValues", [""]), "'missingValues'")]
    target = None if found.get("target") is None else _name(found["target"], "'target'")
    fix = did_you_mean(str(target), names).strip() or f"Add a field '{target}'."
    _need(target in (None, *names), "'target'", f"no field has the name '{target}'", fix)
    schema = Schema(fields, target, tuple(dict.fromkeys(markers)), json.dumps(found, ensure_ascii=False))
    _check(schema)
    return schema


def _check(schema: Schema) -> None:
    """Refuse fields that cannot be features or targets."""
    target, features = schema.target_field, schema.feature_names
    if target is not None:
        where, fix = f"field '{target.name}'", "Remove 'missing', and the rows without a target."
        what = f"a target of type {target.type} needs 'constraints: {{enum: [...]}}', its classes in order"
        _need(bool(target.enum) or target.type not in ("date", "string"), where, what)
        _need(target.missing == "refuse", where, "missing targets cannot be filled", fix)
    if not features:
        raise DataError("It has no features. Add the fields.")
    if len(features) > _FEATURES:
        raise DataError(f"Its fields become {len(features)} features, but at most {_FEATURES} are supported.")
    for name in repeated(features):
        raise DataError(f"Two features would have the name '{name}'. Rename one field or category.")


def _field(value: Any, where: str) -> Field:
    found = mapping_of(value, where, _FIELD_KEYS)
    name = _name(found.get("name"), f"{where}, 'name'")
    where = f"field '{name}'"
    _check_texts(found, where)
    kind = _text(found.get("type", ""), f"{where}, 'type'")
    if kind not in _TYPES:
        _refuse(where, f"the type '{kind}' is not supported", f"Types: {', '.join(_TYPES)}.{did_you_mean(kind, _TYPES)}")
    limits = mapping_of(found.get("constraints", {}), f"{where}, 'constraints'", _CONSTRAINTS)
    since = day_of(_text(found.get("since", ""), f"{where}, 'since'"))
    _need(
        since is not None or kind != "date", where, "a date needs 'since', the day from which days are counted, as 2024-12-31"
    )
    _need("since" not in found or kind == "date", where, "'since' is for dates")
    field = Field(name, kind, _text(found.get("unit", ""), f"{where}, 'unit'"), enum=_enum(limits, kind, where), since=since)
    given = {key: limits[key] for key in ("minimum", "maximum") if limits.get(key) is not None}
    bounded = not given or (kind not in ("boolean", "string") and not field.enum)
    _need(bounded, where, "'minimum' and 'maximum' are for numbers and dates without 'enum'")
    ends: dict[str, Any] = {key: _value(field, limit, f"{where}, '{key}'") for key, limit in given.items()}
    _need(len(ends) < 2 or ends["minimum"] <= ends["maximum"], where, "'minimum' is above 'maximum'")
    return _with_missing(replace(field, **ends), found.get("missing", "refuse"), f"{where}, 'missing'")


def _enum(limits: Mapping[str, Any], kind: str, where: str) -> tuple[str, ...]:
    if "enum" not in limits:
        what = "a text needs 'constraints: {enum: [...]}', its categories in order"
        _need(kind != "string", where, what, "Or remove the field.")
        return ()
    _need(kind in ("string", "integer"), where, f"'enum' is for the types string and integer, not for {kind}")
    names = tuple(_name(value, f"{where}, 'enum'") for value in _list(limits["enum"], f"{where}, 'enum'"))
    fits = len(set(map(class_name, names))) == len(names) > 1
    _need(fits, where, "'enum' needs two or more categories, each once; 1, 1.0 and 01 are the same")
    whole = kind == "string" or all((number := number_in(name)) is not None and number.is_integer() for name in names)
    _need(whole, where, "'enum' of an integer has other values than whole numbers", "Set 'type: string'.")
    return names


def _with_missing(field: Field, value: Any, where: str) -> Field:
    """Return the field with what its missing values become."""
    kind, given = next(iter(value.items())) if isinstance(value, dict) and len(value) == 1 else (value, None)
    alone, is_category = isinstance(value, str), bool(field.enum) or field.type == "boolean"
    average = "most_frequent" if is_category else "mean"
    fits = kind in (("refuse", "indicator", average) if alone else ("constant", "indicator"))
    fix = f"Write refuse, {{constant: VALUE}}, indicator, {{indicator: VALUE}}, or {average}."
    _need(fits, where, f"'{shown(value)}' is not supported", fix)
    constant = None if alone else _value(field, given, where)
    whole = constant is None or field.type != "integer" or constant.is_integer()
    _need(whole, where, f"'{shown(given)}' is not a whole number")
    return replace(field, missing=kind, constant=0.0 if alone and kind == "indicator" and not field.enum else constant)


def _value(field: Field, given: Any, where: str) -> float:
    """Return the value of a field that a text is."""
    code, wanted = field.coder()
    value = code(_text(given, where))
    if value is None:
        _refuse(where, f"'{shown(given)}' is not {wanted}")
    return value


# ---------------------------------------------------------------- plain values, which may be a stranger's


def _plain(text: str | bytes, is_json: bool) -> Any:
    """Return the values in a text: mappings, lists and texts; a number of YAML or JSON stays as written.

    Raises:
        DataError: if it is too large, nested too deeply, has anchors or repeated keys, or is not valid.
    """
    if len(text) > _BYTES:
        raise DataError("It is larger than 1 MiB. Use a smaller one.")
    as_text: Any = {"parse_int": str, "parse_float": str, "parse_constant": str}
    try:
        text = text.decode("utf-8-sig") if isinstance(text, bytes) else text
        return json.loads(text, object_pairs_hook=_pairs, **as_text) if is_json else yaml.load(text, _Texts)
    except DataError:
        raise
    except (yaml.YAMLError, ValueError, TypeError, RecursionError) as error:
        what = "JSON" if is_json else "YAML"
        raise DataError(f"It is not valid {what} ({shown(' '.join(str(error).split()), 300)}). Fix the file.") from error


class _Texts(yaml.BaseLoader):  # type: ignore[misc]
    """Read every scalar as text, so that ``no`` is a category and a date stays as written; refuse anchors and repeated keys."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        event = self.peek_event()
        if getattr(event, "anchor", None) is not None:
            raise DataError(f"Line {event.start_mark.line + 1} has a YAML anchor or alias. Write the value out.")
        return super().compose_node(parent, index)

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        _pairs([(str(key.value), None) for key, _ in node.value], f" in line {node.start_mark.line + 1} or below")
        return super().construct_mapping(node, deep)


def _pairs(found: list[tuple[str, Any]], where: str = "") -> dict[str, Any]:
    for name in repeated(name for name, _ in found):
        raise DataError(f"The key '{shown(name)}' occurs twice{where}. Remove one.")
    return dict(found)


def _refuse(where: str, what: str, fix: str = "") -> NoReturn:
    """Raise a :class:`DataError` that names the place, the problem and its fix."""
    raise DataError(f"{where[0].upper()}{where[1:]}: {what}.{' ' if fix else ''}{fix}")


def _need(condition: bool, where: str, what: str, fix: str = "") -> None:
    if not condition:
        _refuse(where, what, fix)


def mapping_of(value: Any, where: str, known: Sequence[str]) -> Mapping[str, Any]:
    """Return a mapping, of which all keys are known.

    Raises:
        DataError: naming the place.
    """
    if not isinstance(value, Mapping):
        _refuse(where, "a mapping is missing", f"Its keys are {listed(known)}.")
    for key in value:
        if key not in known:
            fix = f"Use one of: {listed(known)}.{did_you_mean(shown(key), known)}"
            _refuse(where, f"the key '{shown(key)}' is not supported", fix)
    return value


def _list(value: Any, where: str) -> list[Any]:
    if not isinstance(value, list):
        _refuse(where, "a list is missing")
    return value


def _text(value: Any, where: str) -> str:
    """Return a short text without control characters."""
    if isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, str):
        _refuse(where, "a text is missing")
    _need(len(value) <= _NAME, where, f"'{shown(value, 20)}' has {len(value)} characters, but at most {_NAME} are supported")
    _need(value.isprintable(), where, f"'{shown(value)}' contains control characters", "Remove them.")
    return value


def _check_texts(found: Mapping[str, Any], where: str) -> None:
    """Check the texts that are for readers alone."""
    for key in ("title", "description"):
        _need(isinstance(found.get(key, ""), str), where, f"'{key}' is not a text")


def _name(value: Any, where: str) -> str:
    """Return a name, which is no formula for a spreadsheet that opens a table with it."""
    name = _text(value, where)
    _need(name != "" and name == name.strip(), where, f"the name '{name}' is empty, or begins or ends with a space")
    risky = name[0] in "=@" or (name[0] in "+-" and any(letter.isalpha() or letter in "(|!" for letter in name[1:]))
    what = f"a spreadsheet would run the name '{name}' as a formula"
    _need(not risky or number_in(name) is not None, where, what, "Begin it with a letter.")
    return name
