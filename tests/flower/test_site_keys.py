"""Keys of sites, and the certificates of their server: made, renewed, and the ones that others made."""

import ssl
from pathlib import Path

import pytest
from own_certificates import connect, put_certificate

from fl_lightning.errors import ConfigurationError
from fl_lightning.flower.wire.keys import create_key, read_private_key, read_public_key, require_certificate
from fl_lightning.flower.wire.server_folder import ServerFolder


def answering(folder: ServerFolder) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder.files["certificate"], folder.files["key"])
    return context


def test_a_key_is_private_and_its_pair_is_complete():
    assert create_key(Path("a.key")) == Path("a.pub")
    assert Path("a.pub").read_bytes().startswith(b"ecdsa-sha2-nistp384 ")
    assert Path("a.key").stat().st_mode & 0o777 == 0o600
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key

    private = load_ssh_private_key(read_private_key(Path("a.key")), None)
    assert private.public_key() == load_ssh_public_key(read_public_key(Path("a.pub")))


def test_a_server_keeps_its_host():
    folder = ServerFolder(Path("fed"))
    assert "certificate for fed.example.org" in folder.prepare("fed.example.org", 1, 2)[0]
    require_certificate(folder.files["ca"])
    for host in ("fed.example.org", "localhost", "127.0.0.1"):
        assert folder.prepare(host, 3, 4) == []
    with pytest.raises(ConfigurationError, match=r"is for fed.example.org, localhost, .* but not for example.org \('--host'\)"):
        folder.prepare("example.org", 1, 2)
    assert folder.settings() == {"host": "127.0.0.1", "port": 3, "local_port": 4}


def test_an_owners_certificate_names_this_machine_too():
    folder = ServerFolder(Path("fed"))
    put_certificate(folder, "fed.example.org", "*.clinic.org", "127.0.0.1")
    for host in ("fed.example.org", "fed.clinic.org"):
        assert folder.prepare(host, 1, 2) == []
    with pytest.raises(ConfigurationError, match=r"is for fed.example.org, \*.clinic.org.* but not for clinic.org"):
        folder.prepare("clinic.org", 1, 2)


def test_a_certificate_is_renewed_under_the_same_ca():
    folder = ServerFolder(Path("fed"))
    assert "with the CA of key" in folder.prepare("old.org", 1, 2)[0]
    known = Path(folder.files["ca"]).read_bytes()
    Path(folder.files["certificate"]).unlink()
    offline = folder.ca_key.rename("ca.key")
    with pytest.raises(ConfigurationError, match=r"A new certificate needs the key of the CA .*fed/ca.crt'.* Put it there for"):
        folder.prepare("new.org", 1, 2)
    offline.rename(folder.ca_key)
    assert f"certificate for new.org, of the CA of key {folder.ca_key}" in folder.prepare("new.org", 1, 2)[0]
    assert Path(folder.files["ca"]).read_bytes() == known
    assert connect(answering(folder), folder.files["ca"], "new.org")[0] == "new.org"


@pytest.mark.parametrize("host", ["fed.example.org", "192.0.2.7"])
def test_one_certificate_answers_sites_and_this_machine(host):
    """What is private is for this account alone, and the CA's key is not beside the certificates."""
    folder = ServerFolder(Path("fed"))
    assert len(folder.prepare(host, 1, 2)) == 1
    for name in (host, "127.0.0.1"):
        assert connect(answering(folder), folder.files["ca"], name) == [host, "localhost", "127.0.0.1"]
    private = (folder.ca_key, *(Path(folder.files[name]) for name in ("key", "secret")))
    assert [path.stat().st_mode & 0o777 for path in private] == [0o600] * 3
    assert not folder.ca_key.is_relative_to(folder.path)
