"""Sites that require masks, in this process, and servers that lose or cheat one of them."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from federation_demo import write_rows
from sites_over_bytes import ABSENT, HOOK, LINES, POLICY, REGISTERED, SERVERS, TOLD, start_site, table

from fl_lightning.flower import envelope
from fl_lightning.flower.keys import create_key
from fl_lightning.messages import ClientTask, Note

SECURE = {"secure_aggregation": {"threshold": 0.67}}
SKIP = {"faults": {"policy": "skip"}}


def prepare(folder: Path, monkeypatch: Any, sites: int, **policy: Any) -> list[str]:
    """Write the data of a server and some sites of unlike sizes, whose policies require masks, and start the sites."""
    monkeypatch.chdir(folder)
    ABSENT.clear()
    TOLD.clear()
    HOOK.clear()
    LINES.clear()
    names = REGISTERED[:] = [f"site{k}" for k in range(sites)]
    draw = np.random.default_rng(3)
    sizes = [12 + 5 * k for k in range(sites)]
    labels = draw.integers(0, 3, 40 + sum(sizes))
    features = draw.normal(size=(len(labels), 6)) + labels[:, None]
    write_rows(folder / "few.csv", features[:9] * 0, labels[:9])
    write_rows(folder / "test.csv", features[:40], labels[:40])
    (folder / "all").mkdir()
    (folder / "peers").mkdir()
    done = 40
    for name, size in zip(names, sizes, strict=True):
        (folder / name).mkdir()
        write_rows(folder / name / "own.csv", features[done : done + size], labels[done : done + size])
        shutil.copy(folder / name / "own.csv", folder / "all" / f"{name}.csv")
        done += size
        agreed = {**POLICY, "secure_aggregation": "required", "peers": str(folder / "peers"), **policy}
        site = {"datamodule": table(str(folder / name / "own.csv")), "policy": agreed, "device": "cpu"}
        (folder / name / "data.yaml").write_text(yaml.safe_dump(site))
        shutil.copy(create_key(folder / name / "own.key"), folder / "peers" / f"{name}.pub")
    for name in names:
        start_site(folder, name)
    return names


def step_of(parts: Any) -> tuple[str, int]:
    """Return the step that a request asks for, and its round; training is the step ``update``."""
    asked = envelope.opened(parts["order"], envelope.KINDS)
    for order in asked.get("orders", ()):
        if isinstance(order, ClientTask):
            return "update", order.round_idx
        if isinstance(order, Note):
            return str(order.content["step"]), -1
    return "", -1


FIRST = ("keys", "shares")
"""The steps of the first round alone."""


class Killed:
    """A site dies in a round: when it is asked for a step, before or after it has done it.

    Later keys and shares travel with the steps ``list`` and ``open``, so that it is asked for them in the first round alone.
    """

    def __init__(self, folder: Path, name: str, step: str, after: bool = False, in_round: int = 2) -> None:
        self.folder, self.name, self.step, self.after, self.in_round = folder, name, step, after, in_round
        self.rounds, self.dead = 0, False

    def __call__(self, name: str, parts: Any, ask: Any) -> bytes | None:
        if name != self.name:
            return ask()  # type: ignore[no-any-return]
        if self.dead:
            return None
        step, _ = step_of(parts)
        self.rounds += step == (self.step if self.step in FIRST else "update")
        if self.rounds == self.in_round and step == ("update" if self.step == "plain" else self.step):
            self.dead = True
            reply = ask() if self.after else None
            start_site(self.folder, name)
            return reply
        return ask()  # type: ignore[no-any-return]


class Cheat:
    """Change what one site is asked, and keep its answer."""

    def __init__(self, name: str, change: Any) -> None:
        self.name, self.change = name, change

    def __call__(self, name: str, parts: Any, ask: Any) -> bytes | None:
        asked = dict(envelope.opened(parts["order"], envelope.KINDS))
        if name == self.name and asked["kind"] == "work":
            changed = self.change(asked, parts)
            if changed is not None:
                asked, parts = changed
                content = {k: v for k, v in asked.items() if k not in ("kind", "version")}
                return SERVERS[name].answer({**parts, "order": envelope.request("work", **content)})
        return ask()  # type: ignore[no-any-return]


def losing_each_step_once(name: str, lost: set[str]) -> Callable[[str, Any, Any], bytes | None]:
    """Return a hook that loses the first request for each step to a site, and notes the step."""

    def hook(site: str, parts: Any, ask: Any) -> bytes | None:
        step, _ = step_of(parts)
        if site == name and step and step not in lost:
            lost.add(step)
            return None
        return ask()  # type: ignore[no-any-return]

    return hook


def first_order(asked: Any) -> Any:
    return asked["orders"][0] if asked["orders"] else None


def note_with(at: str, **changes: Any) -> Any:
    def change(asked: Any, parts: Any) -> Any:
        kind = "notes" if asked.get("notes") else "orders"  # what comes with an order to train, or is a request by itself
        note = next(iter(asked[kind]), None)
        if not isinstance(note, Note) or note.content["step"] != at:
            return None
        content = dict(note.content)
        for name, value in changes.items():
            content[name] = value(content[name])
        return {**asked, kind: [replace(note, content=content)]}, parts

    return change
