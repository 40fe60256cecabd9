"""A site in processes of its own that are killed at named places, with a budget that two of its starts share."""

import argparse
import fcntl
import hashlib
import importlib
import json
import os
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import yaml
from asked_site import NOISY_STEPS, contract, order, server_model
from sites_over_bytes import prepare, table

from fl_lightning.clients.site import Site
from fl_lightning.flower import envelope
from fl_lightning.flower.site.budget import SiteBudget
from fl_lightning.flower.site.data import SiteData
from fl_lightning.flower.site.server import SiteServer
from fl_lightning.flower.site.settings import read_settings
from fl_lightning.flower.site.store import SiteStore
from fl_lightning.functional.privacy import epsilon_of_examples
from fl_lightning.functional.releases import epsilon_of_releases
from fl_lightning.messages import ClientTask
from fl_lightning.wire import to_bytes

DELTA, AFFORDED = 1e-5, 3
ACCOUNT = "account.jsonl"


def is_file(name: str) -> Callable[..., bool]:
    """Return whether a call is about a file of this name: a descriptor, an open file or a path is its first argument."""

    def check(what: Any, *_: Any) -> bool:
        path = Path(f"/proc/self/fd/{what}").readlink() if isinstance(what, int) else Path(getattr(what, "name", what))
        return path.name == name or path.name.startswith(f".{name}.")

    return check


def is_training(_: Any, message: Any) -> bool:
    return isinstance(message, ClientTask)


def always(*_: Any) -> bool:
    return True


PLACES: Mapping[str, tuple[Any, str, str, Callable[..., bool]]] = {
    "before the turn is counted": (os, "fsync", "before", is_file("record.json")),
    "before the count is renamed": (Path, "replace", "before", is_file("record.json")),
    "after the count was renamed": (Path, "replace", "after", is_file("record.json")),
    "before the account is read": (SiteBudget, "charge", "before", always),
    "after the account was locked": (fcntl, "flock", "after", is_file(ACCOUNT)),
    "in the middle of the line": (os, "fsync", "cut", is_file(ACCOUNT)),
    "before the line is synced": (os, "fsync", "before", is_file(ACCOUNT)),
    "after the line was synced": (os, "fsync", "after", is_file(ACCOUNT)),
    "before the training": (Site, "handle", "before", is_training),
    "after the training": (Site, "handle", "after", is_training),
    "before the reply is stored": (SiteStore, "save", "before", always),
    "before the state names the reply": (Path, "replace", "before", is_file("state.bin")),
    "after the state names the reply": (Path, "replace", "after", is_file("state.bin")),
    "before the reply leaves": (SiteStore, "save", "after", always),
}
"""What is called at each place, whether the kill comes before or after, and for which of its calls."""


def killing(place: str) -> Any:
    """Patch a function so that the process dies at a place."""
    owner, name, when, concerns = PLACES[place]
    real = getattr(owner, name)

    def deadly(*args: Any, **more: Any) -> Any:
        fatal = concerns(*args)
        if fatal and when == "cut":
            os.ftruncate(args[0], os.fstat(args[0]).st_size - 40)  # only a part of the last line is on the disk
        if fatal and when != "after":
            os.kill(os.getpid(), signal.SIGKILL)
        result = real(*args, **more)
        if fatal:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    return mock.patch.object(owner, name, deadly)


def lines(folder: Path) -> list[str]:
    """Return the complete lines of the account."""
    return [line for line in (folder / ACCOUNT).read_text().splitlines(True) if line.endswith("\n")]


def note(folder: Path, **what: Any) -> None:
    """Write down a training and the lines before it, or the numbers that leave."""
    with (folder / "witness.jsonl").open("a") as file:
        file.write(json.dumps(what) + "\n")


def ask(folder: Path, federation: str, state: str, ready: Callable[[], None]) -> None:
    """Start a site, have it train, and note what leaves it."""
    torch.set_num_threads(1)
    settings, real = read_settings(folder / "north" / "data.yaml"), Site.handle

    def handle(site: Site, message: Any) -> Any:
        if is_training(site, message):
            note(folder, trains=len(lines(folder)))
        return real(site, message)

    site = SiteServer("north", SiteData(settings), settings.policy, folder / state, say=lambda line: None)
    names = {"federation": federation * 32, "client": 0, "contract": contract(local=NOISY_STEPS)}
    prepared = envelope.opened(site.answer({"order": envelope.request("prepare", **names)}), ("reply",))
    assert "error" not in prepared, prepared
    asked = {"session": "s", "model_version": 1, "orders": [order()], "settlements": [], "notes": []}
    parts = {"order": envelope.request("work", **names, **asked), "model": to_bytes(server_model())}
    ready()
    with mock.patch.object(Site, "handle", handle):
        reply = dict(envelope.opened(site.answer(parts), ("reply",)))
    if "error" in reply:
        note(folder, refused=str(reply["error"]))
    else:
        (update,) = reply["replies"]
        note(folder, leaves=hashlib.sha256(update.model.vector.numpy().tobytes()).hexdigest())


def fork(work: Callable[[], None]) -> int:
    """Run something in a copy of this process, and return its id."""
    process = os.fork()
    if process:
        return process
    status = 1
    try:
        work()
        status = 0
    finally:
        os._exit(status)


def status_of(process: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def killed(folder: Path, place: str) -> None:
    with killing(place):
        ask(folder, "a", "own", lambda: None)


def racing(folder: Path, federation: str, gate: int) -> None:
    def slow(*args: Any) -> float:
        time.sleep(0.3)  # another process could read what this one has read, if no lock kept it out
        return epsilon_of_releases(*args)

    with mock.patch("fl_lightning.flower.site.budget.epsilon_of_releases", slow):
        ask(folder, federation, f"own_{federation}", lambda: os.read(gate, 1))


def suffer(folder: Path, place: str) -> dict[str, Any]:
    """Kill a site, have the order replayed, then ordered by another federation, then by two at once."""
    accounts = []

    def account(*statuses: int) -> None:
        accounts.append({"lines": lines(folder), "statuses": statuses})

    account(status_of(fork(lambda: killed(folder, place))))
    account(status_of(fork(lambda: ask(folder, "a", "own", lambda: None))))
    account(status_of(fork(lambda: ask(folder, "b", "own", lambda: None))))
    reader, writer = os.pipe()
    both = [fork(lambda name=name: racing(folder, name, reader)) for name in "cd"]  # type: ignore[misc]
    os.write(writer, b"12")
    account(*map(status_of, both))
    found = [json.loads(line) for line in (folder / "witness.jsonl").read_text().splitlines()]
    return {"accounts": accounts, "witness": found}


def site_of(folder: Path) -> Path:
    """Write the data of a site whose budget is enough for three trainings of three steps."""
    folder.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        prepare(folder, patch, start=False)
    (folder / ACCOUNT).touch()
    limit = epsilon_of_examples(NOISY_STEPS["privacy"]["noise_multiplier"], 8 / 24, 3 * AFFORDED, DELTA) * 1.001
    budget = {"data": "x", "account": str(folder / ACCOUNT), "max_epsilon": limit, "delta": DELTA, "protects": "rows"}
    policy = {"federations": "any", "update": {"noise": {"least": 0.5, "budget": budget}}}
    text = {"datamodule": table(str(folder / "north" / "own.csv")), "device": "cpu", "policy": policy}
    (folder / "north" / "data.yaml").write_text(yaml.safe_dump(text))
    return folder


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path)
    folder = parser.parse_args().folder
    importlib.import_module("opacus")  # once, instead of in each process
    found = {place: suffer(site_of(folder / str(k)), place) for k, place in enumerate(PLACES)}
    (folder / "found.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
