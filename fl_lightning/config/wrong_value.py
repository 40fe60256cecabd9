"""Read in a parser's message which setting has a value of a wrong type, however deep it is in classes and unions."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import takewhile

from fl_lightning.compat.jsonargparse import in_words

_KEY = re.compile(r'Parser key "([\w.]+)":')
_CLASS = re.compile(r"class_path(?: |=)'([\w.]+)'")
_WANTED = re.compile(
    r"^[\s-]*(?:Parser key .*: )?Expected an? (?!path but|dot import|<class 'NoneType'>)(.*?)(?:\. Got value: .*)?$"
)
_VALUE = re.compile(r"(?:Given|Got) value: (.*?)(?:\. Got value: .*)?$")
_OTHER = ("is not accepted", "has no attribute", "No module named", "are required", "is abstract", "has no class")
_LONGEST = 80


@dataclass(frozen=True)
class WrongValue:
    """Hold a value of a wrong type.

    Attributes:
        setting: full name of the setting, as a user types it.
        value: the value as it was read.
        wanted: what is allowed, in words.
        owner: dotted path of the class that has the setting; None if it is no class's.
    """

    setting: str
    value: str
    wanted: str
    owner: str | None = None

    def __str__(self) -> str:
        """Return what is wrong, in a sentence."""
        value = self.value if len(self.value) <= _LONGEST else f"{self.value[: _LONGEST - 5].rstrip()}[...]"
        plain = re.fullmatch(r"[-+.\deE]+|[\[{].*", value)
        return (
            f"'{self.setting}' must be {self.wanted}, but is {'null' if value == 'None' else value if plain else repr(value)}."
        )


def wrong_value(message: str) -> WrongValue | None:
    """Return what a parser's message says of a wrong value; None if it is about something else.

    Args:
        message: the message of jsonargparse, whose indentation shows which part belongs to which.
    """
    lines, start = message.splitlines(), 0
    above: list[tuple[int, str]] = []
    deepest: list[tuple[int, str]] = []
    for number, line in enumerate(lines):
        for key in _KEY.findall(line):
            above = [(indent, name) for indent, name in above if indent < _indent(line)] + [(_indent(line), key)]
            if len(above) > len(deepest):
                deepest, start = list(above), number
    if not deepest:
        return None
    depth = deepest[-1][0]
    below = takewhile(lambda line: not line.strip() or _indent(line) > depth, lines[start + 1 :])
    inner = [lines[start].rpartition('":')[2], *below]
    wanted = dict.fromkeys(in_words(f"a {found[1]}") for line in inner if (found := _WANTED.match(line)))
    value = next((found[1] for line in inner if (found := _VALUE.search(line))), None)
    if (
        not wanted
        or value is None
        or value.startswith("NestedArg(")
        or any(cause in line for cause in _OTHER for line in inner)
    ):
        return None
    classes = _CLASS.findall("\n".join(lines[: start + len(inner)]))
    return WrongValue(_joined([key for _, key in deepest]), value, " or ".join(wanted), classes[-1] if classes else None)


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _joined(keys: list[str]) -> str:
    name = ""
    for key in keys:
        name = key if not name or key.startswith(f"{name}.") else f"{name}.{key}"
    return name
