"""Reads a W&B run's offline file: a LevelDB-style log of protobuf records."""

import json
import time
from collections.abc import Iterator
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


def history(path: Path) -> list[dict[str, Any]]:
    """The logged rows, in order."""
    rows = []
    for record in records(path):
        if record.WhichOneof("record_type") == "history":
            items = record.history.item
            rows.append({item.key or item.nested_key[0]: json.loads(item.value_json) for item in items})
    return rows


def declared_axes(path: Path) -> dict[str, str]:
    """Which metrics are plotted over which."""
    found = {}
    for record in records(path):
        if record.WhichOneof("record_type") == "metric":
            metric = record.metric
            found[metric.glob_name or metric.name] = metric.step_metric
    return found


def panels(path: Path) -> dict[str, set[str]]:
    """The scalar keys by section: W&B shows a panel for each, and those without a prefix under Charts."""
    found: dict[str, set[str]] = {}
    for record in records(path):
        if record.WhichOneof("record_type") == "history":
            for item in record.history.item:
                names = [item.key] if item.key else list(item.nested_key)
                if len(names) == 1 and not names[0].startswith("_") and isinstance(json.loads(item.value_json), int | float):
                    section, slash, _ = names[0].partition("/")
                    found.setdefault(section if slash else "Charts", set()).add(names[0])
    return found


def summary(path: Path) -> dict[str, Any]:
    """What the runs table shows of a run."""
    found = {}
    for record in records(path):
        changes = record.summary.update if record.WhichOneof("record_type") == "summary" else ()
        found |= {item.key or item.nested_key[0]: json.loads(item.value_json) for item in changes if len(item.nested_key) < 2}
    return found


def configuration(path: Path) -> dict[str, Any]:
    """What makes the run what it is."""
    found = {}
    for record in records(path):
        kind = record.WhichOneof("record_type")
        updates = record.run.config.update if kind == "run" else record.config.update if kind == "config" else ()
        found |= {item.key or item.nested_key[0]: json.loads(item.value_json) for item in updates}
    return found


def tags(path: Path) -> list[str]:
    """The tags of the run."""
    *_, last = (record.run.tags for record in records(path) if record.WhichOneof("record_type") == "run")
    return list(last)


def charts(path: Path) -> dict[str, dict[str, list[tuple[float, float]]]]:
    """The points of each line of each custom chart, from the last table that the chart names."""
    specs, tables = {}, {}
    for record in records(path):
        kind = record.WhichOneof("record_type")
        updates = record.config.update if kind == "config" else ()
        changes = record.summary.update if kind == "summary" else ()
        tables |= {item.nested_key[0]: json.loads(item.value_json) for item in changes if item.nested_key[1:] == ["path"]}
        specs |= {item.nested_key[2]: json.loads(item.value_json) for item in updates if "visualize" in item.nested_key}
    found: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for key, spec in specs.items():
        config = spec["panel_config"]
        (query,) = config["userQuery"]["queryFields"]
        (name,) = (field["args"][0]["value"] for field in query["fields"] if field["name"] == "summaryTable")
        table = json.loads((path.parent / "files" / tables[name]).read_text())
        x, line, y = (table["columns"].index(config["fieldSettings"][name]) for name in ("step", "lineKey", "lineVal"))
        for row in table["data"]:
            if row[y] is not None:
                found.setdefault(key, {}).setdefault(row[line], []).append((row[x], row[y]))
    return found
