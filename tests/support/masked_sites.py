"""Sites that require masks, in this process, and servers that lose or cheat one of them."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from sites_over_bytes import HOOK, LINES, REGISTERED, SERVERS, configuration, prepare, refused, restart, start_site

from fl_lightning.flower import envelope
from fl_lightning.messages import ClientTask, Note

SECURE = {"secure_aggregation": {"threshold": 0.67}}
SKIP = {"faults": {"policy": "skip"}}
FIRST = ("keys", "shares")
"""The steps of the first round alone: later keys and shares travel with the steps ``list`` and ``open``."""
REST = ("update", "list", "open")
"""The steps of a round whose keys and shares were exchanged in the one before."""


def masks(**more: Any) -> dict[str, Any]:
    """Return what a policy says of masks."""
    return {"masks": {"peers": "peers", **more}}


def masked(sites: int = 3, least: int = 3, lost: int = 0, **policy: Any) -> None:
    """Start sites of unlike sizes whose policies require masks."""
    told = {
        "tells": ["examples", "steps", "loss", "evaluation/training", "evaluation/validation"],
        "update": masks(least=least, lost=lost),
    }
    prepare(sites=sites, **{**told, **policy})


def plain(rounds: int = 3, strategy: Any = "FedAvg", **federation: Any) -> dict[str, Any]:
    return configuration(rounds, strategy=strategy, **federation)


def secure(rounds: int = 3, strategy: Any = "FedAvg", **federation: Any) -> dict[str, Any]:
    return configuration(rounds, strategy=strategy, **federation, **SECURE)


def updates_leave(form: Any) -> None:
    """Let sites send updates in another form, in another fit: they forget the settings to which they agreed."""
    for name in REGISTERED:
        Path(name, "state", "record.json").unlink()
    restart(limits={"update": form})


def step_of(parts: Any) -> tuple[str, int]:
    """Return the step that a request asks for, and its round; training is the step ``update``."""
    asked = envelope.opened(parts["order"], envelope.KINDS)
    for order in asked.get("orders", ()):
        if isinstance(order, ClientTask):
            return "update", order.round_idx
        if isinstance(order, Note):
            return str(order.content["step"]), -1
    return "", -1


def steps_of(name: str, answer: Callable[[str, Any], bytes | None] = lambda step, ask: ask()) -> list[str]:
    """Note the steps that a site is asked for, and let something else answer them; return the list of steps."""
    steps: list[str] = []

    def hook(site: str, parts: Any, ask: Any) -> bytes | None:
        if site != name or not (step := step_of(parts)[0]):
            return ask()  # type: ignore[no-any-return]
        steps.append(step)
        return answer(step, ask)

    HOOK["hook"] = hook
    return steps


def heard() -> list[Any]:
    """Note the contents of each reply of any site; return the list of them."""
    found: list[Any] = []

    def hook(name: str, parts: Any, ask: Any) -> bytes:
        reply = ask()
        found.append(envelope.opened(reply, ("reply",)))
        return reply  # type: ignore[no-any-return]

    HOOK["hook"] = hook
    return found


class Killed:
    """A site dies in a round: when it is asked for a step, before or after it has done it; ``plain`` is a training."""

    def __init__(self, name: str, step: str, after: bool = False, in_round: int = 2) -> None:
        self.name, self.step, self.after, self.in_round = name, step, after, in_round
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
            start_site(Path.cwd(), name)
            return reply
        return ask()  # type: ignore[no-any-return]


def cheating(name: str, change: Any) -> None:
    """Change what one site is asked, and keep its answer."""

    def hook(site: str, parts: Any, ask: Any) -> bytes | None:
        asked = dict(envelope.opened(parts["order"], envelope.KINDS))
        found = change(asked, parts) if site == name and asked["kind"] == "work" else None
        if found is None:
            return ask()  # type: ignore[no-any-return]
        asked, parts = found
        content = {key: value for key, value in asked.items() if key not in ("kind", "version")}
        return SERVERS[name].answer({**parts, "order": envelope.request("work", **content)})

    HOOK["hook"] = hook


def refuses(config: dict[str, Any], message: str, name: str = "") -> bool:
    """Return whether a fit ends, and a site, or any, has refused something with this message."""
    refused(config)
    return any(line.startswith(f"{name}: Refused" if name else "site") and message in line for line in LINES)


def note_with(at: str, **changes: Any) -> Any:
    """Return a change of a step's note: new values by name, each a function of the old one."""

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
