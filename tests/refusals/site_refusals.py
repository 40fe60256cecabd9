"""What a site and its server refuse of their own settings and files."""

import json
import os
import socket
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from asked_site import north
from masked_sites import masked
from own_certificates import put_certificate
from refusing import Refusal, later, told
from sites_over_bytes import at_sites, configuration, prepare, refused, restart, simulate

from fl_lightning import ConfigurationError
from fl_lightning.compat.flower import FLOWER
from fl_lightning.flower.site.budget import SiteBudget
from fl_lightning.flower.site.commands import main as decide
from fl_lightning.flower.site.data import SiteData
from fl_lightning.flower.site.policy import Budget, Form, Machine, Masks, Noise, Policy
from fl_lightning.flower.site.settings import read_settings
from fl_lightning.flower.wire import requirements
from fl_lightning.flower.wire.keys import create_key, read_private_key
from fl_lightning.flower.wire.pool import FlowerPool
from fl_lightning.flower.wire.requirements import address_of
from fl_lightning.flower.wire.serve import _listen as listen
from fl_lightning.flower.wire.server_folder import ServerFolder
from fl_lightning.options.asynchronous.arrivals import ArrivalFile, Recording
from fl_lightning.settings.server import Faults

# ------ Settings of a site, and replays


def policy(**settings: Any) -> Callable[[], Any]:
    return lambda: Policy(**settings)


def budget(**settings: Any) -> Callable[[], Any]:
    return lambda: Budget(**{"data": "x", "account": "none", "max_epsilon": 1.0, **settings})


def null(name: str) -> Refusal:
    group, _, inner = name.partition(".")
    given = {group: {inner: None} if inner else None}
    return Refusal(lambda: north(**given), f"data.yaml' cannot be read: 'policy.{name}' is null. Set it, or")


def written(given: Any) -> Callable[[], Any]:
    """Return a call that starts a site with this policy in its file."""
    return lambda: (north(), restart("north", policy=given))


HEAD = json.dumps({"clients": ["a", "b"], "seed": 0}) + "\n"


def row(round_idx: int, order: int, client: int, version: int, lost: bool = False, of: int = 1) -> str:
    arrival = {"round": round_idx, "order": order, "client": client, "version": version, "lost": lost, "of": of}
    return json.dumps(arrival) + "\n"


@later
def reading(text: str | None) -> None:
    """Return a call that reads the arrivals of two clients, seed 0 and a buffer of one; None for no file."""
    path = Path("none.jsonl" if text is None else "arrivals.jsonl")
    if text is not None:
        path.write_text(text)
    Recording.read(path, 2, 0, 1)


@later
def replaying(rounds: int = 2, **federation: Any) -> None:
    """Return a replay of two rounds of three sites."""
    prepare(start=False)
    ArrivalFile(Path(), ("north", "south", "west"), 0).begin(0)
    path = Path("arrivals.jsonl")
    path.write_text(path.read_text() + row(0, 0, 0, 0) + row(1, 1, 1, 0))
    asynchronous = {"concurrency": 3, "buffer": 1, "replay": str(path)}
    config = configuration(rounds, strategy="FedAsync", asynchronous=asynchronous, **federation)
    raise ConfigurationError(refused(config, fit=simulate))


def reporting(config: dict[str, Any]) -> None:
    config["federation_report"] = {"features": True}


OWN_NOISE = {"class_path": "ClientPrivacy", "init_args": {"max_norm": 1, "noise_multiplier": 1, "noise": "local"}}
SITE = [
    # the policy
    Refusal(policy(federations=-1), "'policy.federations' must be any, or a number of 0 or above"),
    Refusal(policy(digits=0), "'policy.digits' must be 1 or above, or null"),
    Refusal(policy(min_rows=0), "'policy.min_rows' must be 1 or above"),
    Refusal(policy(tells=["los"]), "'policy.tells' has 'los', but must be of examples, ... metric/NAME. Did you mean loss?"),
    Refusal(lambda: Machine(trainings=0), "'policy.machine.trainings' must be 1 or above"),
    Refusal(lambda: Machine(hours=0.0), "'policy.machine.hours' must be above 0"),
    Refusal(policy(answers=0), "'policy.answers' must be 1 or above"),
    Refusal(lambda: Machine(memory=0.0), "'policy.machine.memory' must be above 0, in GiB"),
    *map(null, ("min_rows", "federations", "code", "machine.trainings")),
    *(
        Refusal(written(given), f"'policy' has '{name}', but its settings are federations, update, tells, ... site_policy.md")
        for name, given in (("strict", "strict"), ("min_noise", {"min_noise": 1}))
    ),
    # noise and masks
    *(
        Refusal(written({"update": form}), "'policy.update' must be plain, or have the settings of noise, of masks or of both")
        for form in (None, {}, "masks", {"mask": {"peers": "peers"}}, {"masks": {}}, {"noise": None})
    ),
    Refusal(written({"update": {"noise": {"budget": None}}}), "needs a value for least. Add policy.update.noise.least"),
    Refusal(written({"update": {"masks": {"peers": "peers", "least": 1}}}), "read: 'policy.update.masks.least' must be 2 or"),
    Refusal(lambda: Noise(0.0), "'policy.update.noise.least' must be above 0"),
    Refusal(policy(update=Form(Noise(1.0)), tells=["loss"]), "'policy.tells' has 'loss', which ... Remove it: with noise"),
    Refusal(policy(update=Form(masks=Masks("peers")), tells=["seconds"]), "'policy.tells' has 'seconds', which ... Remove it"),
    Refusal(lambda: Masks("peers", lost=-1), "'policy.update.masks.lost' must be 0 or above"),
    Refusal(lambda: masked(update={"masks": {"peers": "nowhere"}}), "'policy.update.masks.peers' is 'nowhere', which is no"),
    # the budget
    Refusal(lambda: SiteBudget(budget()(), True), "'policy.update.noise.budget.account' is ...none', which does not exist"),
    Refusal(budget(data=" "), "'policy.update.noise.budget.data' must be"),
    Refusal(budget(max_epsilon=0.0), "'policy.update.noise.budget.max_epsilon' must be"),
    Refusal(budget(delta=1.0), "'policy.update.noise.budget.delta' must be"),
    # silence that is shorter than two signs of life
    Refusal(lambda: FlowerPool(timeout=5), "'federation.pool.timeout' ... 30 seconds or above, or null ... 5"),
    # a report that has no noise
    Refusal(at_sites(start=False, transforms=[OWN_NOISE], change=reporting), "reads sums over the clients' ... get no noise"),
    # a replay that could not repeat a run to the bit
    Refusal(replaying(transforms=[OWN_NOISE]), "repeats a run to the bit, but ClientPrivacy adds noise that each site draws"),
    Refusal(replaying(availability={"clock": {"ticks": 10}}), "which cannot have had 'federation.availability.clock'"),
    Refusal(replaying(3), "which has 2 rounds, but 'trainer.max_epochs' is 3. Set it to 2 at most."),
    # the file of another run, or a broken one
    Refusal(reading(None), "is 'none.jsonl', which is not a file. Name the arrivals.jsonl in a run's folder"),
    Refusal(reading(""), "does not begin with a line of clients and a seed"),
    Refusal(reading(HEAD.replace(', "b"', "")), "whose 'clients' is 1, but this run has 2"),
    Refusal(reading(HEAD.replace(": 0", ": 4")), "whose 'seed' is 4, but this run has 0"),
    Refusal(reading(HEAD + row(0, 0, 0, 0) + "x\n"), "Line 3 of ... is not an arrival"),
    Refusal(reading(HEAD + row(0, 0, 2, 0)), "Line 2 of ... is not an arrival"),
    Refusal(reading(HEAD + row(0, 0, 0, 0, of=2) + row(0, 1, 1, 0, of=2)), "round 0 has 2 updates, but ... buffer' is 1"),
    Refusal(reading(HEAD + row(0, 0, 0, 0) + row(1, 2, 1, 0)), "which lacks the end of task 1, or has one twice. Copy it"),
    Refusal(reading(HEAD + row(0, 0, 0, 0) + row(0, 0, 0, 0)), "which lacks the end of task 1, or has one twice"),
    Refusal(reading(HEAD + row(0, 0, 0, 1)), "round 0 has a task of client 0 from model 1, which it cannot have begun"),
    Refusal(reading(HEAD + row(0, 0, 1, 0) + row(1, 1, 0, 0) + row(2, 2, 0, 1)), "round 2 has a task of client 0 from model"),
]


# ------ Files and addresses of sites and their server


EMBEDDED = "datamodule: {class_path: fl_lightning.MNISTDataModule, init_args: {source: embedded}}\n"
TABLE = "datamodule: {{class_path: TableDataModule, init_args: {{path: own.csv, kind: classification, test_share: 0{}}}}}\n"


def data_file(text: str) -> Any:
    Path("data.yaml").write_text(text)
    return read_settings(Path("data.yaml"))


def data(text: str, words: str) -> Refusal:
    """Return a row for a wrong data.yaml."""
    return Refusal(lambda: data_file(text), f"data.yaml ... {words}")


@later
def table(content: str, more: str = ", standardize: false") -> None:
    """Read a site's table."""
    Path("own.csv").write_text(content)
    SiteData(data_file(TABLE.format(more) + "device: cpu\n"))


def missing_device() -> None:
    with mock.patch.object(torch.cuda, "device_count", return_value=1):
        data_file(EMBEDDED + "device: cuda:1\n").torch_device()


@later
def serving(make: Callable[[ServerFolder], Any], host: str = "h") -> None:
    """Start with a server's folder that was changed."""
    folder = ServerFolder(Path("fed"))
    make(folder)
    folder.prepare(host, 1, 2)


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


def with_damaged_numbers(folder: ServerFolder) -> None:
    folder.create()
    Path("fed/sites.json").write_text("{")
    folder.number("a")


def spoilt(name: str) -> Callable[[ServerFolder], None]:
    def make(folder: ServerFolder) -> None:
        put_certificate(folder, "h")
        path = Path(folder.files[name])
        path.unlink()
        path.write_text("no PEM")

    return make


def public_as_private() -> None:
    create_key(Path("a.key"))
    Path("a.pub").chmod(0o600)
    read_private_key(Path("a.pub"))


def listening_twice() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen("127.0.0.1", taken.getsockname()[1])


@later
def staff(words: str) -> None:
    """Return what the staff of a site type."""
    Path("site_a").mkdir()
    Path("site_a/audit.jsonl").touch()
    Path("data.yaml").write_text(EMBEDDED)
    command, *others = words.split()
    decide(command, others)


def connecting() -> None:
    ServerFolder(Path("fed")).prepare("h", 1, 2)
    with mock.patch("fl_lightning.flower.wire.pool.require_flower"):
        FlowerPool("fed")._connect(SimpleNamespace(faults=Faults()))


def folder_is_a_file() -> None:
    Path("taken").write_text("")
    ServerFolder(Path("taken")).prepare("h", 1, 2)


@later
def requiring(version: Any = FLOWER, **environment: str) -> None:
    """Return a look at Flower's version and the proxies of the environment."""
    kept = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    with (
        mock.patch.dict(os.environ, {**kept, **environment}, clear=True),
        mock.patch.object(requirements, "installed_version", return_value=version),
        mock.patch.object(requirements, "prepare_environment"),
    ):
        requirements.require_flower()


SCALES = "'datamodule' has 'standardize: true', ... let the model scale: Standardized"
ONE_VERSION = "needs Flower 1.42 at the server and at all sites, but 'flwr' {} here. ... pip install 'flwr==1.42.*'"
NO_PROXY = "which is not an HTTP proxy. Correct or unset"
UNUSABLE = "server.crt', its key ... cannot be used ... Put PEM files there that belong"
HAS_NO_CLASS = "'{0}' has settings, but no class. Write '{0}: {{class_path: ..., init"
SITE_FILE = [
    # data.yaml
    data("", "is empty. Set 'datamodule' in it"),
    data("client_test: 0.2\n", "the following arguments are required: datamodule."),
    data(EMBEDDED + "schema: server\n", "'schema' is now one of the datamodule: set it there to a copy of the server's file."),
    data(EMBEDDED + "client_tests: 0.2\n", "Option 'client_tests' is not accepted. Did you mean client_test?"),
    data(EMBEDDED + "client_test: many\n", "'client_test' must be a finite number, but is 'many'."),
    data(EMBEDDED + "policy: {update: {noise: {leas: 2}}}\n", "Option 'leas' is not accepted. Did you mean least?"),
    data("datamodule: {path: own.csv}\n", HAS_NO_CLASS.format("datamodule")),
    data(EMBEDDED + "seed: 1\nseed: 2\n", "'seed' occurs twice, first in line "),
    data(EMBEDDED + "seed: 010\n", "YAML reads 010 as the number 8. Put quotes around it, or write the number"),
    data(EMBEDDED + "device: gpu\n", "'device' must be auto, cpu, cuda or cuda:NUMBER, but is 'gpu'."),
    Refusal(missing_device, "'device' is 'cuda:1', but torch finds 1 GPUs here. Set 'device: auto'."),
    # a site's table
    told(table("a,b,target\n1,NA,0\n2,3,1\n"), "holds 'NA', which is not a number"),
    *(Refusal(table("a,b,target\n1,2,0\n", more), SCALES) for more in ("", ", standardize: true")),
    # keys and certificates
    Refusal(public_as_private, "'a.pub', which is not a private key that this program created"),
    Refusal(serving(of_another_ca), "needs the key of the CA"),
    Refusal(serving(lambda folder: put_certificate(folder, "h", days=0)), "server.crt' expired on 20 ... Put a new one there."),
    Refusal(serving(with_another_key), UNUSABLE),
    *(Refusal(serving(spoilt(name)), UNUSABLE) for name in ("ca", "certificate", "key")),
    Refusal(serving(put_certificate), "server.crt' is for no host, but not for h ('--host')."),
    Refusal(serving(lambda folder: put_certificate(folder, "h")), "but not for 127.0.0.1 (where ... give yours to a proxy"),
    # what the staff type
    Refusal(staff("audit"), "Which site? Pass '--name', or '--folder'"),
    Refusal(staff("audit --name nowhere"), "'site_nowhere' is not the folder of a site that has had a message."),
    Refusal(staff("approve --name a xyz 0"), "The federation is 'xyz', but must be 32 hexadecimal digits"),
    Refusal(staff(f"approve --name a {'b' * 32} {'0' * 64}"), "No server has sent settings with the digest '000"),
    Refusal(staff("withdraw --name a 1"), "The federation is '1'"),
    Refusal(staff("budget --data data.yaml"), "'data.yaml' has no 'policy.update.noise.budget'"),
    # folders, ports and addresses
    Refusal(serving(with_damaged_numbers), "The file 'fed/sites.json' is damaged. Restore it"),
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
    Refusal(requiring(HTTPS_PROXY="socks5://127.0.0.1:9"), "HTTPS_PROXY is 'socks5://... which is not an ... Correct or unset"),
]


REFUSALS = [*SITE, *SITE_FILE]
