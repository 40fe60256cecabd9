"""The commands of sites and their server, up to where they would connect: arguments, keys, certificates and printed files."""

import re
import shlex
from pathlib import Path
from types import SimpleNamespace

import pytest
from command_line import ROOT

from fl_lightning.compat.flower_server import Node
from fl_lightning.errors import ConfigurationError
from fl_lightning.flower.site.parent import _parser
from fl_lightning.flower.site.parent import main as site
from fl_lightning.flower.site.store import SiteStore
from fl_lightning.flower.wire.keys import create_key
from fl_lightning.flower.wire.pool import FlowerPool
from fl_lightning.flower.wire.serve import main as serve
from fl_lightning.flower.wire.server_folder import ServerFolder, answering
from fl_lightning.settings.server import Faults
from fl_lightning.utilities.folder_lock import lock_folder

RSA = "ssh-rsa AAAAB3NzaC1yc2EAAAADAQABAAAAgQDBYO8TUv1fXcPbFUs5NV9GSSYwQpzvaKhc4v3DfUlXfQ=="
EMBEDDED = "datamodule: {class_path: fl_lightning.MNISTDataModule, init_args: {source: embedded}}\n"


@pytest.fixture(autouse=True)
def without_flower(monkeypatch, tmp_path):
    pytest.importorskip("cryptography")
    for module in ("site.parent", "wire.serve"):
        monkeypatch.setattr(f"fl_lightning.flower.{module}.require_flower", lambda: None)
    monkeypatch.chdir(tmp_path)


def refused(capsys, command, *words: str) -> str:
    """Return the one line that a refused command prints."""
    with pytest.raises(SystemExit) as ended:
        command([*words])
    assert ended.value.code in (1, 2)
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1, said
    return said[0]


@pytest.mark.parametrize(
    ("command", "words", "said"),
    [
        (serve, "serve", "the following arguments are required: --host. All settings: fl-lightning serve --help."),
        (serve, "serve --host h --port 99999", "argument --port: '99999' is not a port, a number from 0 to 65535."),
        (serve, "serve --host h --local_port x", "argument --local_port: 'x' is not a port"),
        (serve, "serve --host https://h:8443", "'https://h:8443' is not a name or an address without 'https://' and port."),
        (serve, "serve --hos h", "the following arguments are required: --host."),
        (serve, "serve --host h --print nginx", "unrecognized arguments: --print nginx"),
        (serve, "serve --host h --port 9 --local_port 9", "'--port' and '--local_port' are both 9. Choose different ports."),
        (serve, "register none.pub", "Cannot read 'none.pub' (No such file or directory). Pass the site's public key."),
        (serve, "register taken", "'taken' is not a site's public key. Ask for the file '.pub' that"),
        (serve, "register rsa.pub", "'rsa.pub' is not a site's public key."),
        (serve, "register a.key", "'a.key' is a private key, which must not leave the site. Ask for the file '.pub'."),
        (serve, "register a.pub --name ../a", "The name is '../a'. Use letters, digits, '-' and '_' only."),
        (site, "site", "the following arguments are required: --name, --server, --key, --data. All settings:"),
        (site, "site foo", "unrecognized arguments: foo."),
        (site, "site --name ../a --server h --key a.key --data d", "The name is '../a'. Use letters, digits,"),
        (site, "site --name a --server h --key b.key --data d", "'--key' is 'b.key', which is not a file. Create one:"),
        (site, "site --name a --server h --key a.pub --data d", "Other accounts can read the private key 'a.pub'. Run: chmod"),
        (site, "site --name a --server h --key a.key --data d", "'--data' is 'd', which is not a file. Write it;"),
        (site, "site --name a --server h --key a.key --data taken --ca x", "'--ca' is 'x', which is not a file. Use the"),
        (
            site,
            "site --name a --server h --key a.key --data taken --ca a.pub",
            "'--ca' is 'a.pub', which is not a certificate.",
        ),
        (
            site,
            "site --name a --server https://h:99999 --key a.key --data taken",
            "whose port is not a number from 0 to 65535.",
        ),
        (
            site,
            "site --name a --server h --key a.key --data taken --folder taken",
            "taken', which is not writable (File exists). Set it",
        ),
        (site, "site --create_key a.key", "'a.key' exists already. Choose another name; a key is not overwritten."),
        (site, "site --create_key a", "'a.pub' exists already. Choose another name; a key is not overwritten."),
        (site, "site --create_key taken/a.key", "Cannot write 'taken/a.key' (File exists). Choose another folder."),
    ],
)
def test_wrong_arguments_are_one_message(command, words, said, capsys):
    create_key(Path("a.key"))
    Path("taken").write_text("not a folder, a key or a certificate")
    Path("rsa.pub").write_text(RSA)
    assert said in refused(capsys, command, *words.split())


PLAIN = SimpleNamespace(faults=Faults())
"""The settings of a fit, as far as a connection needs them."""


def test_one_server_and_one_site_use_a_folder(capsys):
    """A second site gave the first's worker a wrong secret, a second server took the first's place."""
    create_key(Path("a.key"))
    Path("data.yaml").write_text(EMBEDDED)
    folder = ServerFolder(Path("fed"))
    folder.prepare("h", 1, 2)
    before = (folder.path / "server.json").read_text()
    with lock_folder(Path("fed")):
        assert "Another server is using 'fed' (process" in refused(capsys, serve, "serve", "--host", "h", "--port", "0")
    with lock_folder(Path("site_a")):
        said = refused(capsys, site, *["site", "--name", "a", "--server", "h", "--key", "a.key", "--data", "data.yaml"])
    assert re.search("Another site is using .* set '--folder' to another folder.", said)
    assert not Path("site_a/secret").exists()
    assert (folder.path / "server.json").read_text() == before


def test_a_fit_has_the_folder_until_it_releases_it(monkeypatch):
    """A second fit ended the first."""
    monkeypatch.setattr("fl_lightning.flower.wire.pool.require_flower", lambda: None)
    folder = ServerFolder(Path("fed"))
    folder.prepare("h", 1, 2)
    folder.number("a")
    monkeypatch.setattr("fl_lightning.flower.wire.pool.ControlLink", Link)
    monkeypatch.setattr("fl_lightning.flower.wire.pool.ServerLink", lambda *_: SimpleNamespace(close=lambda completed: None))
    transport, names = FlowerPool("fed")._connect(PLAIN)
    assert names == ["a"]
    with pytest.raises(ConfigurationError, match=r"Another fit is using 'fed/fit' \(process"):
        FlowerPool("fed")._connect(PLAIN)
    transport.close(True)
    FlowerPool("fed")._connect(PLAIN)[0].close(True)


def test_an_answer_that_refuses_is_not_called_none():
    folder = ServerFolder(Path("fed"))
    folder.prepare("h", 1, 2)
    errors = {name: type(name, (Exception,), {"__module__": "httpx"}) for name in ("HTTPStatusError", "ConnectError")}
    refused = r"127.0.0.1:2 refused the request \(401 .*\). Look at its output, and end other"
    with pytest.raises(ConfigurationError, match=refused), answering(folder):
        raise errors["HTTPStatusError"]("401\nUnauthorized")
    gone = r"did not answer \(ConnectError: gone\). Start it first: .* --host h"
    with pytest.raises(ConfigurationError, match=gone), answering(folder):
        raise errors["ConnectError"]("gone")
    with pytest.raises(ValueError, match="another error"), answering(folder):
        raise ValueError("another error")


class Link:
    """The SuperLink's list of sites."""

    def __init__(self, *_: object) -> None:
        self.removed: list[int] = []

    def nodes(self) -> list[Node]:
        return [Node(7, "a", True), Node(8, "b", False)]

    def unregister(self, node_id: int) -> None:
        print(f"unregistered {node_id}")

    def close(self) -> None:
        pass


def test_sites_are_listed_and_revoked_by_name(monkeypatch, capsys):
    folder = ServerFolder(Path("fed"))
    folder.prepare("h", 1, 2)
    assert [folder.number(name) for name in ("a", "b", "a", "gone")] == [0, 1, 0, 2]
    monkeypatch.setattr("fl_lightning.flower.wire.serve.ControlLink", Link)
    serve(["sites", "list"])
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert rows[1:] == [["0", "a", "online"], ["1", "b", "offline"], ["2", "gone", "revoked"]]
    serve(["sites", "revoke", "b"])
    assert capsys.readouterr().out == "unregistered 8\nRevoked b. Its number 1 stays with this name.\n"
    assert refused(capsys, serve, "sites", "revoke").endswith("'revoke' needs the name of a site. Sites: a, b.")
    assert refused(capsys, serve, "sites", "revoke", "c").endswith("No site named 'c' is registered. Sites: a, b.")


class Registry(Link):
    """A SuperLink on which keys are spent."""

    spent: list[str] = []

    def knows(self, public_key: bytes) -> bool:
        return False

    def register(self, public_key: bytes, name: str) -> int:
        self.spent.append(name)
        return 9


@pytest.fixture
def registry(monkeypatch):
    monkeypatch.setattr("fl_lightning.flower.wire.serve.ControlLink", Registry)
    monkeypatch.setattr(Registry, "spent", [])
    ServerFolder(Path("fed")).prepare("h", 1, 2)
    create_key(Path("c.key"))
    return Registry


def test_one_registration_at_a_time(registry, capsys):
    """Two would take the same number, after the keys are spent."""
    with lock_folder(Path("fed/register")):
        said = refused(capsys, serve, "register", "c.pub")
    assert "Another registration is using 'fed/register' (process" in said
    assert "Wait until it has finished" in said
    assert (registry.spent, ServerFolder(Path("fed")).numbers()) == ([], {})
    serve(["register", "c.pub"])
    assert capsys.readouterr().out == "Registered c as client 0.\n"
    assert (registry.spent, ServerFolder(Path("fed")).numbers()) == (["c"], {"c": 0})


def test_a_key_is_spent_after_its_site_has_a_number(registry, monkeypatch):
    def full(*_: object) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr("fl_lightning.flower.wire.server_folder.write_whole", full)
    with pytest.raises(OSError, match="No space left"):
        serve(["register", "c.pub"])
    assert registry.spent == []


def test_a_site_removes_what_a_killed_worker_left():
    """Each worker writes under its own name, so that a site which is killed again and again would fill its disk."""
    SiteStore(Path(), "0" * 32).save({}, "key", b"reply")
    folder = Path("federations") / ("0" * 32)
    (folder / ".state.bin.7.partial").write_bytes(b"half a st")
    assert SiteStore(Path(), "0" * 32).reply("key") == b"reply"
    assert {path.name for path in folder.iterdir()} == {"state.bin", "reply-key"}


def test_the_service_file_has_the_arguments_of_a_site():
    """``site --print systemd`` printed one."""
    unit = (ROOT / "docs/deploy/site.service").read_text().replace("\\\n", " ")
    command = shlex.split(unit.partition("ExecStart=")[2].splitlines()[0])
    parsed = vars(_parser().parse_args(command[2:]))
    assert command[1] == "site"
    assert [name for name, value in parsed.items() if value] == ["name", "server", "key", "data", "ca"]
    assert "TimeoutStopSec=20" in unit
