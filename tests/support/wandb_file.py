"""Reads a W&B run's offline file: a LevelDB-style log of protobuf records."""

import json
import time
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

HEADER, BLOCK = 7, 32 * 1024


def records(path: Path) -> list[Any]:
    """The records of a finished run, which W&B's own process may still be writing when ``wandb.finish`` returns."""
    deadline = time.monotonic() + 20
    while not _ends(found := list(_read(path))) and time.monotonic() < deadline:
        time.sleep(0.1)
    return found


def _ends(found: list[Any]) -> bool:
    return bool(found) and found[-1].WhichOneof("record_type") == "exit"


def _read(path: Path) -> Iterator[Any]:
    from wandb.proto import wandb_internal_pb2

    data = path.read_bytes()
    position, parts = HEADER, []
    while position + HEADER <= len(data):
        if BLOCK - position % BLOCK < HEADER:  # a record's header never spans blocks
            position += BLOCK - position % BLOCK
            continue
        length = int.from_bytes(data[position + 4 : position + 6], "little")
        kind = data[position + 6]
        parts.append(data[position + HEADER : position + HEADER + length])
        position += HEADER + length
        if position > len(data):  # written in part
            return
        if kind in (1, 4):  # a whole record, or the last part of one
            record = wandb_internal_pb2.Record()
            record.ParseFromString(b"".join(parts))
            parts = []
            yield record


def _entries(path: Path, kind: str) -> Iterator[list[tuple[list[str], Any]]]:
    """The values of each record of a kind, after the parts of their names."""
    for record in records(path):
        if record.WhichOneof("record_type") == kind:
            own = record.run.config if kind == "run" else getattr(record, kind)
            items = own.item if kind == "history" else own.update
            yield [([item.key] if item.key else list(item.nested_key), json.loads(item.value_json)) for item in items]


def history(path: Path) -> list[dict[str, Any]]:
    """The logged rows, in order."""
    return [{names[0]: value for names, value in row} for row in _entries(path, "history")]


def declared_axes(path: Path) -> dict[str, str]:
    """Which metrics are plotted over which."""
    found = [record.metric for record in records(path) if record.WhichOneof("record_type") == "metric"]
    return {metric.glob_name or metric.name: metric.step_metric for metric in found}


def panels(path: Path) -> dict[str, set[str]]:
    """The scalar keys by section: W&B shows a panel for each, and those without a prefix under Charts."""
    found: dict[str, set[str]] = {}
    for (name, *parts), value in chain.from_iterable(_entries(path, "history")):
        if not parts and not name.startswith("_") and isinstance(value, int | float):
            section, slash, _ = name.partition("/")
            found.setdefault(section if slash else "Charts", set()).add(name)
    return found


def summary(path: Path) -> dict[str, Any]:
    """What the runs table shows of a run."""
    return {names[0]: value for names, value in chain.from_iterable(_entries(path, "summary")) if len(names) == 1}


def configuration(path: Path) -> dict[str, Any]:
    """What makes the run what it is."""
    return {names[0]: value for kind in ("run", "config") for own in _entries(path, kind) for names, value in own}


def charts(path: Path) -> dict[str, dict[str, list[tuple[float, float]]]]:
    """The points of each line of each custom chart, from the last table that the chart names."""
    changes, updates = (chain.from_iterable(_entries(path, kind)) for kind in ("summary", "config"))
    tables = {names[0]: value for names, value in changes if names[1:] == ["path"]}
    found: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for key, spec in {names[2]: value for names, value in updates if "visualize" in names}.items():
        config = spec["panel_config"]
        (query,) = config["userQuery"]["queryFields"]
        (name,) = (field["args"][0]["value"] for field in query["fields"] if field["name"] == "summaryTable")
        table = json.loads((path.parent / "files" / tables[name]).read_text())
        x, line, y = (table["columns"].index(config["fieldSettings"][name]) for name in ("step", "lineKey", "lineVal"))
        for row in table["data"]:
            if row[y] is not None:
                found.setdefault(key, {}).setdefault(row[line], []).append((row[x], row[y]))
    return found
