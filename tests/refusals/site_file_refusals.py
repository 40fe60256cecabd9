"""Files and addresses of sites and their server: data.yaml, tables, keys, certificates, folders, ports and proxies."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from own_certificates import put_certificate
from refusing import Refusal

from fl_lightning import DataError
from fl_lightning.compat.flower import FLOWER
from fl_lightning.flower.site.data import SiteData
from fl_lightning.flower.site.settings import read_settings
from fl_lightning.flower.wire import requirements
from fl_lightning.flower.wire.keys import create_key, read_private_key
from fl_lightning.flower.wire.pool import FlowerPool
from fl_lightning.flower.wire.requirements import address_of
from fl_lightning.flower.wire.serve import _listen as listen
from fl_lightning.flower.wire.server_folder import ServerFolder
from fl_lightning.settings.server import Faults

EMBEDDED = "datamodule: {class_path: fl_lightning.MNISTDataModule, init_args: {source: embedded}}\n"
TABLE = "datamodule: {{class_path: TableDataModule, init_args: {{path: own.csv, kind: classification, test_share: 0{}}}}}\n"


def data_file(text: str) -> Any:
    Path("data.yaml").write_text(text)
    return read_settings(Path("data.yaml"))


def data(text: str, words: str) -> Refusal:
    """Return a row for a wrong data.yaml."""
    return Refusal(lambda: data_file(text), f"data.yaml ... {words}")


def table(content: str | None, words: str) -> Refusal:
    """Return a row for a table that cannot be read; None for no file."""

    def call() -> None:
        if content is not None:
            Path("own.csv").write_text(content)
        SiteData(data_file(TABLE.format(", standardize: false")))

    return Refusal(call, words, DataError)


def scaling(more: str) -> Refusal:
    """Return a row for a site that would scale by its own rows, and the others by theirs."""

    def call() -> None:
        Path("own.csv").write_text("a,b,target\n1,2,0\n2,1,1\n")
        data_file(TABLE.format(more) + "device: cpu\n")

    return Refusal(call, "'datamodule' has 'standardize: true', ... let the model scale: Standardized")


def missing_device() -> None:
    with mock.patch.object(torch.cuda, "device_count", return_value=1):
        data_file(EMBEDDED + "device: cuda:1\n").torch_device()


def serving(make: Callable[[ServerFolder], Any], words: str, host: str = "h") -> Refusal:
    """Return a row for a server's folder that was changed."""

    def call() -> None:
        folder = ServerFolder(Path("fed"))
        make(folder)
        folder.prepare(host, 1, 2)

    return Refusal(call, words)


def of_another_ca(folder: ServerFolder) -> None:
    other = ServerFolder(Path("other"))
    for each in (folder, other):
        each.prepare("h", 1, 2)
    Path(folder.files["certificate"]).unlink()
    other.ca_key.replace(folder.ca_key)


def with_another_key(folder: ServerFolder) -> None:
    put_certificate(folder, "h")
    kept = Path(folder.files["certificate"]).read_bytes()
    put_certificate(folder, "h")
    Path(folder.files["certificate"]).write_bytes(kept)


def spoilt(name: str, content: str | None = "no PEM") -> Callable[[ServerFolder], None]:
    def make(folder: ServerFolder) -> None:
        put_certificate(folder, "h")
        path = Path(folder.files[name])
        path.unlink()
        if content is not None:
            path.write_text(content)

    return make


def public_as_private() -> None:
    create_key(Path("a.key"))
    Path("a.pub").chmod(0o600)
    read_private_key(Path("a.pub"))


def listening_twice() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen("127.0.0.1", taken.getsockname()[1])


def connecting() -> None:
    ServerFolder(Path("fed")).prepare("h", 1, 2)
    with mock.patch("fl_lightning.flower.wire.pool.require_flower"):
        FlowerPool("fed")._connect(SimpleNamespace(faults=Faults()))


def folder_is_a_file() -> None:
    Path("taken").write_text("")
    ServerFolder(Path("taken")).prepare("h", 1, 2)


def requiring(version: Any = FLOWER, **environment: str) -> Callable[[], Any]:
    """Return a look at Flower's version and the proxies of the environment."""

    def call() -> None:
        kept = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
        with (
            mock.patch.dict(os.environ, {**kept, **environment}, clear=True),
            mock.patch.object(requirements, "installed_version", return_value=version),
            mock.patch.object(requirements, "prepare_environment"),
        ):
            requirements.require_flower()

    return call


ONE_VERSION = "needs Flower 1.42 at the server and at all sites, but 'flwr' {} here. ... pip install 'flwr==1.42.*'"
NO_PROXY = "which is not an HTTP proxy. Correct or unset"
UNUSABLE = "server.crt', its key ... cannot be used ... Put PEM files there that belong"
HAS_NO_CLASS = "'{0}' has settings, but no class. Write '{0}: {{class_path: ..., init"
REFUSALS = [
    # data.yaml
    data("", "is empty. Set 'datamodule' in it"),
    data("client_test: 0.2\n", "the following arguments are required: datamodule."),
    data(EMBEDDED + "client_tests: 0.2\n", "Option 'client_tests' is not accepted. Did you mean client_test?"),
    data(EMBEDDED + "client_test: many\n", "'client_test' must be a number, but is 'many'."),
    data("datamodule: {path: own.csv}\n", HAS_NO_CLASS.format("datamodule")),
    data(EMBEDDED + "test: {path: own.csv}\n", HAS_NO_CLASS.format("test")),
    data(EMBEDDED + "seed: 1\nseed: 2\n", "'seed' occurs twice, first in line "),
    data(EMBEDDED + "seed: 010\n", "YAML reads 010 as the number 8. Put quotes around it, or write the number"),
    data(EMBEDDED + "device: gpu\n", "'device' must be auto, cpu, cuda or cuda:NUMBER, but is 'gpu'."),
    Refusal(missing_device, "'device' is 'cuda:1', but torch finds 1 GPUs here. Set 'device: auto'."),
    # a site's table
    table(None, "'own.csv' does not exist. Set 'data.datamodule.path' to"),
    table("a,b,target\n", "own.csv' has a header but no rows."),
    table("a,b,other\n1,2,0\n", "target"),
    table("a;b;target\n1;2;0\n", "target"),
    table("a,b,target\n1,NA,0\n2,3,1\n", "holds 'NA', which is not a number"),
    table("a,b,target\n1,,0\n2,3,1\n", "is empty"),
    *map(scaling, ("", ", standardize: true")),
    # keys and certificates
    Refusal(public_as_private, "'a.pub', which is not a private key that this program created"),
    serving(of_another_ca, "needs the key of the CA"),
    serving(lambda folder: put_certificate(folder, "h", days=1), "server.crt' expired on 20 ... Put a new one there."),
    serving(with_another_key, UNUSABLE),
    *(serving(spoilt(name), UNUSABLE) for name in ("ca", "certificate", "key")),
    serving(spoilt("key", None), UNUSABLE),
    serving(put_certificate, "server.crt' is for no host, so no site would connect."),
    serving(lambda folder: put_certificate(folder, "h"), "server.crt' is not for 127.0.0.1, ... see docs/deployment.md."),
    # folders, ports and addresses
    Refusal(folder_is_a_file, "Cannot create the folder 'taken' (File exists). Choose another."),
    Refusal(listening_twice, "Cannot listen on 127.0.0.1: ... Choose another port."),
    Refusal(lambda: listen("192.0.2.1", 0), "Cannot listen on 192.0.2.1:0 ... Choose another address for '--bind'"),
    Refusal(connecting, "No site is registered. Run 'fl-lightning register NAME.pub' for each."),
    Refusal(lambda: ServerFolder(Path()).settings(), "fl-lightning serve --folder"),
    *(
        Refusal(lambda url=url: address_of(url), "Use https")
        for url in ("http://fed.example.org", "https://", "https://h/path")
    ),
    # Flower and proxies
    Refusal(requiring(None), ONE_VERSION.format("is not installed")),
    Refusal(requiring("1.41"), ONE_VERSION.format("has version 1.41")),
    Refusal(
        requiring(HTTPS_PROXY="socks5://127.0.0.1:9"),
        "HTTPS_PROXY is 'socks5://... which is not an HTTP proxy. Correct or unset",
    ),
    Refusal(requiring(all_proxy="foo://x"), "ALL_PROXY is 'foo://x', which is not an HTTP proxy. Correct or unset"),
]
