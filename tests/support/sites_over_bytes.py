"""Sites whose servers live in this process and get everything as bytes: the real site's code without Flower."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from federation_demo import same_bits, weights, write_rows
from lightning.pytorch import Callback, LightningDataModule
from torch.utils.data import DataLoader, IterableDataset

from fl_lightning import TableDataModule
from fl_lightning.cli.federation_cli import main
from fl_lightning.flower.keys import create_key
from fl_lightning.flower.remote_sites import RemoteSites
from fl_lightning.flower.site_data import SiteData
from fl_lightning.flower.site_server import SiteServer
from fl_lightning.flower.site_settings import read_settings, read_site
from fl_lightning.flower.transport import Answer, Parts, Transport
from fl_lightning.messages import ClientInfo

POLICY: dict[str, Any] = {
    "federations": "any",
    "evaluations": ["training", "validation", "test"],
    "metrics": "any",
    "min_examples": 1,
}
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


class BytesTransport:
    """Calls each site in turn, by default the last request first; the names of absent sites are in ``ABSENT``."""

    def absent(self) -> dict[int, str]:
        return {k: "it is offline" for k, name in enumerate(REGISTERED) if name in ABSENT}

    def __init__(self) -> None:
        self._waiting: dict[int, Parts] = {}

    def send(self, client: int, parts: Parts, round_idx: int, seconds: float | None) -> None:
        assert client not in self._waiting
        assert REGISTERED[client] not in ABSENT
        self._waiting[client] = dict(parts)

    def answers(self) -> Iterator[Answer]:
        while self._waiting:
            train = all(b'"ClientTask"' in parts["order"] for parts in self._waiting.values())
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

    def __init__(
        self,
        min_sites: int | None = None,
        model: dict[str, Any] | None = None,
        max_examples: int | dict[str, int] | None = None,
        max_share: float = 1.0,
    ) -> None:
        super().__init__(min_sites=min_sites, model=model, max_examples=max_examples, max_share=max_share)

    def _connect(self, settings: Any) -> tuple[Transport, Sequence[str]]:
        return BytesTransport(), tuple(REGISTERED)

    def _recall(self, name: str) -> ClientInfo | None:
        return TOLD.get(name)

    def _remember(self, infos: Sequence[ClientInfo]) -> None:
        TOLD.update({info.name: info for info in infos})


def start_site(folder: Path, name: str) -> SiteServer:
    """Start a site, or start it again after a crash: it knows what is in its folder."""
    path, own, own_key = (folder / name / one for one in ("data.yaml", "state", "own.key"))
    settings = read_site(path, own)
    SERVERS[name] = SiteServer(
        *(name, None if settings.waits else SiteData(settings), settings.policy, own),
        say=lambda line: LINES.append(f"{name}: {line}"),
        load=lambda schema: SiteData(read_settings(path, schema)),
        key=own_key.read_bytes() if own_key.exists() else b"",
    )
    return SERVERS[name]


def prepare(folder: Path, monkeypatch: Any, policy: dict[str, Any] | None = None) -> None:
    """Write the data of a server and three sites of 24, 36 and 48 rows, and start the sites."""
    monkeypatch.chdir(folder)
    REGISTERED[:] = NAMES
    ABSENT.clear()
    TOLD.clear()
    LINES.clear()
    draw = np.random.default_rng(3)
    labels = draw.integers(0, 3, 148)
    features = draw.normal(size=(148, 6)) + labels[:, None]
    write(folder / "few.csv", features[:9] * 0, labels[:9])  # never trained on: the sites have the rows
    bounds = [40, 64, 100, 148]
    (folder / "all").mkdir()
    (folder / "peers").mkdir()
    write(folder / "test.csv", features[:40], labels[:40])
    for k, name in enumerate(NAMES):
        (folder / name).mkdir()
        rows = slice(bounds[k], bounds[k + 1])
        write(folder / name / "own.csv", features[rows], labels[rows])
        shutil.copy(folder / name / "own.csv", folder / "all" / f"{name}.csv")
        agreed = {**POLICY, **(policy or {})}
        site: dict[str, Any] = {"datamodule": table(str(folder / name / "own.csv")), "policy": agreed, "device": "cpu"}
        (folder / name / "data.yaml").write_text(yaml.safe_dump(site))
        shutil.copy(create_key(folder / name / "own.key"), folder / "peers" / f"{name}.pub")
    for name in NAMES:
        start_site(folder, name)


def give_parts(folder: Path) -> None:
    """Give each site the parts that the simulation would hold back for it, as files of their own, and start the sites."""
    from fl_lightning import DomainPartitioner, FederatedDataModule

    arguments = table("all", test_path="test.csv")["init_args"]
    data = FederatedDataModule(TableDataModule(**arguments), DomainPartitioner(), client_validation=0.25, client_test=0.25)
    data.setup("fit")
    rows, labels = data.datamodule.train_set.tensors
    for k, name in enumerate(NAMES):
        site = yaml.safe_load((folder / name / "data.yaml").read_text())
        for part, key in (("training", "datamodule"), ("validation", "validation"), ("test", "test")):
            chosen = getattr(data.splits, part)[k]
            write(folder / name / f"{part}.csv", rows[chosen].numpy(), labels[chosen].numpy())
            site[key] = table(str(folder / name / f"{part}.csv"))
        (folder / name / "data.yaml").write_text(yaml.safe_dump(site))
        start_site(folder, name)


class RowStream(IterableDataset[Any]):
    """Yields the rows of a file, and does not know how many there are."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __iter__(self) -> Iterator[Any]:
        rows = TableDataModule(**table(self.path)["init_args"])
        rows.setup("fit")
        return (rows.train_set[k] for k in range(len(rows.train_set)))


class Streaming(LightningDataModule):
    """``datamodule: sites_over_bytes.Streaming``."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self.path = path

    def train_dataloader(self) -> Any:
        return DataLoader(RowStream(self.path), batch_size=8)


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
        if trainer.current_epoch == self.round_idx:
            trainer.save_checkpoint("early.ckpt")


def write(path: Path, features: np.ndarray, labels: np.ndarray) -> None:
    write_rows(path, features, labels)


def table(path: str, **more: Any) -> dict[str, Any]:
    settings = {"path": path, "target": "digit", "kind": "classification", "standardize": False, "batch_size": 8}
    return {"class_path": "TableDataModule", "init_args": {"test_share": 0, **settings, **more}}


def configuration(**federation: Any) -> dict[str, Any]:
    """Return the YAML of a fit, the same for a simulation and for sites."""
    network = {
        "class_path": "fl_lightning.MLP",
        "init_args": {"in_features": 6, "hidden": [5], "num_classes": 3, "dropout": 0.1},
    }
    optimizer = {"class_path": "torch.optim.SGD", "init_args": {"lr": 0.1}}
    model = {"num_classes": 3, "network": network, "loss": "CrossEntropy", "optimizer": optimizer}
    return {
        "seed_everything": 0,
        "trainer": {
            "max_epochs": 3,
            "accelerator": "cpu",
            "logger": False,
            "enable_progress_bar": False,
            "num_sanity_val_steps": 0,
        },
        "model": {"class_path": "ClassificationTask", "init_args": model},
        "data": {"datamodule": table("all", test_path="test.csv"), "partitioner": "DomainPartitioner"},
        "federation": {"local": {"threads": 1}, **federation},
        "partition_report": {"enabled": False},
    }


def simulate(config: dict[str, Any], folder: str = "simulated", *more: str) -> dict[str, Any]:
    """Fit in one process, and return the weights."""
    Path("config.yaml").write_text(yaml.safe_dump(config))
    main(["fit", "--config", "config.yaml", "--trainer.default_root_dir", folder, *more])
    return weights(Path(folder))


def federate(config: dict[str, Any], folder: str = "real", *more: str) -> dict[str, Any]:
    """Fit with the sites, without the sites' rows at the server, and return the weights."""
    Path("config.yaml").write_text(yaml.safe_dump(config))
    own = ["--data.datamodule.path", "few.csv", "--federation.pool", "sites_over_bytes.BytesSites"]
    main(["fit", "--config", "config.yaml", *own, "--trainer.default_root_dir", folder, *more])
    return weights(Path(folder))


__all__ = [
    "ABSENT",
    "CHOOSE",
    "HOOK",
    "NAMES",
    "REGISTERED",
    "SERVERS",
    "TOLD",
    "configuration",
    "federate",
    "prepare",
    "same_bits",
    "simulate",
    "start_site",
    "weights",
]
