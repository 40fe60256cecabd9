"""Read a schema from YAML or JSON. It may come from someone else, so it is bounded, and has no code, patterns or addresses."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any, NoReturn, get_args

import yaml

from fl_lightning.data.class_names import class_name
from fl_lightning.data.schema import Field, FieldType, Missing, Schema
from fl_lightning.errors import DataError, did_you_mean

BYTES = 2**20
"""The size of the largest file."""
ISO = "%Y-%m-%d"
"""How a schema writes dates."""
_NAME, _TEXT = 100, 2000
_DEPTH, _NODES = 8, 200_000
_FIELDS, _CATEGORIES, _FEATURES, _MARKERS = 5000, 1000, 100_000, 100
_LARGEST = 1e30
_KEYS = ("fields", "target", "missingValues", "title", "description")
_FIELD_KEYS = ("name", "type", "title", "description", "unit", "constraints", "missing", "since", "format")
_CONSTRAINTS = ("minimum", "maximum", "enum")
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
    found = _mapping(_plain(text, is_json), "the schema", _KEYS)
    _readers_texts(found, "")
    listed = _list(found.get("fields"), "'fields'", _FIELDS)
    fields = tuple(_field(value, f"field {number}") for number, value in enumerate(listed, 1))
    names = [field.name for field in fields]
    for name in repeated(names):
        raise DataError(f"Two fields have the name '{name}'. Give every field a name of its own.")
    markers = _list(found.get("missingValues", [""]), "'missingValues'", _MARKERS)
    texts = tuple(dict.fromkeys(_text(value, "'missingValues'", _NAME).strip() for value in markers))
    target = None if found.get("target") is None else _name(found["target"], "'target'")
    if target not in (None, *names):
        fix = did_you_mean(str(target), names).strip() or f"Add a field '{target}'."
        _refuse("'target'", f"no field has the name '{target}'", fix)
    schema = Schema(fields, target, texts)
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
    if not features and not schema.classes:
        raise DataError("It has neither features nor a target with classes. Add the fields.")
    if len(features) > _FEATURES:
        raise DataError(f"Its fields become {len(features)} features, but at most {_FEATURES} are supported.")
    for name in repeated(features):
        raise DataError(f"Two features would have the name '{name}'. Rename one field or category.")


def _field(value: Any, where: str) -> Field:
    found = _mapping(value, where, _FIELD_KEYS)
    name = _name(found.get("name"), f"{where}, 'name'")
    where = f"field '{name}'"
    kind = _text(found.get("type", ""), f"{where}, 'type'", _NAME)
    if kind not in _TYPES:
        _refuse(where, f"the type '{kind}' is not supported", f"Types: {', '.join(_TYPES)}.{did_you_mean(kind, _TYPES)}")
    _readers_texts(found, f"{where}, ")
    fix = "Dates are written as 2024-12-31; a site converts its own with 'columns'."
    _need(found.get("format", "default") == "default", where, "'format' is not supported", fix)
    limits = _mapping(found.get("constraints", {}), f"{where}, 'constraints'", _CONSTRAINTS)
    since = _date(found["since"], f"{where}, 'since'") if "since" in found else None
    _need(since is not None or kind != "date", where, "a date needs 'since', the day from which days are counted")
    _need(since is None or kind == "date", where, "'since' is for dates")
    unit = _text(found.get("unit", ""), f"{where}, 'unit'", _NAME)
    plain = Field(name, kind, unit, enum=_enum(limits, kind, where), since=since)
    bounded = not plain.enum and kind not in ("boolean", "string")
    unbounded = "'minimum' and 'maximum' are for numbers and dates without 'enum'"
    _need(bounded or not {"minimum", "maximum"} & set(limits), where, unbounded)
    given = [key for key in ("minimum", "maximum") if limits.get(key) is not None]
    ends: dict[str, Any] = {key: _value(plain, limits[key], f"{where}, '{key}'") for key in given}
    _need(len(ends) < 2 or ends["minimum"] <= ends["maximum"], where, "'minimum' is above 'maximum'")
    return _with_missing(replace(plain, **ends), found.get("missing", "refuse"), f"{where}, 'missing'")


def _enum(limits: Mapping[str, Any], kind: str, where: str) -> tuple[str, ...]:
    if "enum" not in limits:
        what = "a text needs 'constraints: {enum: [...]}', its categories in order"
        _need(kind != "string", where, what, "Or remove the field.")
        return ()
    _need(kind in ("string", "integer"), where, f"'enum' is for the types string and integer, not for {kind}")
    values = _list(limits["enum"], f"{where}, 'enum'", _CATEGORIES)
    names = tuple(_name(value, f"{where}, 'enum'") for value in values)
    for twice in repeated(map(class_name, names)):
        _refuse(where, f"'enum' has '{twice}' twice")
    _need(len(names) > 1, where, "'enum' needs two or more categories")
    whole = kind == "string" or all(_is_number(name) and float(name).is_integer() for name in names)
    _need(whole, where, "'enum' of an integer has other values than whole numbers", "Set 'type: string'.")
    return names


def _with_missing(field: Field, value: Any, where: str) -> Field:
    """Return the field with what its missing values become."""
    kind, given = next(iter(value.items())) if isinstance(value, dict) and len(value) == 1 else (value, None)
    kinds: tuple[Missing, ...] = get_args(Missing)
    alone, is_category = isinstance(value, str), bool(field.enum) or field.type == "boolean"
    fix = "Write refuse, {constant: VALUE}, indicator, {indicator: VALUE}, mean, or most_frequent."
    fits = kind in kinds and kind != "constant" if alone else kind in ("constant", "indicator")
    _need(fits, where, f"'{shown(value)}' is not supported", fix)
    fix = "Write indicator, {constant: VALUE}, or the other one of mean and most_frequent."
    _need(kind != "mean" or not is_category, where, "categories have no mean", fix)
    _need(kind != "most_frequent" or is_category, where, "only categories and booleans have a most frequent value", fix)
    constant = None if alone else _value(field, given, where)
    whole = constant is None or field.type != "integer" or constant.is_integer()
    _need(whole, where, f"'{shown(given)}' is not a whole number")
    return replace(field, missing=kind, constant=0.0 if alone and kind == "indicator" and not field.enum else constant)


def _value(field: Field, given: Any, where: str) -> float:
    """Return a value of a field as a number: of days, of a category, 0 or 1 for false or true."""
    if field.enum:
        name = _text(given, where, _NAME)
        _need(name in field.enum, where, f"'{name}' is not a category", f"Categories: {', '.join(field.enum[:20])}.")
        return float(field.enum.index(name))
    if field.type == "boolean":
        return float(_boolean(given, where))
    if field.since is not None:
        return float((_date(given, where) - field.since).days)
    return _number(given, where)


# ---------------------------------------------------------------- plain values, which may be a stranger's


def _plain(text: str, is_json: bool) -> Any:
    """Return the values in a text: mappings, lists and texts; a number of YAML or JSON stays as written.

    Raises:
        DataError: if it is too large, nested too deeply, has anchors or repeated keys, or is not valid.
    """
    if len(text) > BYTES:
        raise DataError("It is larger than 1 MiB. Use a smaller one.")
    as_text: Any = {"parse_int": str, "parse_float": str, "parse_constant": str}
    try:
        values = json.loads(text, object_pairs_hook=_pairs, **as_text) if is_json else yaml.load(text, _Texts)
    except DataError:
        raise
    except (yaml.YAMLError, ValueError, TypeError, RecursionError) as error:
        what = "JSON" if is_json else "YAML"
        raise DataError(f"It is not valid {what} ({shown(' '.join(str(error).split()), 300)}). Fix the file.") from error
    _bound(_size(values, 0), 0)
    return values


class _Texts(yaml.BaseLoader):  # type: ignore[misc]
    """Read every scalar as text, so that ``no`` is a category and a date stays as written; refuse anchors and repeated keys."""

    _depth = _nodes = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        event = self.peek_event()
        if self.check_event(yaml.AliasEvent) or getattr(event, "anchor", None) is not None:
            raise DataError(f"Line {event.start_mark.line + 1} has a YAML anchor or alias. Write the value out.")
        self._depth, self._nodes = self._depth + 1, self._nodes + 1
        _bound(self._nodes, self._depth)
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        _pairs([(str(key.value), None) for key, _ in node.value], f" in line {node.start_mark.line + 1} or below")
        return super().construct_mapping(node, deep)


def _pairs(found: list[tuple[str, Any]], where: str = "") -> dict[str, Any]:
    for name in repeated(name for name, _ in found):
        raise DataError(f"The key '{shown(name)}' occurs twice{where}. Remove one.")
    return dict(found)


def _bound(nodes: int, depth: int) -> None:
    if nodes > _NODES:
        raise DataError(f"It has more than {_NODES} keys and values. Use a smaller one.")
    if depth > _DEPTH:
        raise DataError(f"It is nested deeper than {_DEPTH} levels. No part of a schema is.")


def _size(values: Any, depth: int) -> int:
    """Return the number of keys and values, which are nested no deeper than a schema is."""
    _bound(0, depth)
    inner = values.values() if isinstance(values, dict) else values if isinstance(values, list) else ()
    return 1 + (len(values) if isinstance(values, dict) else 0) + sum(_size(value, depth + 1) for value in inner)


def repeated(names: Iterable[str]) -> list[str]:
    """Return the names that occur more than once."""
    return [name for name, count in Counter(names).items() if count > 1]


def shown(text: object, most: int = 60) -> str:
    """Return a stranger's text for a message: one line, without control characters, shortened."""
    line = "".join(letter if letter.isprintable() else "?" for letter in str(text)[: most + 1])
    return line if len(line) <= most else f"{line[: most - 3]}..."


def _refuse(where: str, what: str, fix: str = "") -> NoReturn:
    """Raise a :class:`DataError` that names the place, the problem and its fix."""
    raise DataError(f"{where[0].upper()}{where[1:]}: {what}.{' ' if fix else ''}{fix}")


def _need(condition: bool, where: str, what: str, fix: str = "") -> None:
    if not condition:
        _refuse(where, what, fix)


def _mapping(value: Any, where: str, known: tuple[str, ...]) -> Mapping[str, Any]:
    """Return a mapping, of which all keys are known."""
    if not isinstance(value, dict):
        _refuse(where, "a mapping is missing", f"Write '{known[0]}: ...'.")
    for key in value:
        if key not in known:
            hint = (
                " A schema has no patterns; use 'enum', or a minimum." if key == "pattern" else did_you_mean(shown(key), known)
            )
            _refuse(where, f"the key '{shown(key)}' is not supported", f"Keys: {', '.join(known)}.{hint}")
    return value


def _list(value: Any, where: str, most: int) -> list[Any]:
    """Return a list with at most so many entries."""
    if not isinstance(value, list):
        _refuse(where, "a list is missing")
    _need(len(value) <= most, where, f"the list has {len(value)} entries, but at most {most} are supported")
    return value


def _text(value: Any, where: str, most: int = _TEXT) -> str:
    """Return a text of at most so many characters; a short one has no control characters."""
    if isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, str):
        _refuse(where, "a text is missing")
    if len(value) > most:
        _refuse(where, f"'{shown(value, 20)}' has {len(value)} characters, but at most {most} are supported")
    if most < _TEXT and not value.isprintable():
        _refuse(where, f"'{shown(value)}' contains control characters", "Remove them.")
    return value


def _readers_texts(found: Mapping[str, Any], where: str) -> None:
    """Check the texts that are for readers alone."""
    for key in ("title", "description"):
        _text(found.get(key, ""), f"{where}'{key}'" if where else key)


def _name(value: Any, where: str) -> str:
    """Return a name, which is no formula for a spreadsheet that opens a table with it."""
    name = _text(value, where, _NAME)
    _need(name != "" and name == name.strip(), where, f"the name '{name}' is empty, or begins or ends with a space")
    risky = name[0] in "=@" or (name[0] in "+-" and any(letter.isalpha() or letter in "(|!" for letter in name[1:]))
    what = f"a spreadsheet would run the name '{name}' as a formula"
    _need(not risky or _is_number(name), where, what, "Begin it with a letter.")
    return name


def _is_number(text: str) -> bool:
    """Return whether a text is a finite number."""
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def _number(value: Any, where: str) -> float:
    if not isinstance(value, str) or not _is_number(value) or abs(float(value)) > _LARGEST or "_" in value:
        _refuse(where, f"'{shown(value)}' is not a number up to 1e30")
    return float(value)


def boolean_of(text: str) -> float | None:
    """Return 1 for yes, 0 for no, and None for anything else."""
    return {"true": 1.0, "1": 1.0, "1.0": 1.0, "yes": 1.0, "false": 0.0, "0": 0.0, "0.0": 0.0, "no": 0.0}.get(text.lower())


def _boolean(value: Any, where: str) -> bool:
    found = boolean_of(_text(value, where))
    if found is None:
        _refuse(where, f"'{shown(value)}' is neither true nor false")
    return bool(found)


def parse_date(text: str, form: str = ISO) -> date:
    """Return a day written as 2024-12-31, or as the form says.

    Raises:
        ValueError: if it is not one.
    """
    return datetime.strptime(text, form).date()


def _date(value: Any, where: str) -> date:
    try:
        return parse_date(_text(value, where, 20))
    except ValueError:
        _refuse(where, f"'{shown(value)}' is not a date", "Write it as 2024-12-31.")


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
    missing = field.missing if field.constant is None else {field.missing: _written(field, field.constant)}
    found = {"unit": field.unit, "since": field.since and field.since.isoformat(), "constraints": constraints}
    return {"name": field.name, "type": field.type, "missing": missing} | {key: value for key, value in found.items() if value}


def _written(field: Field, value: float) -> Any:
    """Return a value as a file has it: days as a date, 0 and 1 of a boolean as false and true, a category by its name."""
    if field.enum:
        return field.enum[int(value)]
    if field.since is not None:
        return (field.since + timedelta(days=value)).isoformat()
    return bool(value) if field.type == "boolean" else value
