"""Read plain values from a YAML or JSON file that may come from someone else: bounded, without anchors, code or patterns."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping
from datetime import date, datetime
from typing import Any, NoReturn

import yaml

from fl_lightning.errors import DataError, did_you_mean

BYTES = 2**20
"""The size of the largest file."""
NAME = 100
"""The length of the longest name."""
ISO = "%Y-%m-%d"
"""How a schema writes dates."""
_DEPTH, _NODES, _TEXT = 8, 200_000, 2000
_TOO_MANY = f"It has more than {_NODES} keys and values. Use a smaller one."
_LARGEST = 1e30
_TRUE, _FALSE = ("true", "1", "1.0", "yes"), ("false", "0", "0.0", "no")


def parse_plain(text: str, is_json: bool) -> Any:
    """Return the values in a text: mappings, lists and texts; a number of YAML or JSON stays as written.

    Raises:
        DataError: if it is too large, nested too deeply, has anchors or repeated keys, or is not valid.
    """
    if len(text) > BYTES:
        raise DataError("It is larger than 1 MiB. Use a smaller one.")
    try:
        values = _from_json(text) if is_json else yaml.load(text, _Texts)
    except DataError:
        raise
    except (yaml.YAMLError, ValueError, TypeError, RecursionError) as error:
        what = "JSON" if is_json else "YAML"
        raise DataError(f"It is not valid {what} ({shown(' '.join(str(error).split()), 300)}). Fix the file.") from error
    if _size(values, 0) > _NODES:
        raise DataError(_TOO_MANY)
    return values


class _Texts(yaml.BaseLoader):  # type: ignore[misc]
    """Read every scalar as text, so that ``no`` is a category and a date stays as written; refuse anchors and repeated keys."""

    _depth = _nodes = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        event = self.peek_event()
        if self.check_event(yaml.AliasEvent) or getattr(event, "anchor", None) is not None:
            raise DataError(f"Line {event.start_mark.line + 1} has a YAML anchor or alias. Write the value out.")
        self._depth, self._nodes = self._depth + 1, self._nodes + 1
        if self._nodes > _NODES:
            raise DataError(_TOO_MANY)
        if self._depth > _DEPTH:
            raise DataError(f"Line {event.start_mark.line + 1} is nested deeper than {_DEPTH} levels. No part of a schema is.")
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        seen: set[str] = set()
        for key, _ in node.value:
            if str(key.value) in seen:
                raise DataError(f"Line {key.start_mark.line + 1} has the key '{shown(key.value)}' again. Remove one.")
            seen.add(str(key.value))
        return super().construct_mapping(node, deep)


def _from_json(text: str) -> Any:
    def pairs(found: list[tuple[str, Any]]) -> dict[str, Any]:
        values = dict(found)
        if len(values) < len(found):
            twice, _ = Counter(name for name, _ in found).most_common(1)[0]
            raise DataError(f"The key '{shown(twice)}' occurs twice. Remove one.")
        return values

    return json.loads(text, object_pairs_hook=pairs, parse_int=str, parse_float=str, parse_constant=str)


def _size(values: Any, depth: int) -> int:
    """Return the number of keys and values, which are nested no deeper than a schema is."""
    if depth > _DEPTH:
        raise DataError(f"It is nested deeper than {_DEPTH} levels. No part of a schema is.")
    inner = values.values() if isinstance(values, dict) else values if isinstance(values, list) else ()
    return 1 + (len(values) if isinstance(values, dict) else 0) + sum(_size(value, depth + 1) for value in inner)


def shown(text: object, most: int = 60) -> str:
    """Return a stranger's text for a message: one line, without control characters, shortened."""
    line = "".join(letter if letter.isprintable() else "?" for letter in str(text)[: most + 1])
    return line if len(line) <= most else f"{line[: most - 3]}..."


def refuse(where: str, what: str, fix: str = "") -> NoReturn:
    """Raise a :class:`DataError` that names the place, the problem and its fix."""
    raise DataError(f"{where[0].upper()}{where[1:]}: {what}.{' ' if fix else ''}{fix}")


def mapping_of(value: Any, where: str, known: tuple[str, ...]) -> Mapping[str, Any]:
    """Return a mapping, of which all keys are known."""
    if not isinstance(value, dict):
        refuse(where, "a mapping is missing", f"Write '{known[0]}: ...'.")
    for key in value:
        if key not in known:
            more = (
                " A schema has no patterns; use 'enum', or a minimum." if key == "pattern" else did_you_mean(shown(key), known)
            )
            refuse(where, f"the key '{shown(key)}' is not supported", f"Keys: {', '.join(known)}.{more}")
    return value


def list_of(value: Any, where: str, most: int) -> list[Any]:
    """Return a list with at most so many entries."""
    if not isinstance(value, list):
        refuse(where, "a list is missing")
    if len(value) > most:
        refuse(where, f"the list has {len(value)} entries, but at most {most} are supported")
    return value


def text_of(value: Any, where: str, most: int = _TEXT) -> str:
    """Return a text of at most so many characters; a short one has no control characters."""
    if isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, str):
        refuse(where, "a text is missing")
    if len(value) > most:
        refuse(where, f"'{shown(value, 20)}' has {len(value)} characters, but at most {most} are supported")
    if most < _TEXT and not all(letter.isprintable() for letter in value):
        refuse(where, f"'{shown(value)}' contains control characters", "Remove them.")
    return value


def name_of(value: Any, where: str) -> str:
    """Return a name, which is no formula for a spreadsheet that opens a table with it."""
    name = text_of(value, where, NAME)
    if not name or name != name.strip():
        refuse(where, f"the name '{name}' is empty, or begins or ends with a space")
    risky = name[0] in "=@" or (name[0] in "+-" and any(letter.isalpha() or letter in "(|!" for letter in name[1:]))
    if risky and not is_number(name):
        refuse(where, f"a spreadsheet would run the name '{name}' as a formula", "Begin it with a letter.")
    return name


def is_number(text: str) -> bool:
    """Return whether a text is a finite number."""
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def number_of(value: Any, where: str) -> float:
    """Return a number."""
    if not isinstance(value, str) or not is_number(value) or abs(float(value)) > _LARGEST or "_" in value:
        refuse(where, f"'{shown(value)}' is not a number up to 1e30")
    return float(value)


def boolean_of(text: str) -> float | None:
    """Return 1 for yes, 0 for no, and None for anything else."""
    lower = text.lower()
    return 1.0 if lower in _TRUE else 0.0 if lower in _FALSE else None


def boolean_from(value: Any, where: str) -> bool:
    """Return true or false."""
    found = boolean_of(text_of(value, where))
    if found is None:
        refuse(where, f"'{shown(value)}' is neither true nor false")
    return bool(found)


def parse_date(text: str, form: str = ISO) -> date:
    """Return a day written as 2024-12-31, or as the form says.

    Raises:
        ValueError: if it is not one.
    """
    return datetime.strptime(text, form).date()


def date_of(value: Any, where: str) -> date:
    """Return a day."""
    try:
        return parse_date(text_of(value, where, 20))
    except ValueError:
        refuse(where, f"'{shown(value)}' is not a date", "Write it as 2024-12-31.")
