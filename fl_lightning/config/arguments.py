"""``--config`` on the command line: turn names into paths, and load bases before the files that name them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from fl_lightning.config.files import ConfigFile, arrange, find, read
from fl_lightning.errors import ConfigurationError

_FLAG, _SHORT = "--config", "-c"
_OF_A_RUN = {"model", "data", "trainer", "federation"}


def name_files(arguments: Sequence[str]) -> list[str]:
    """Return the arguments of a command on studies with the path of its file for each ``--config``.

    Args:
        arguments: arguments of a command.

    Raises:
        ConfigurationError: if a file is missing, is not YAML, or configures a single run.
    """
    return _replace(arguments, lambda given: ([], [[_of_a_study(name).path] for name in given]))


def _of_a_study(name: str) -> ConfigFile:
    file = read(find(name, group="studies"))
    if "over" not in file.settings and file.settings.keys() & _OF_A_RUN:
        raise ConfigurationError(
            f"'{name}' configures one run, not a study. Run it with: fl-lightning fit --config {name}; or compare settings of "
            f"it: fl-lightning compare --base {name} --over.learning_rate '[0.01, 0.1]'"
        )
    return file


def expand(arguments: Sequence[str]) -> list[str]:
    """Return the arguments of a subcommand with the bases of its configurations before them.

    Raises:
        ConfigurationError: if a file is missing, is not YAML, or has a wrong base.
    """
    return _replace(arguments, lambda given: arrange([_for_a_run(name).path for name in given]))


def _for_a_run(name: str) -> ConfigFile:
    file = read(find(name))
    if "over" in file.settings:
        raise ConfigurationError(f"'{name}' is a study of many runs. Run it with: fl-lightning compare --config {name}")
    return file


def behind_subcommand(arguments: Sequence[str], subcommands: Collection[str]) -> list[str]:
    """Return the arguments with the configurations given before the subcommand moved right after it.

    Files with a section for each subcommand (``fit: {trainer: ...}``) stay where they are, as Lightning reads them.

    Args:
        arguments: arguments of the whole command line.
        subcommands: all subcommands.

    Raises:
        ConfigurationError: if a file is missing, is not YAML, or has both sections for subcommands and a base.
    """
    spots = _spots(arguments)
    inner = {place for start, end, _ in spots for place in range(start + 1, end)}
    words = (place for place, text in enumerate(arguments) if place not in inner and not text.startswith("-"))
    at = next(words, len(arguments))
    before, after = list(arguments[:at]), list(arguments[at:])
    flat: list[str] = []

    def choose(given: list[str]) -> tuple[list[Path], list[list[Path]]]:
        kept: list[list[Path]] = []
        for name in given:
            file = _for_a_run(name)
            sections = sorted(set(subcommands) & set(file.settings))
            if sections and file.bases:
                raise ConfigurationError(
                    f"'{file.path}' has both a section '{sections[0]}' and 'base', but a base only works with settings that "
                    "are the same for every subcommand. Move them out of that section."
                )
            kept.append([file.path] if sections else [])
            flat.extend([] if sections else [f"{_FLAG}={file.path}"])
        return [], kept

    head = _replace(before, choose)
    return [*head, *after[:1], *flat, *after[1:]]


def listed(arguments: Sequence[str], name: str) -> list[str]:
    """Return the arguments with all values that follow ``--name``, up to the next option, as one list.

    Args:
        arguments: arguments of the whole command line.
        name: the name of the option; without its last letter, it is the same option.
    """
    found, place = [], 0
    while place < len(arguments):
        text, place = arguments[place], place + 1
        if text not in (f"--{name}", f"--{name[:-1]}"):
            found.append(text)
            continue
        end = next((k for k in range(place, len(arguments)) if arguments[k].startswith("-")), len(arguments))
        values, place = arguments[place:end], end
        single = values[0] if len(values) == 1 and values[0].startswith("[") else json.dumps(values)
        found.append(f"--{name}={single}")
    return found


def config_files(arguments: Sequence[str]) -> list[str]:
    """Return the files that arguments name by ``--config``."""
    return [value for _, _, value in _spots(arguments) if _is_name(value)]


def _spots(arguments: Sequence[str]) -> list[tuple[int, int, str]]:
    """Return the configurations in the arguments: start, end and value of each."""
    found, place = [], 0
    while place < len(arguments):
        text, end = arguments[place], place + 1
        if text in (_FLAG, _SHORT) and end < len(arguments):
            found.append((place, end + 1, arguments[end]))
            end += 1
        elif text.startswith(f"{_FLAG}="):
            found.append((place, end, text.partition("=")[2]))
        elif text.startswith(_SHORT) and len(text) > len(_SHORT):
            found.append((place, end, text.removeprefix(_SHORT).removeprefix("=")))
        place = end
    return found


def _replace(arguments: Sequence[str], choose: Callable[[list[str]], tuple[list[Path], list[list[Path]]]]) -> list[str]:
    """Return the arguments with each configuration replaced by the chosen files, below all of them."""
    spots = _spots(arguments)
    below, chosen = choose([value for _, _, value in spots if _is_name(value)])
    files = iter(chosen)
    result: list[str] = []
    done = 0
    for number, (start, end, value) in enumerate(spots):
        result += arguments[done:start]
        paths = [*(below if number == 0 else []), *(next(files) if _is_name(value) else [])]
        result += [f"{_FLAG}={path}" for path in paths]
        result += [] if _is_name(value) else arguments[start:end]
        done = end
    return [*result, *arguments[done:]]


def _is_name(value: str) -> bool:
    """Return whether a value names a file; settings in braces, URLs and pipes are left to the parser."""
    path = Path(value)
    is_pipe = len(value) < 256 and path.exists() and not path.is_file() and not path.is_dir()
    return not (is_pipe or value in ("", "-") or re.search(r"[{\n]|://|: ", value))
