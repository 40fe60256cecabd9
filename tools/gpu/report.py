"""Markdown of the records: what docs/gpu.md takes over."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from gpu.stages import STAGES

Record = dict[str, Any]
_WORDS = {True: "passed", False: "FAILED", None: "not run"}


def read(paths: Iterable[Path]) -> list[Record]:
    """Return the records of files: of each check the last one that ran; a line cut off by the end of time is left out."""
    found: dict[str, Record] = {}
    for path in paths:
        for line in path.read_text().splitlines():
            try:
                record: Record = json.loads(line)
            except json.JSONDecodeError:
                continue
            before = found.get(record["name"])
            if before is None or record["ok"] is not None or before["ok"] is None:
                found[record["name"]] = record
    return list(found.values())


def markdown(records: Sequence[Record]) -> str:
    """Return device, versions, the table of checks, the tables of speed, and what failed."""
    parts = [_environment(records), _checks(records), _speed(records), _profiles(records), _failures(records)]
    return "\n\n".join(part for part in parts if part)


def _environment(records: Sequence[Record]) -> str:
    own = next((record["figures"] for record in records if record["name"].endswith("environment") and record["figures"]), None)
    if own is None:
        return "No record says what machine this was."
    text = str(own.get("device"))
    if "memory_gib" in own:
        text += f" ({own['memory_gib']} GiB, compute capability {own['capability']}, driver {own.get('driver')})"
    versions = ", ".join(f"{name} {version}" for name, version in own.get("versions", {}).items())
    cuda = f" (CUDA {own['cuda']}, cuDNN {own['cudnn']})" if own.get("cuda") else ""
    commit = f", commit {own['commit']}" if own.get("commit") else ""
    return (
        f"{text}. Python {own['python']}, torch {own['torch']}{cuda}, {versions}; fl_lightning {own['fl_lightning']}{commit}."
    )


def _checks(records: Sequence[Record]) -> str:
    known = {check.name: check.stage for checks in STAGES.values() for check in checks}
    rows = ["| stage | check | result | seconds | found |", "|---|---|---|---|---|"]
    for record in records:
        if record["ok"] and ("ratio" in record["figures"] or _is_profile(record)):
            continue  # in tables of their own
        stage = record.get("stage", known.get(record["name"], ""))
        cells = stage, record["name"], _WORDS[record["ok"]], f"{record['seconds']:.0f}", _short(record)
        rows.append("| " + " | ".join(cells) + " |")
    return "\n".join(rows)


def _short(record: Record) -> str:
    """Return a check's figures in a line."""
    if record["ok"] is None:
        return _cell(str(record["error"]))
    if record["name"].endswith("environment"):
        return ""
    return _cell("; ".join(f"{name}: {_value(value)}" for name, value in record["figures"].items() if value not in ({}, [])))


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_value(part)}" for name, part in value.items())
    if isinstance(value, list):
        return ", ".join(_value(part) for part in value)
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)


def _cell(text: str) -> str:
    return text.replace("|", "/").replace("\n", " ")[:700]


def _speed(records: Sequence[Record]) -> str:
    measured = [record for record in records if "ratio" in record["figures"]]
    if not measured:
        return ""
    rows = [
        "| workload and engine | seconds per round | by hand | ratio to hand | spread | control | wanted | peak MiB |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for record in measured:
        f = record["figures"]
        wanted = "" if f["target"] is None else f"at most {f['target']:g}{'' if f['ratio'] <= f['target'] else ' (missed)'}"
        spread = f"{f['spread'][0]:.3f} to {f['spread'][1]:.3f}"
        peak = f"{f['peak_mib']:.0f}" if "peak_mib" in f else ""
        cells = (record["name"], f"{f['seconds_per_round']:.4f}", f"{f['hand']:.4f}", f"{f['ratio']:.3f}", spread)
        rows.append(f"| {' | '.join(cells)} | {f['control']:.2f} | {wanted} | {peak} |")
    return "\n".join(rows)


def _profiles(records: Sequence[Record]) -> str:
    own = {record["name"].removeprefix("profile: "): record["figures"] for record in records if _is_profile(record)}
    if not own:
        return ""
    kinds = list(next(iter(own.values()))["round_besides_steps"])
    rows = ["| counted | " + " | ".join(f"{name}: a step | a round besides" for name in own) + " |"]
    rows.append("|---|" + "---|---|" * len(own))
    for kind in kinds:
        rows.append(f"| {kind} | " + " | ".join(f"{f[kind]:g} | {f['round_besides_steps'][kind]}" for f in own.values()) + " |")
    told = [
        f"- {name}: `{place}` waits {count:g} times a step"
        for name, f in own.items()
        for place, count in f["waits_per_step"].items()
    ]
    told += [
        f"- {name}: `{place}` waits {count} times a round, epochs apart"
        for name, f in own.items()
        for place, count in f["waits_besides_steps"].items()
        if place not in f["waits_per_step"]
    ]
    return "\n".join(rows) + ("\n\nWhat waits for the device:\n\n" + "\n".join(told) if told else "")


def _is_profile(record: Record) -> bool:
    return str(record["name"]).startswith("profile: ") and "round_besides_steps" in record["figures"]


def _failures(records: Sequence[Record]) -> str:
    failed = [record for record in records if record["ok"] is False]
    if not failed:
        return ""
    return "What failed:\n\n" + "\n".join(f"- {record['name']}: {_cell(str(record['error']))}" for record in failed)
