"""Sites whose servers live in this process and get everything as bytes: the real site's code without Flower."""

import contextlib
import io
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from client_sites import Stream
from federation_demo import same_bits, weights, write_rows
from federations import ready
from lightning.pytorch import Callback, LightningDataModule
from torch.utils.data import DataLoader

from fl_lightning import ConfigurationError, TableDataModule
from fl_lightning.cli.federation_cli import main
from fl_lightning.flower import envelope
from fl_lightning.flower.server.sites import RemoteSites
from fl_lightning.flower.site.data import SiteData
from fl_lightning.flower.site.policy import FACTS
from fl_lightning.flower.site.server import SiteServer
from fl_lightning.flower.site.settings import read_settings
from fl_lightning.flower.wire.keys import create_key
from fl_lightning.flower.wire.transport import Answer, Parts, Transport
from fl_lightning.messages import ClientInfo

TELLS = [fact for fact in FACTS if fact not in ("examples/rounded", "label_counts", "statistics")]
POLICY: dict[str, Any] = {"federations": "any", "tells": TELLS, "min_rows": 1}
"""What the sites of the tests allow, unless a test is about it."""
LINES: list[str] = []
"""What the sites have told their staff."""
NAMES = ("north", "south", "west")
SERVERS: dict[str, SiteServer] = {}
"""The running sites, by name; they outlive a fit."""
REGISTERED: list[str] = list(NAMES)
"""The names of the sites, in the order of their numbers."""
ABSENT: set[str] = set()
"""The names of the sites that are not online."""
TOLD: dict[str, ClientInfo] = {}
"""What sites have told in earlier fits."""
HOOK: dict[str, Callable[[str, Parts, Callable[[], bytes]], bytes | None]] = {}
"""A function between the transport and a site, by the test that sets it."""
LOST = b"lost"
"""What a hook returns if the transport loses the order or its reply."""
CHOOSE: dict[str, Callable[[Sequence[int]], int]] = {}
"""A function that chooses which of the clients with tasks answers next, by the test that sets it."""
WITNESS: dict[str, list[str]] = {}
"""The digests of the sites' logs that the server has kept, by name."""
POOL = ("--federation.pool", "sites_over_bytes.BytesSites")
PARTS = ("--data.client_validation", "0.25", "--data.client_test", "0.25")
"""The arguments with which a simulation holds back what ``give_parts`` gives to the sites."""


class BytesTransport:
    """Calls each site in turn, by default the last request first; the names of absent sites are in ``ABSENT``."""

    def absent(self) -> dict[int, str]:
        return {k: "it is offline" for k, name in enumerate(REGISTERED) if name in ABSENT}

    def __init__(self) -> None:
        self._waiting: dict[int, Parts] = {}

    def send(self, client: int, parts: Parts, seconds: float | None) -> None:
        assert client not in self._waiting
        assert REGISTERED[client] not in ABSENT
        self._waiting[client] = dict(parts)

    def answers(self) -> Iterator[Answer]:
        while self._waiting:
            train = all(map(is_task, self._waiting.values()))
            client = CHOOSE["choose"](tuple(self._waiting)) if CHOOSE and train else next(reversed(self._waiting))
            parts = self._waiting.pop(client)
            name = REGISTERED[client]

            def ask(name: str = name, parts: Parts = parts) -> bytes:
                return SERVERS[name].answer(parts)

            content = HOOK["hook"](name, parts, ask) if HOOK else ask()
            if content == LOST:
                yield Answer(client, None, "its reply was lost on its way", lost=True)
                continue
            yield Answer(client, content, "" if content is not None else "no answer within its deadline")

    def forget(self) -> None:
        self._waiting.clear()

    def close(self, completed: bool) -> None:
        pass


class BytesSites(RemoteSites):
    """``federation.pool: sites_over_bytes.BytesSites``."""

    def _connect(self, settings: Any) -> tuple[Transport, Sequence[str]]:
        return BytesTransport(), tuple(REGISTERED)

    def _recall(self, name: str) -> ClientInfo | None:
        return TOLD.get(name)

    def _remember(self, infos: Sequence[ClientInfo]) -> None:
        TOLD.update({info.name: info for info in infos})

    def _witness(self, name: str, digest: str) -> None:
        WITNESS.setdefault(name, []).append(digest)


# ---------------------------------------------------------------- sites and their files


def start_site(folder: Path, name: str) -> SiteServer:
    """Start a site, or start it again after a crash: it knows what is in its folder."""
    path, own, own_key = (folder / name / one for one in ("data.yaml", "state", "own.key"))
    settings = read_settings(path)
    SERVERS[name] = SiteServer(
        *(name, SiteData(settings), settings.policy, own),
        say=lambda line: LINES.append(f"{name}: {line}"),
        key=own_key.read_bytes() if own_key.exists() else b"",
    )
    return SERVERS[name]


def restart(*names: str, limits: dict[str, Any] | None = None, **settings: Any) -> SiteServer:
    """Change the data.yaml of some sites, or of all, and start them again; return the last one.

    Args:
        names: of the sites.
        limits: of the policy, beside those that it has.
        settings: the new values at the top of the file.
    """
    for name in names or REGISTERED:
        path = Path(name, "data.yaml")
        found = yaml.safe_load(path.read_text())
        path.write_text(yaml.safe_dump({**found, "policy": found.get("policy", {}) | (limits or {}), **settings}))
        server = start_site(Path.cwd(), name)
    return server


def of(name: str, **arguments: Any) -> dict[str, Any]:
    """Return a class with its arguments, as YAML has them."""
    return {"class_path": name, "init_args": arguments}


def table(path: str, **more: Any) -> dict[str, Any]:
    own = {"test_share": 0, "path": path, "target": "digit", "kind": "classification", "standardize": False, "batch_size": 8}
    return of("TableDataModule", **own | more)


def prepare(
    folder: Path | None = None,
    monkeypatch: Any = None,
    sites: int = 0,
    start: bool = True,
    **limits: Any,
) -> None:
    """Write the data of a server and of sites, and start the sites; nothing is left of an earlier federation.

    Args:
        folder: where; the current folder if left out. It is the current one afterwards.
        monkeypatch: returns to the folder before; the tests' own fixture does, too.
        sites: so many sites of 12, 17, 22, ... rows; 0 for north, south and west with 24, 36 and 48.
        start: whether to start the sites.
        limits: what the sites allow beyond ``POLICY``.
    """
    folder = (folder or Path.cwd()).resolve()
    folder.mkdir(exist_ok=True)
    (os.chdir if monkeypatch is None else monkeypatch.chdir)(folder)
    for state in (ABSENT, TOLD, LINES, HOOK, CHOOSE, SERVERS):
        state.clear()
    sizes = [12 + 5 * k for k in range(sites)] or [24, 36, 48]
    REGISTERED[:] = [f"site{k}" for k in range(sites)] or NAMES
    draw = np.random.default_rng(3)
    labels = draw.integers(0, 3, 40 + sum(sizes))
    features = draw.normal(size=(len(labels), 6)) + labels[:, None]
    write_rows(folder / "few.csv", features[:9] * 0, labels[:9])  # never trained on: the sites have the rows
    write_rows(folder / "test.csv", features[:40], labels[:40])
    (folder / "all").mkdir()
    (folder / "peers").mkdir()
    begin = 40
    for name, size in zip(REGISTERED, sizes, strict=True):
        (folder / name).mkdir()
        write_rows(folder / name / "own.csv", features[begin : begin + size], labels[begin : begin + size])
        begin += size
        shutil.copy(folder / name / "own.csv", folder / "all" / f"{name}.csv")
        agreed = {**POLICY, **limits}
        site = {"datamodule": table(str(folder / name / "own.csv")), "policy": agreed, "device": "cpu"}
        (folder / name / "data.yaml").write_text(yaml.safe_dump(site))
        shutil.copy(create_key(folder / name / "own.key"), folder / "peers" / f"{name}.pub")
    for name in REGISTERED if start else ():
        start_site(folder, name)


def give_parts() -> None:
    """Give each site the parts that the simulation would hold back for it, as files of their own, and start the sites."""
    from fl_lightning import DomainPartitioner, FederatedDataModule

    arguments = table("all", test_path="test.csv")["init_args"]
    data = FederatedDataModule(TableDataModule(**arguments), DomainPartitioner(), client_validation=0.25, client_test=0.25)
    data.setup("fit")
    rows, labels = data.datamodule.train_set.tensors
    for k, name in enumerate(REGISTERED):
        own = {}
        for part, key in (("training", "datamodule"), ("validation", "validation"), ("test", "test")):
            chosen, path = getattr(data.splits, part)[k], Path(name, f"{part}.csv").resolve()
            write_rows(path, rows[chosen].numpy(), labels[chosen].numpy())
            own[key] = table(str(path))
        restart(name, **own)


def audit(name: str = "north") -> list[dict[str, Any]]:
    """Return the lines of a site's audit log."""
    return [json.loads(line) for line in Path(name, "state", "audit.jsonl").read_text().splitlines()]


class Streaming(LightningDataModule):
    """``datamodule: sites_over_bytes.Streaming``."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self.path = path

    def train_dataloader(self) -> Any:
        return DataLoader(Stream(ready(TableDataModule(**table(self.path)["init_args"])).train_set), batch_size=8)


class Crash(Callback):
    """The server dies in a round: ``after`` its checkpoint, or after its training and before its checkpoint."""

    def __init__(self, round_idx: int, after: bool) -> None:
        self.round_idx, self.after = round_idx, after

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        if not self.after and trainer.current_epoch == self.round_idx:
            raise SystemExit("killed")

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        if self.after and trainer.current_epoch == self.round_idx + 1:
            raise SystemExit("killed")


class Copy(Callback):
    """Keep the checkpoint of an early round."""

    def __init__(self, round_idx: int) -> None:
        self.round_idx = round_idx

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        if trainer.current_epoch == self.round_idx + 1:
            shutil.copy(Path(trainer.default_root_dir, "checkpoints", "last.ckpt"), "early.ckpt")


# ---------------------------------------------------------------- what happens between server and sites


def is_task(parts: Parts) -> bool:
    """Return whether a site is asked to train."""
    return b'"ClientTask"' in parts["order"]


def disturb(
    name: str, answer: Callable[[Callable[[], bytes]], bytes | None] = lambda ask: None, kind: str = "ClientTask"
) -> list[Parts]:
    """Let something else answer what a site is asked, by default silence; return the list to which each request is added."""
    asked: list[Parts] = []

    def hook(site: str, parts: Parts, ask: Callable[[], bytes]) -> bytes | None:
        if site != name or f'"{kind}"'.encode() not in parts["order"]:
            return ask()
        asked.append(parts)
        return answer(ask)

    HOOK["hook"] = hook
    return asked


def changed(reply: bytes, change: Callable[[Any], Any]) -> bytes:
    """Return a site's reply with a change of each of its messages."""
    found = dict(envelope.opened(reply, ("reply",)))
    if "replies" in found:
        found["replies"] = [change(one) for one in found["replies"]]
    return envelope.reply(**{name: value for name, value in found.items() if name not in ("kind", "version")})


def lying(name: str, change: Callable[[Any], Any]) -> None:
    """Let a site change every message that it sends in a reply."""
    HOOK["hook"] = lambda site, parts, ask: changed(ask(), change) if site == name else ask()


# ---------------------------------------------------------------- fits


def configuration(rounds: int = 3, **federation: Any) -> dict[str, Any]:
    """Return the YAML of a fit, the same for a simulation and for sites."""
    network, sgd = of("fl_lightning.MLP", in_features=6, hidden=[5], num_classes=3, dropout=0.1), of("torch.optim.SGD", lr=0.1)
    model = of("ClassificationTask", num_classes=3, network=network, loss="CrossEntropy", optimizer=sgd)
    flags = {"accelerator": "cpu", "logger": False, "enable_progress_bar": False, "num_sanity_val_steps": 0}
    return {
        "seed_everything": 0,
        "trainer": {"max_epochs": rounds, **flags},
        "model": model,
        "data": {"datamodule": table("all", test_path="test.csv"), "partitioner": "DomainPartitioner"},
        "federation": {"local": {"threads": 1}, **federation},
        "federation_report": {"partition": False},
    }


def scaled(rounds: int = 1, features: int = 6, **federation: Any) -> dict[str, Any]:
    """Return the configuration of a network whose inputs are scaled."""
    config = configuration(rounds, **{"strategy": "FedAvg", **federation})
    arguments = config["model"]["init_args"]
    arguments["network"] = of("Standardized", num_features=features, network=arguments["network"])
    return config


def simulate(config: dict[str, Any], folder: str = "simulated", *more: str) -> dict[str, Any]:
    """Fit in one process, and return the weights."""
    Path("config.yaml").write_text(yaml.safe_dump(config))
    main(["fit", "--config", "config.yaml", "--trainer.default_root_dir", folder, *more])
    return weights(Path(folder))


def federate(config: dict[str, Any], folder: str = "real", *more: str) -> dict[str, Any]:
    """Fit with the sites, without the sites' rows at the server, and return the weights."""
    return simulate(config, folder, "--data.datamodule.path", "few.csv", *POOL, *more)


def equal(config: dict[str, Any], *more: str) -> bool:
    """Return whether the sites give the bits of the simulation."""
    return same_bits(simulate(config, "simulated", *more), federate(config))


def refused(config: dict[str, Any], folder: str = "real", *more: str, fit: Any = None) -> str:
    """Fit with the sites, or with another function, which ends with a message; return that in one line."""
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        try:
            (fit or federate)(config, folder, *more)
        except SystemExit:
            return " ".join(said.getvalue().split())
    raise AssertionError("Nothing was refused.")


def at_sites(
    *more: str, policy: dict[str, Any] | None = None, change: Any = None, start: bool = True, **federation: Any
) -> Callable[[], Any]:
    """Return a call for a table of refusals: a fit with three sites and these settings.

    Args:
        more: further arguments of the command.
        policy: what the sites allow beyond ``POLICY``.
        change: called with the configuration when the sites have started.
        start: whether the sites start; False if the server refuses before it asks them.
        federation: the section of the configuration.
    """

    def call() -> None:
        prepare(start=start, **(policy or {}))
        config = configuration(**federation)
        if change is not None:
            change(config)
        raise ConfigurationError(refused(config, "real", *more))

    return call


def slow_but(cases: Iterable[Any], *quick: Any) -> list[Any]:
    """Return the parameters of a test, of which only the quick ones run at each step."""
    made = ((case if isinstance(case, tuple) else (case,), case in quick) for case in cases)
    return [pytest.param(*values, marks=() if fast else pytest.mark.slow) for values, fast in made]


__all__ = ["same_bits", "weights"]
