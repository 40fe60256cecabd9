"""Configuration files: those of the package by name, and the ``base`` on which a file builds."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

import yaml

from fl_lightning.compat.pyyaml import LOADER
from fl_lightning.errors import ConfigurationError, did_you_mean

BASE = "base"
"""The key of a configuration file that names the file or files on which it builds."""

_SUFFIXES = (".yaml", ".yml", ".json")
_OLD_NUMBER = re.compile(r"[-+]?(0[0-7_]+|[1-9][0-9_]*(:[0-5]?[0-9])+)")
"""Octal and sexagesimal numbers of YAML 1.1, which are names of clients, codes or times to those who write them."""


def folder() -> Path:
    """Return the folder of the package's configurations: inside the package in a wheel, next to it in a checkout."""
    package = Path(__file__).parents[1]
    return next((path for path in (package / "configs", package.parent / "configs") if path.is_dir()), package / "configs")


def names() -> list[str]:
    """Return the package's configurations, such as ``adafed_mnist`` and ``data/label_skew``."""
    root = folder()
    return sorted(path.relative_to(root).with_suffix("").as_posix() for path in root.rglob("*.yaml"))


def find(name: str, beside: Path | None = None, group: str = "") -> Path:
    """Return the file that a name refers to.

    A path takes precedence over a name of the package; both may omit ``.yaml``.

    Args:
        name: a path, or the name of one of the package's configurations.
        beside: folder that a path is relative to; the working directory by default.
        group: folder of the package's configurations to search first, such as ``studies``.

    Raises:
        ConfigurationError: if the file does not exist; the message suggests the nearest names.
    """
    own = (beside or Path()) / Path(name).expanduser()
    for path in (own, own.with_name(f"{own.name}.yaml") if own.name else own):
        if path.is_file():
            return path
    short = name.removesuffix(".yaml")
    known = names()
    for packaged in (f"{group}/{short}", short):
        if packaged in known:
            return folder() / f"{packaged}.yaml"
    where = f"no file '{own}'" if own.parent != Path() else f"no file '{name}' in '{Path.cwd()}'"
    if own.is_dir():
        where = f"'{own}' is a folder"
    raise ConfigurationError(
        f"There is no configuration '{name}': {where}, and the package has no configuration of that name."
        f"{_nearest(name, own.parent)} List those of the package: fl-lightning configs."
    )


def _nearest(name: str, beside: Path) -> str:
    """Suggest the nearest file in the folder, the nearest name of the package, or the same name in another folder of it."""
    own = [str(path) for suffix in _SUFFIXES for path in beside.glob(f"*{suffix}")] if beside.is_dir() else []
    short = name.removesuffix(".yaml").removeprefix("configs/")
    stem = short.rpartition("/")[2]
    elsewhere = [known for known in names() if known.rpartition("/")[2] == stem]
    return did_you_mean(name, own) or did_you_mean(short, elsewhere or names(), cutoff=0.5)


@dataclass(frozen=True)
class Entry:
    """Hold a setting as it is written in a file.

    Attributes:
        key: YAML node of its name.
        node: YAML node of its value.
    """

    key: Any
    node: Any

    @property
    def line(self) -> int:
        """The line of its name, from 1."""
        return int(self.key.start_mark.line) + 1

    @property
    def text(self) -> str | None:
        """The value, if it is a word or a number."""
        return str(self.node.value) if isinstance(self.node, yaml.ScalarNode) else None

    @property
    def is_word(self) -> bool:
        """Whether the value is text, and not a number, truth value or null."""
        return isinstance(self.node, yaml.ScalarNode) and self.node.tag.endswith(":str")


@dataclass(frozen=True)
class ConfigFile:
    """Hold what must be known of a configuration file before it is parsed.

    Attributes:
        path: path of the file.
        settings: all settings by their full names; items of lists by their numbers.
    """

    path: Path
    settings: dict[str, Entry]

    @cached_property
    def parts(self) -> frozenset[str]:
        """Return the parts of a task that the file defines: a ``model``, and the ``data`` for the model."""
        found = {part for part, name in (("model", "model"), ("data", "data.datamodule")) if self._has_class(name)}
        own = any(name.startswith("data.clients.") for name in self.settings)  # each client has a datamodule of its own
        return frozenset(found | ({"data"} if own else set()))

    def _has_class(self, name: str) -> bool:
        return f"{name}.class_path" in self.settings or (name in self.settings and self.settings[name].is_word)

    @property
    def is_complete(self) -> bool:
        """Whether the file defines a whole task."""
        return self.parts == {"model", "data"}

    @property
    def bases(self) -> list[str]:
        """The files on which it builds, as it names them.

        Raises:
            ConfigurationError: if ``base`` is not a name or a list of names.
        """
        entry = self.settings.get(BASE)
        if entry is None:
            return []
        is_list = isinstance(entry.node, yaml.SequenceNode)
        entries = [Entry(entry.key, node) for node in entry.node.value] if is_list else [entry]
        if not all(each.is_word for each in entries):
            raise ConfigurationError(
                f"'{self.path}', line {entry.line}: '{BASE}' must name a configuration file, or a list of them. Write "
                f"'{BASE}: adafed_mnist', or a path relative to this file."
            )
        return [str(each.node.value) for each in entries]


def read(path: Path) -> ConfigFile:
    """Read a configuration file.

    Raises:
        ConfigurationError: if it cannot be read, is not YAML, or sets a setting twice; the message gives the line.
    """
    try:
        node = yaml.compose(path.read_text(encoding="utf-8"), LOADER)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        what = getattr(error, "problem", None) or str(error)
        raise ConfigurationError(f"'{path}'{where} is not valid YAML: {what}. Correct it there or just before.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"Cannot read the configuration '{path}': {error}. Check its path and permissions.") from None
    if not isinstance(node, yaml.MappingNode):
        raise ConfigurationError(
            f"The configuration '{path}' {'is empty' if node is None else 'has no settings with names'}. Write settings "
            "such as 'trainer: {max_epochs: 3}'. For a complete example: fl-lightning configs show adafed_mnist."
        )
    return ConfigFile(path, _settings(node, f"'{path}', "))


def refuse_unclear(text: str, where: str = "") -> None:
    """Refuse YAML that sets something twice, or has a number in a form that no one means; other mistakes are the parser's.

    Args:
        text: the YAML.
        where: what comes before the line in messages.

    Raises:
        ConfigurationError: giving the line.
    """
    with suppress(yaml.YAMLError):
        _settings(yaml.compose(text, LOADER), where)


def _settings(node: Any, where: str) -> dict[str, Entry]:
    """Return all settings below a YAML node, after refusing unclear ones."""
    settings: dict[str, Entry] = {}
    for name, entry in _entries(node):
        if name in settings:
            raise ConfigurationError(
                f"{where}line {entry.line}: '{name}' occurs twice, first in line {settings[name].line}. Merge both, because "
                "YAML would drop the first."
            )
        for one in (entry.key, entry.node):
            if isinstance(one, yaml.ScalarNode) and one.tag.endswith(":int") and _OLD_NUMBER.fullmatch(one.value):
                number = yaml.load(one.value, LOADER)
                plain = one is entry.node and ":" not in one.value
                fix = f"Put quotes around it{f', or write {number}' if plain else ''}."
                raise ConfigurationError(f"{where}line {entry.line}: YAML reads {one.value} as the number {number}. {fix}")
        settings[name] = entry
    return settings


def _entries(node: Any, prefix: str = "") -> Iterator[tuple[str, Entry]]:
    """Yield all settings below a YAML node; skip a key that merges another mapping."""
    if isinstance(node, yaml.MappingNode):
        pairs = [(key.value, key, value) for key, value in node.value if isinstance(key, yaml.ScalarNode)]
        pairs = [(name, key, value) for name, key, value in pairs if not key.tag.endswith(":merge")]
    elif isinstance(node, yaml.SequenceNode):
        pairs = [(str(number), value, value) for number, value in enumerate(node.value)]
    else:
        return
    for name, key, value in pairs:
        yield f"{prefix}{name}", Entry(key, value)
        yield from _entries(value, f"{prefix}{name}.")


def arrange(given: Sequence[Path], trail: tuple[Path, ...] = ()) -> tuple[list[Path], list[list[Path]]]:
    """Return what to load below all of several files, and then, for each of them, its bases and the file itself.

    A base that has been loaded is not loaded again, because that would undo the files in between. Bases up to a complete one
    (a model and its data) lie below all files, and are left out if the given files define a task themselves: whoever puts
    ``data/label_skew`` on top of ``fedloss_cifar10`` does not want settings of ``adafed_mnist`` in between.

    Args:
        given: files; later ones override earlier ones.
        trail: files whose bases are being arranged.

    Raises:
        ConfigurationError: if a base is missing, or if bases form a circle.
    """
    files = [read(path) for path in given]
    loaded: set[Path] = set()
    below: list[Path] = []
    placed: list[list[Path]] = []
    for file in files:
        bases = _bases(file, trail)
        others = frozenset(chain.from_iterable(other.parts for other in files if other is not file))
        tasks = [number for number, path in enumerate(bases) if read(path).is_complete]
        if tasks and not any(path.resolve() in loaded for path in bases):
            task, bases = bases[: tasks[-1] + 1], bases[tasks[-1] + 1 :]
            below = below or ([] if len(others) == 2 else task)
        placed.append([*(path for path in bases if path.resolve() not in loaded), file.path])
        loaded.update(path.resolve() for path in (*below, *placed[-1]))
    return below, placed


def _bases(file: ConfigFile, trail: tuple[Path, ...]) -> list[Path]:
    """Return the bases of a file in loading order."""
    trail = (*trail, file.path)
    found = [find(name, beside=file.path.parent) for name in file.bases]
    for path in found:
        known = [earlier.resolve() for earlier in trail]
        if path.resolve() in known:
            circle = [*trail[known.index(path.resolve()) :], path]
            raise ConfigurationError(
                f"The '{BASE}' entries of these configurations form a circle: {' -> '.join(map(str, circle))}. Remove one."
            )
    below, placed = arrange(found, trail)
    return list(chain(below, *placed))


def without(text: str, names: Collection[str]) -> str:
    """Return the text of a configuration without some of its top-level settings."""
    node = yaml.compose(text, LOADER)
    entries = node.value if isinstance(node, yaml.MappingNode) else []
    found = [number for number, (key, _) in enumerate(entries) if isinstance(key, yaml.ScalarNode) and key.value in names]
    if found and len(found) == len(entries):
        return "{}"
    for number in reversed(found):
        end = entries[number + 1][0].start_mark.index if number + 1 < len(entries) else entries[number][1].end_mark.index
        text = text[: entries[number][0].start_mark.index] + text[end:]
    return text
