"""Reads a W&B run's offline file: a LevelDB-style log of protobuf records."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HEADER, BLOCK = 7, 32 * 1024


def records(path: Path) -> Iterator[Any]:
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
