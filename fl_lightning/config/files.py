"""Configuration files: those of the package by name, and the ``base`` on which a file builds."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

from fl_lightning.compat.pyyaml import LOADER
from fl_lightning.errors import ConfigurationError, did_you_mean

BASE = "base"
"""The key of a configuration file that names the file or files on which it builds."""

_TASK = {"model", "data"}
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
    short, known = name.removesuffix(".yaml").removeprefix("configs/"), names()
    for packaged in (f"{group}/{name}", name):
        if packaged.removesuffix(".yaml") in known:
            return folder() / f"{packaged.removesuffix('.yaml')}.yaml"
    files = [str(path) for path in own.parent.glob("*.y*ml")]
    same = [packaged for packaged in known if packaged.rpartition("/")[2] == short.rpartition("/")[2]]
    where = f"'{own}' is a folder" if own.is_dir() else f"no file '{own}' in '{Path.cwd()}'"
    near = did_you_mean(name, files) or did_you_mean(short, same or known, cutoff=0.5)
    raise ConfigurationError(
        f"There is no configuration '{name}': {where}, and the package has none of that name.{near} List those of the "
        "package: fl-lightning configs."
    )


def write_new(path: Path, text: str) -> None:
    """Write a file that does not exist yet.

    Raises:
        ConfigurationError: if it does, or cannot be written.
    """
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise ConfigurationError(f"'{path}' already exists and was not changed. Name another file.") from None
    except OSError as error:
        raise ConfigurationError(f"Cannot write '{path}': {error}. Name another file.") from None


def read(path: Path) -> dict[str, Any]:
    """Return the settings of a configuration file.

    Raises:
        ConfigurationError: if it cannot be read, is not YAML, or sets a setting twice; the message gives the line.
    """
    try:
        text = path.read_text(encoding="utf-8")
        refuse_unclear(text, f"'{path}', ")
        settings = yaml.load(text, LOADER)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        what = getattr(error, "problem", None) or str(error)
        raise ConfigurationError(f"'{path}'{where} is not valid YAML: {what}. Correct it there or just before.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"Cannot read the configuration '{path}': {error}. Check its path and permissions.") from None
    if not isinstance(settings, dict):
        raise ConfigurationError(
            f"The configuration '{path}' {'is empty' if settings is None else 'has no settings with names'}. Write settings "
            "such as 'trainer: {max_epochs: 3}'. For a complete example: fl-lightning configs show adafed_mnist."
        )
    return settings


def refuse_unclear(text: str, where: str = "") -> None:
    """Refuse YAML that sets something twice, or has a number in a form that no one means; other mistakes are the parser's.

    Args:
        text: the YAML.
        where: what comes before the line in messages.

    Raises:
        ConfigurationError: giving the line.
    """
    with suppress(yaml.YAMLError):
        _refuse_unclear(yaml.compose(text, LOADER), where)


def _refuse_unclear(node: Any, where: str) -> None:
    lines: dict[Any, int] = {}
    for key, value in node.value if isinstance(node, yaml.MappingNode) else []:
        line, name = key.start_mark.line + 1, str(key.value)
        if name in lines:
            raise ConfigurationError(
                f"{where}line {line}: '{name}' occurs twice, first in line {lines[name]}. Merge both, because YAML would drop "
                "the first."
            )
        lines[name] = line
        _refuse_unclear(key, where)
        _refuse_unclear(value, where)
    for item in node.value if isinstance(node, yaml.SequenceNode) else []:
        _refuse_unclear(item, where)
    if isinstance(node, yaml.ScalarNode) and node.tag.endswith(":int") and _OLD_NUMBER.fullmatch(node.value):
        raise ConfigurationError(
            f"{where}line {node.start_mark.line + 1}: YAML reads {node.value} as the number {yaml.load(node.value, LOADER)}. "
            "Put quotes around it, or write the number that you mean."
        )


def in_order(name: str, loaded: Sequence[Path] = ()) -> list[Path]:
    """Return the files to load for a configuration: its bases, unless they are loaded already, and then itself.

    A base that defines a whole task, a model and its data, is left out on top of another task: whoever puts ``data/label_skew``
    on top of ``fedloss_cifar10`` does not want settings of ``adafed_mnist`` in between.

    Args:
        name: a path, or the name of one of the package's configurations.
        loaded: the files that are loaded already; later ones override earlier ones.

    Raises:
        ConfigurationError: if a file is missing or wrong, or would undo the settings of one that comes before it.
    """
    path = find(name)
    settings = read(path)
    if "over" in settings:
        raise ConfigurationError(f"'{name}' is a study of many runs. Run it with: fl-lightning compare --config {name}")
    if BASE not in settings and _parts(settings) == _TASK and any(BASE in read(file) for file in loaded):
        raise ConfigurationError(f"'{name}' is a whole task, which would undo the settings before it. Give it first.")
    return _with_bases(path, list(loaded), ())[len(loaded) :]


def _with_bases(path: Path, loaded: list[Path], trail: tuple[Path, ...]) -> list[Path]:
    """Return files with the bases of another one and itself behind them."""
    known = [earlier.resolve() for earlier in trail]
    if path.resolve() in known:
        circle = " -> ".join(map(str, [*trail[known.index(path.resolve()) :], path]))
        raise ConfigurationError(f"The '{BASE}' entries of these configurations form a circle: {circle}. Remove one.")
    settings = read(path)
    given = settings.get(BASE, [])
    bases = given if isinstance(given, list) else [given]
    if not all(isinstance(one, str) for one in bases):
        raise ConfigurationError(
            f"'{path}': '{BASE}' must name a configuration file, or a list of them, but is {given}. Write '{BASE}: "
            "adafed_mnist', or a path relative to this file."
        )
    for name in bases:
        loaded = _with_bases(find(name, beside=path.parent), loaded, (*trail, path))
    if trail and path.resolve() in {file.resolve() for file in loaded}:
        return loaded
    if trail and loaded and not bases and _parts(settings) == _TASK:
        if set().union(*(_parts(read(file)) for file in loaded)) == _TASK:
            return loaded
        raise ConfigurationError(f"'{path}', a {BASE} of '{trail[-1]}', would undo '{loaded[-1]}'. Give '{trail[0]}' first.")
    return [*loaded, path]


def _parts(settings: dict[str, Any]) -> set[str]:
    """Return which parts of a task settings define: a ``model``, and the ``data`` for it."""
    data = settings.get("data")
    data = data if isinstance(data, dict) else {}
    both = {"model": settings.get("model"), "data": data.get("datamodule")}
    found = {part for part, value in both.items() if isinstance(value, str) or "class_path" in (value or {})}
    return found | {"data"} if data.get("clients") else found


def without(text: str, names: Collection[str]) -> str:
    """Return the text of a configuration without some of its top-level settings."""
    node = yaml.compose(text, LOADER)
    if isinstance(node, yaml.MappingNode):
        node.value = [one for one in node.value if not (isinstance(one[0], yaml.ScalarNode) and one[0].value in names)]
    return str(yaml.serialize(node, Dumper=yaml.SafeDumper, allow_unicode=True))
