"""The commands of sites and their server, up to where they would connect: arguments, keys, certificates and printed files."""

from __future__ import annotations

import argparse
import contextlib
import datetime
import re
import shlex
import socket
import ssl
import subprocess
import sys
import time
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import yaml
from command_line import ROOT

from fl_lightning.compat.flower import TESTED
from fl_lightning.compat.flower_control import Node
from fl_lightning.errors import ConfigurationError, DataError
from fl_lightning.flower import requirements, site_check
from fl_lightning.flower.certificates import answering
from fl_lightning.flower.keys import create_key, read_private_key, read_public_key, require_certificate
from fl_lightning.flower.pool import FlowerPool
from fl_lightning.flower.processes import UNUSABLE, Child, Supervisor
from fl_lightning.flower.requirements import require_flower
from fl_lightning.flower.serve import _listen as listen
from fl_lightning.flower.serve import main as serve
from fl_lightning.flower.server_folder import ServerFolder, refuse_answer
from fl_lightning.flower.site import main as site
from fl_lightning.flower.site_data import SiteData
from fl_lightning.flower.site_settings import read_settings
from fl_lightning.flower.site_state import SiteStore
from fl_lightning.settings.faults import Faults
from fl_lightning.utilities.folder_lock import lock_folder

RSA = "ssh-rsa AAAAB3NzaC1yc2EAAAADAQABAAAAgQDBYO8TUv1fXcPbFUs5NV9GSSYwQpzvaKhc4v3DfUlXfQ=="
EMBEDDED = "datamodule: {class_path: fl_lightning.MNISTDataModule, init_args: {source: embedded}}\n"


@pytest.fixture(autouse=True)
def without_flower(monkeypatch, tmp_path):
    pytest.importorskip("cryptography")
    for module in ("site", "serve"):
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
        (serve, "serve --host h --local_port -1", "argument --local_port: '-1' is not a port"),
        (serve, "serve --host h --port x", "argument --port: 'x' is not a port"),
        (serve, "serve --host https://h:8443", "'https://h:8443' is not a name or an address without 'https://' and port."),
        (serve, "serve --hos h --print nginx", "the following arguments are required: --host."),
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
        (site, "site --name a --server h --key a.key --data d", "'--data' is 'd', which is not a file. Write one;"),
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
        (site, "site --name a --server https://h:x --check --key a.key --data taken", "whose port is not a number from"),
        (site, "site --name a --server h --key . --data taken", "'--key' is '.', which is not a file."),
        (site, "site --name a --server h --key a.key --data .", "'--data' is '.', which is not a file."),
        (site, "site --name a --server h --key a.key --data taken --folder taken", "taken' (File exists). Set '--folder'."),
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


@pytest.mark.parametrize("module", ["site", "serve"])
def test_commands_that_only_supervise_do_not_load_torch(module):
    """The parent of a site's processes, and the server, stay small: a site's worker has torch for itself."""
    asked = f"import sys, fl_lightning.flower.{module}; print(sorted({{'torch', 'lightning'}} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout == "[]\n"


def test_a_key_is_private_and_its_pair_is_complete():
    assert create_key(Path("a.key")) == Path("a.pub")
    assert Path("a.pub").read_bytes().startswith(b"ecdsa-sha2-nistp384 ")
    assert Path("a.key").stat().st_mode & 0o777 == 0o600
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key

    private = load_ssh_private_key(read_private_key(Path("a.key")), None)
    assert private.public_key() == load_ssh_public_key(read_public_key(Path("a.pub")))


def test_another_file_is_no_private_key():
    create_key(Path("a.key"))
    Path("a.pub").chmod(0o600)
    with pytest.raises(ConfigurationError, match=r"'a.pub', which is not a private key that this program created"):
        read_private_key(Path("a.pub"))


def test_a_server_keeps_its_host():
    folder = ServerFolder(Path("fed"))
    assert "certificate for fed.example.org" in folder.prepare("fed.example.org", 1, 2)[0]
    require_certificate(folder.files["ca"])
    for host in ("fed.example.org", "localhost", "127.0.0.1"):
        assert folder.prepare(host, 3, 4) == []
    with pytest.raises(ConfigurationError, match=r"'--host' is 'example.org', but .* is for fed.example.org, localhost, 127"):
        folder.prepare("example.org", 1, 2)
    assert folder.settings() == {"host": "127.0.0.1", "port": 3, "local_port": 4}


def put_certificate(folder: ServerFolder, *names: str, days: int = 2) -> None:
    """Put a CA and a certificate of yesterday for some names into the folder, as the server's owner does."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    def signed(name: str, key, issuer: str, by, *extensions) -> bytes:
        who, whose = (x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, one)]) for one in (name, issuer))
        now, day = datetime.datetime.now(datetime.timezone.utc), datetime.timedelta(days=1)
        draft = x509.CertificateBuilder(
            whose, who, key.public_key(), x509.random_serial_number(), now - day, now + (days - 1) * day
        )
        for extension in extensions:
            draft = draft.add_extension(extension, critical=isinstance(extension, x509.BasicConstraints | x509.KeyUsage))
        return draft.sign(by, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    authority, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    alternatives = [x509.SubjectAlternativeName([x509.DNSName(name) for name in names])] if names else []
    folder.path.mkdir(exist_ok=True)
    identity = x509.SubjectKeyIdentifier.from_public_key(authority.public_key())
    usage = x509.KeyUsage(False, False, False, False, False, True, False, False, False)  # it signs certificates
    ca = signed("Root", authority, "Root", authority, x509.BasicConstraints(True, None), identity, usage)
    Path(folder.public.ca).write_bytes(ca)
    issued_by = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key())  # which Python 3.13 wants
    Path(folder.public.certificate).write_bytes(signed("server", key, "Root", authority, issued_by, *alternatives))
    form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    Path(folder.public.key).write_bytes(key.private_bytes(*form))


def connect(server: ssl.SSLContext, ca: str, name: str) -> list[str]:
    """Return the names in the certificate that a client sees and verifies."""
    client_in, server_in = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = ssl.create_default_context(cafile=ca).wrap_bio(client_in, server_in, server_hostname=name)
    answering = server.wrap_bio(server_in, client_in, server_side=True)
    for _ in range(4):
        for side in (client, answering):
            with contextlib.suppress(ssl.SSLWantReadError):
                side.do_handshake()
    return [value for _, value in (client.getpeercert() or {})["subjectAltName"]]


def test_an_owners_certificate_answers_sites_and_another_one_this_machine():
    folder = ServerFolder(Path("fed"))
    put_certificate(folder, "fed.example.org", "*.clinic.org")
    made = folder.prepare("fed.example.org", 1, 2)
    assert len(made) == 1
    assert made[0].startswith("certificate for connections on this machine, with the CA of key")
    folder.ca_key.with_name("local_ca.key").unlink()
    assert folder.prepare("fed.clinic.org", 1, 2) == []
    assert folder.local != folder.public
    assert folder.certificate == Path(folder.local.ca).read_bytes()
    server = answering(folder.public, folder.local)
    assert connect(server, folder.public.ca, "fed.example.org") == ["fed.example.org", "*.clinic.org"]
    assert connect(server, folder.local.ca, "127.0.0.1") == ["localhost", "127.0.0.1"]
    for host, ca in (("127.0.0.1", folder.public.ca), ("fed.example.org", folder.local.ca)):
        with pytest.raises(ssl.SSLCertVerificationError):
            connect(server, ca, host)


def test_a_certificate_is_renewed_under_the_same_ca():
    folder = ServerFolder(Path("fed"))
    assert "with the CA of key" in folder.prepare("old.org", 1, 2)[0]
    known = Path(folder.public.ca).read_bytes()
    Path(folder.public.certificate).unlink()
    offline = folder.ca_key.rename("ca.key")
    with pytest.raises(ConfigurationError, match=r"A new certificate needs the key of the CA .*fed/ca.crt'.* Put it there for"):
        folder.prepare("new.org", 1, 2)
    offline.rename(folder.ca_key)
    assert f"certificate for new.org, of the CA of key {folder.ca_key}" in folder.prepare("new.org", 1, 2)[0]
    assert Path(folder.public.ca).read_bytes() == known
    assert connect(answering(folder.public, folder.local), folder.public.ca, "new.org")[0] == "new.org"


def test_the_key_of_another_ca_is_refused():
    folder, other = ServerFolder(Path("fed")), ServerFolder(Path("other"))
    for each in (folder, other):
        each.prepare("h", 1, 2)
    Path(folder.public.certificate).unlink()
    other.ca_key.replace(folder.ca_key)
    with pytest.raises(ConfigurationError, match=r"needs the key of the CA"):
        folder.prepare("h", 1, 2)


def test_an_expired_certificate_is_refused():
    folder = ServerFolder(Path("fed"))
    put_certificate(folder, "h", days=1)
    with pytest.raises(ConfigurationError, match=r"server.crt' expired on 20\d\d-\d\d-\d\d. Put a new one there."):
        folder.prepare("h", 1, 2)


def test_one_certificate_is_enough_if_it_names_this_machine():
    folder = ServerFolder(Path("fed"))
    folder.prepare("fed.example.org", 1, 2)
    assert folder.local == folder.public
    server = answering(folder.public, folder.local)
    for host in ("fed.example.org", "127.0.0.1"):
        assert connect(server, folder.public.ca, host) == ["fed.example.org", "localhost", "127.0.0.1"]


@pytest.mark.parametrize("spoilt", ["ca", "certificate", "key", "another key", "missing key"])
def test_a_certificate_that_cannot_be_used_is_refused(spoilt):
    folder = ServerFolder(Path("fed"))
    put_certificate(folder, "h")
    if spoilt == "another key":
        kept = Path(folder.public.certificate).read_bytes()
        put_certificate(folder, "h")
        Path(folder.public.certificate).write_bytes(kept)
    elif spoilt == "missing key":
        Path(folder.public.key).unlink()
    else:
        Path(getattr(folder.public, spoilt)).write_text("no PEM")
    with pytest.raises(ConfigurationError, match=r"server.crt', its key .* cannot be used .* Put PEM files there that belong"):
        folder.prepare("h", 1, 2)


def test_an_address_needs_a_certificate_that_names_this_machine():
    folder = ServerFolder(Path("fed"))
    put_certificate(folder, "192.0.2.7")
    with pytest.raises(ConfigurationError, match=r"'--host' is the address '192.0.2.7', but .* does not name 127.0.0.1"):
        folder.prepare("192.0.2.7", 1, 2)
    own = ServerFolder(Path("own"))
    assert len(own.prepare("192.0.2.7", 1, 2)) == 1
    assert connect(answering(own.public, own.local), own.public.ca, "192.0.2.7") == ["192.0.2.7", "localhost", "127.0.0.1"]


def test_a_certificate_for_no_host_is_refused():
    folder = ServerFolder(Path("fed"))
    put_certificate(folder)
    with pytest.raises(ConfigurationError, match=r"server.crt' is for no host, so no site would connect."):
        folder.prepare("h", 1, 2)


def test_a_folder_that_is_a_file_is_refused():
    Path("taken").write_text("")
    with pytest.raises(ConfigurationError, match=r"Cannot create the folder 'taken' \(File exists\). Choose another."):
        ServerFolder(Path("taken")).prepare("h", 1, 2)


def test_a_port_that_is_taken_is_refused():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigurationError, match=rf"Cannot listen on 127.0.0.1:{port} \(.*\). Choose another port."):
            listen("127.0.0.1", port)


def test_an_address_of_another_machine_is_refused():
    with pytest.raises(ConfigurationError, match=r"Cannot listen on 192.0.2.1:0 .* Choose another address for '--bind'"):
        listen("192.0.2.1", 0)


PLAIN = SimpleNamespace(faults=Faults())
"""The settings of a fit, as far as a connection needs them."""


def test_one_server_one_fit_and_one_site_use_a_folder(monkeypatch, capsys):
    """A second site gave the first's worker a wrong secret, a second fit ended the first, a second server took its place."""
    create_key(Path("a.key"))
    Path("data.yaml").write_text(EMBEDDED)
    folder = ServerFolder(Path("fed"))
    folder.prepare("h", 1, 2)
    before = (folder.path / "server.json").read_text()
    folder.number("a")
    monkeypatch.setattr("fl_lightning.flower.pool.require_flower", lambda: None)
    with lock_folder(Path("fed")):
        assert "Another server is using 'fed' (process" in refused(capsys, serve, "serve", "--host", "h", "--port", "0")
    with lock_folder(Path("fed/fit")), pytest.raises(ConfigurationError, match=r"Another fit is using 'fed/fit' \(process"):
        FlowerPool("fed")._connect(PLAIN)
    with lock_folder(Path("site_a")):
        words = ["site", "--name", "a", "--server", "h", "--key", "a.key", "--data", "data.yaml"]
        said = refused(capsys, site, *words)
    assert "Another site is using" in said
    assert "set '--folder' to another folder." in said
    assert not Path("site_a/secret").exists()
    assert (folder.path / "server.json").read_text() == before


def test_a_fit_releases_the_folder(monkeypatch):
    monkeypatch.setattr("fl_lightning.flower.pool.require_flower", lambda: None)
    folder = ServerFolder(Path("fed"))
    folder.prepare("h", 1, 2)
    folder.number("a")
    monkeypatch.setattr("fl_lightning.flower.pool.ControlLink", Link)
    monkeypatch.setattr("fl_lightning.flower.pool.ServerLink", lambda *_: SimpleNamespace(close=lambda completed: None))
    transport, names = FlowerPool("fed")._connect(PLAIN)
    assert names == ["a"]
    with pytest.raises(ConfigurationError, match="Another fit"):
        FlowerPool("fed")._connect(PLAIN)
    transport.close(True)
    FlowerPool("fed")._connect(PLAIN)[0].close(True)


@pytest.mark.parametrize("wrong", ["socks5://127.0.0.1:9", "foo://x"])
@pytest.mark.parametrize("name", ["HTTPS_PROXY", "all_proxy"])
def test_other_proxies_are_refused(name, wrong, monkeypatch):
    for known in ("HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(known, raising=False)
        monkeypatch.delenv(known.lower(), raising=False)
    monkeypatch.setattr(requirements, "installed_version", lambda: TESTED[0])
    monkeypatch.setattr(requirements, "prepare_environment", lambda: None)
    require_flower()
    monkeypatch.setenv(name, wrong)
    with pytest.raises(
        ConfigurationError, match=rf"{name.upper()} is '{wrong[:9]}.*, which is not an HTTP proxy. Correct or unset"
    ):
        require_flower()


def test_an_answer_that_refuses_is_not_called_none():
    folder = ServerFolder(Path("fed"))
    folder.prepare("h", 1, 2)
    errors = {name: type(name, (Exception,), {"__module__": "httpx"}) for name in ("HTTPStatusError", "ConnectError")}
    with pytest.raises(
        ConfigurationError, match=r"127.0.0.1:2 refused the request \(401 .*\). Look at its output, and end other"
    ):
        refuse_answer(errors["HTTPStatusError"]("401\nUnauthorized"), folder)
    with pytest.raises(ConfigurationError, match=r"did not answer \(ConnectError: gone\). Start it first: .* --host h"):
        refuse_answer(errors["ConnectError"]("gone"), folder)
    refuse_answer(ValueError("another error"), folder)


class Link:
    """The SuperLink's list of sites."""

    def __init__(self, *_: object) -> None:
        self.removed: list[int] = []

    def nodes(self) -> list[Node]:
        return [Node(7, "a", True, b""), Node(8, "b", False, b"")]

    def unregister(self, node_id: int) -> None:
        print(f"unregistered {node_id}")

    def close(self) -> None:
        pass


def test_sites_are_listed_and_revoked_by_name(monkeypatch, capsys):
    folder = ServerFolder(Path("fed"))
    folder.prepare("h", 1, 2)
    numbers = [folder.number(name) for name in ("a", "b", "gone")]
    assert numbers == [0, 1, 2]
    monkeypatch.setattr("fl_lightning.flower.serve.ControlLink", Link)
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
    monkeypatch.setattr("fl_lightning.flower.serve.ControlLink", Registry)
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

    monkeypatch.setattr("fl_lightning.flower.server_folder.write_whole", full)
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


def test_a_fit_without_registered_sites_is_refused(monkeypatch):
    monkeypatch.setattr("fl_lightning.flower.pool.require_flower", lambda: None)
    folder = ServerFolder(Path("fed"))
    folder.prepare("h", 1, 2)
    with pytest.raises(ConfigurationError, match=r"No site is registered. Run 'fl-lightning register NAME.pub' for each."):
        FlowerPool("fed")._connect(PLAIN)


@pytest.mark.parametrize("form", [["--print", "systemd"], ["--print=systemd"], ["--check", "--print", "systemd"]])
def test_a_service_file_runs_the_site(form, capsys):
    given = ["--name", "a", "--server", "https://h:1", "--key", "a.key", "--data", "my data 5%.yaml"]
    site(["site", *form, *given])
    unit = capsys.readouterr().out
    command = unit.partition("ExecStart=")[2].splitlines()[0]
    assert shlex.split(command.replace("%%", "%")) == [sys.executable, "-m", "fl_lightning", "site", *given]
    assert "TimeoutStopSec=20" in unit


def test_a_proxy_file_names_the_folder(tmp_path, capsys):
    serve(["serve", "--host", "fed.example.org", "--folder", "my fed", "--print", "nginx"])
    proxy = capsys.readouterr().out
    assert "fl-lightning serve --folder 'my fed' --host fed.example.org" in proxy
    assert f'ssl_certificate     "{tmp_path}/my fed/server.crt";' in proxy
    assert "client_max_body_size 0;" in proxy
    assert "proxy_request_buffering off;" in proxy
    assert proxy.count("{") == proxy.count("}")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "'own.csv' is neither a file nor a folder. Set 'data.datamodule.path' to"),
        ("a,b,target\n", "own.csv' has a header but no rows."),
        ("a,b,other\n1,2,0\n", "target"),
        ("a;b;target\n1;2;0\n", "target"),
        ("a,b,target\n1,NA,0\n", "holds 'NA', which is not a number"),
        ("a,b,target\n1,,0\n", "is empty"),
    ],
)
def test_a_table_that_cannot_be_read_is_named(content, said):
    if content is not None:
        Path("own.csv").write_text(content)
    table = "{path: own.csv, kind: classification, test_share: 0, standardize: false}"
    Path("data.yaml").write_text(f"datamodule: {{class_path: TableDataModule, init_args: {table}}}\n")
    with pytest.raises(DataError) as caught:
        SiteData(read_settings(Path("data.yaml")))
    assert said in str(caught.value)


def test_a_site_does_not_scale_by_its_own_rows():
    """The others would scale by theirs; without 'standardize: false' the default does."""
    Path("own.csv").write_text("a,b,target\n1,2,0\n2,1,1\n")
    for more in ("", ", standardize: true"):
        table = f"{{path: own.csv, kind: classification, test_share: 0{more}}}"
        Path("data.yaml").write_text(f"datamodule: {{class_path: TableDataModule, init_args: {table}}}\ndevice: cpu\n")
        with pytest.raises(
            ConfigurationError, match=r"'datamodule' has 'standardize: true', .* let the model scale: Standardized"
        ):
            read_settings(Path("data.yaml"))


def test_a_site_is_told_what_the_server_would_learn(monkeypatch):
    """And that -9999 may stand for a missing value, but not what Python says of its own sockets."""

    def warned(data: SiteData) -> SiteData:
        warnings.warn("unclosed socket", ResourceWarning, stacklevel=2)
        return data

    rows = [f"{k},{k % 3 - (9999 if k == 5 else 0)},{k % 2}" for k in range(12)]
    Path("own.csv").write_text("\n".join(["a,b,target", *rows]).replace("-9997", "-9999") + "\n")
    table = "{path: own.csv, kind: classification, test_share: 0, standardize: false}"
    policy = "policy: {evaluations: [test], ranges: true, min_examples: 1}\nclient_test: 0.25\n"
    Path("data.yaml").write_text(f"datamodule: {{class_path: TableDataModule, init_args: {table}}}\ndevice: cpu\n{policy}")
    monkeypatch.setattr(site_check, "SiteData", lambda settings: warned(SiteData(settings)))
    said = site_check._data(argparse.Namespace(data="data.yaml", name="a", schema=None, folder=None))
    assert said.startswith("the server would learn the name 'a', 9 training examples; 0 validation and 3 test examples; ")
    assert "; the ranges of its features, to two digits; of each training: the update, train_loss, the number of steps " in said
    assert "and the number of examples, the seconds; evaluations that 'policy' allows: test; " in said
    assert "; its rows and persons are counted here alone: if another site holds them, too, their epsilons add up, and " in said
    assert "unclosed" not in said
    assert "note: The column 'b' has -9999 in 1 of 12 rows, and otherwise 0 to 2." in said


def checked_with(tmp_path: Path, *peers: str, **policy: Any) -> str:
    """Return what ``site --check`` says of data and policy at a site that has these peers' keys."""
    Path("own.csv").write_text("\n".join(["a,b,target", *(f"{k},{k % 3},{k % 2}" for k in range(12))]) + "\n")
    (tmp_path / "peers").mkdir(exist_ok=True)
    for name in peers:
        create_key(tmp_path / f"{name}.key").rename(tmp_path / "peers" / f"{name}.pub")
    table = {"path": "own.csv", "kind": "classification", "test_share": 0, "standardize": False}
    data = {"datamodule": {"class_path": "TableDataModule", "init_args": table}, "device": "cpu"}
    Path("data.yaml").write_text(yaml.safe_dump({**data, "policy": {"peers": "peers", **policy}}))
    return site_check._data(argparse.Namespace(data="data.yaml", name="a", schema=None, folder=None))


def test_a_site_is_told_whose_updates_hide_its_own(tmp_path):
    said = checked_with(tmp_path, "a", "c", "b", secure_aggregation="required")
    assert "; the update leaves only masked, in a sum of 3 sites or more ('policy.min_cohort'); " in said
    assert "; the keys in 'peers' admit b, c; " in said
    assert "; of each training: the masked update with its loss, the number of steps and the number of examples; " in said
    assert "the update, train_loss" not in said
    said = checked_with(tmp_path)
    assert "; masks are allowed, not required ('policy.secure_aggregation'), so a server can ask for the update" in said
    assert "of each training: the update, train_loss, " in said


def test_a_site_that_could_not_take_part_in_a_sum_is_told(tmp_path):
    need = "'policy.peers' has the keys of 1 other site (b), so a sum has 2 sites at most, but 'policy.min_cohort' is 3"
    with pytest.raises(ConfigurationError, match=re.escape(need)):
        checked_with(tmp_path, "b", secure_aggregation="required")
    assert "in a sum of 2 sites or more" in checked_with(tmp_path, secure_aggregation="required", min_cohort=2)
    (tmp_path / "peers" / "b.pub").write_text("no key")
    with pytest.raises(ConfigurationError, match=r"b\.pub' is not a site's public key"):
        checked_with(tmp_path, secure_aggregation="required")


def test_a_worker_that_cannot_use_its_data_ends_the_site():
    said: list[str] = []
    running = Child("other", lambda: [sys.executable, "-S", "-c", "import time; time.sleep(60)"])
    ending = Child("worker", lambda: [sys.executable, "-S", "-c", f"import sys; sys.exit({UNUSABLE})"], last=UNUSABLE)
    assert Supervisor([running, ending], said.append).run()
    assert said == []
    assert running.process is not None
    assert running.process.poll() is not None


def test_a_process_that_always_crashes_is_started_for_ever(monkeypatch):
    """2.0 ** 1024 is no float: a site would have ended after a night of crashes."""
    said: list[str] = []
    child = Child("worker", lambda: [])
    monkeypatch.setattr(child, "start", lambda: None)
    supervisor = Supervisor([child], said.append)
    for _ in range(1100):
        child.process, child.started = SimpleNamespace(poll=lambda: 1), time.monotonic()  # type: ignore[assignment]
        supervisor._look_after(child)
    waits = [line.removeprefix("The worker ended with status 1; it starts again in ") for line in said]
    assert waits == [f"{wait} s." for wait in (1, 2, 4, 8, *[15] * 1096)]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is empty. Set 'datamodule' in it"),
        ("client_test: 0.2\n", "the following arguments are required: datamodule."),
        (EMBEDDED + "client_tests: 0.2\n", "Option 'client_tests' is not accepted. Did you mean client_test?"),
        (EMBEDDED + "client_test: many\n", "'client_test' must be a number, but is 'many'."),
        ("datamodule: {path: own.csv}\n", "'datamodule' has settings, but no class. Write 'datamodule: {class_path: ..., init"),
        (EMBEDDED + "test: {path: own.csv}\n", "'test' has settings, but no class. Write 'test: {class_path: ..., init_args"),
        (EMBEDDED + "seed: 1\nseed: 2\n", "'seed' occurs twice, first in line "),
        (EMBEDDED + "seed: 010\n", "YAML reads 010 as the number 8. Put quotes around it, or write 8."),
        (EMBEDDED + "device: gpu\n", "'device' must be auto, cpu, cuda or cuda:NUMBER, but is 'gpu'."),
    ],
)
def test_a_wrong_data_file_says_what_to_change(text, said):
    Path("data.yaml").write_text(text)
    with pytest.raises(ConfigurationError, match=r"data\.yaml") as caught:
        read_settings(Path("data.yaml"))
    assert said in str(caught.value)


def test_a_device_that_is_missing_is_refused(monkeypatch):
    Path("data.yaml").write_text(EMBEDDED + "device: cuda:1\n")
    settings = read_settings(Path("data.yaml"))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(ConfigurationError, match=r"'device' is 'cuda:1', but torch finds 1 GPUs here. Set 'device: auto'."):
        settings.torch_device()
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert settings.torch_device() == torch.device("cuda:1")


def test_the_check_withholds_counts_of_classes_as_the_site_does():
    """All rows of a class are those of one person."""
    rows = [f"{k},{k % 2},p{0 if k % 2 else k}" for k in range(48)]
    Path("own.csv").write_text("\n".join(["a,target,patient", *rows]) + "\n")
    table = "{path: own.csv, kind: classification, test_share: 0, standardize: false, person_column: patient}"
    data = f"datamodule: {{class_path: TableDataModule, init_args: {table}}}\ndevice: cpu\npolicy: {{label_counts: true}}\n"
    Path("data.yaml").write_text(data)
    said = site_check._data(argparse.Namespace(data="data.yaml", name="a", schema=None, folder=None))
    assert "the counts of the classes" not in said
    assert "not the counts of classes, of which one is below 10 ('policy.min_examples')" in said
