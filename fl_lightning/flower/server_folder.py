"""Manage the files of a server: certificates, secret, database, addresses and the numbers of its sites."""

from __future__ import annotations

import ipaddress
import json
import os
import secrets
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fl_lightning.errors import ConfigurationError

if TYPE_CHECKING:
    from fl_lightning.messages import ClientInfo

_DAYS = {"ca": 3650, "server": 825}


def write_private(path: Path, content: bytes) -> None:
    """Write a file that only this account can read."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)


def write_whole(path: Path, content: bytes) -> None:
    """Replace a file's content at once, so that a crash leaves the old or the new one."""
    beside = path.with_name(path.name + ".new")
    with open(beside, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)


@dataclass(frozen=True)
class ServerFolder:
    """Name the files in the folder of a server.

    Attributes:
        path: the folder.
    """

    path: Path

    @property
    def files(self) -> dict[str, str]:
        """Return the paths that the SuperLink needs."""
        names = {"ca": "ca.crt", "certificate": "server.crt", "key": "server.key", "database": "state.db", "secret": "secret"}
        return {name: str((self.path / file).resolve()) for name, file in names.items()}

    @property
    def ca_key(self) -> Path:
        """Return the key of the CA, which lies beside the folder: whoever has it can pretend to be the server."""
        return self.path.resolve().with_name(self.path.resolve().name + "-ca") / "ca.key"

    def settings(self) -> dict[str, Any]:
        """Return the addresses.

        Raises:
            ConfigurationError: if no server was set up here.
        """
        try:
            return dict(json.loads((self.path / "server.json").read_text()))
        except (OSError, ValueError) as error:
            raise ConfigurationError(
                f"'{self.path}' is not the folder of a server ({type(error).__name__}). Run 'fl-lightning serve --folder "
                f"{self.path} --host NAME' first."
            ) from error

    @property
    def local_address(self) -> str:
        """Return the address of the SuperLink for processes on this machine."""
        return f"127.0.0.1:{self.settings()['local_port']}"

    @property
    def certificate(self) -> bytes:
        """Return the CA's certificate."""
        return Path(self.files["ca"]).read_bytes()

    @property
    def secret(self) -> bytes:
        """Return the secret of the server's task."""
        return Path(self.files["secret"]).read_bytes()

    def prepare(self, host: str, port: int, local_port: int) -> list[str]:
        """Create what is missing, and return what was created, in words.

        Raises:
            ConfigurationError: if the folder cannot be created, or its certificate is for another host.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise ConfigurationError(f"Cannot create the folder '{self.path}' ({error.strerror}). Choose another.") from error
        made = []
        if not Path(self.files["certificate"]).exists():
            create_certificates(self.files, self.ca_key, host)
            made.append(f"certificate for {host}, CA key {self.ca_key} (keep it offline)")
        self._require_certificate_for(host)
        if not Path(self.files["secret"]).exists():
            write_private(Path(self.files["secret"]), secrets.token_bytes(32))
        text = json.dumps({"host": host, "port": port, "local_port": local_port})
        write_whole(self.path / "server.json", text.encode())
        return made

    def _require_certificate_for(self, host: str) -> None:
        from cryptography import x509

        certificate = x509.load_pem_x509_certificate(Path(self.files["certificate"]).read_bytes())
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        known = [str(name.value) for name in names]
        if not any(host == name or (name.startswith("*.") and host.partition(".")[2] == name[2:]) for name in known):
            raise ConfigurationError(
                f"'--host' is '{host}', but '{self.files['certificate']}' is for {', '.join(known)}, so no site would connect. "
                "Use one of these, or another folder, which gets a new certificate and CA."
            )

    # ---------------------------------------------------------------- the numbers of sites

    def numbers(self) -> dict[str, int]:
        """Return the client's id of each site that was ever registered, by name."""
        path = self.path / "sites.json"
        return {str(k): int(v) for k, v in json.loads(path.read_text()).items()} if path.exists() else {}

    def number(self, name: str) -> int:
        """Return a site's number, and give it the next one if it has none. Numbers are never given again."""
        known = self.numbers()
        if name not in known:
            known[name] = len(known)
            write_whole(self.path / "sites.json", json.dumps(known).encode())
        return known[name]

    # ---------------------------------------------------------------- what sites told

    def description(self, name: str) -> ClientInfo | None:
        """Return what a site told about its data when it was online last, or None."""
        told = self._descriptions().get(name)
        if told is None:
            return None
        from fl_lightning.messages import ClientInfo  # it imports torch, which the commands of a server do not need

        fields: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in told.items()}
        return ClientInfo(**fields)

    def describe(self, infos: Sequence[ClientInfo]) -> None:
        """Keep what sites told, for fits that start without them."""
        told = self._descriptions() | {info.name: asdict(info) for info in infos}
        write_whole(self.path / "described.json", json.dumps(told).encode())

    def _descriptions(self) -> dict[str, dict[str, Any]]:
        path = self.path / "described.json"
        return dict(json.loads(path.read_text())) if path.exists() else {}


def create_certificates(files: dict[str, str], ca_key: Path, host: str) -> None:
    """Create a CA, and a certificate of the server that names its host and loopback."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    def named(name: str) -> Any:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])

    def builder(name: str, issuer: str, key: Any, days: int) -> Any:
        now = datetime.now(timezone.utc)
        blank = x509.CertificateBuilder().subject_name(named(name)).issuer_name(named(issuer)).public_key(key.public_key())
        dated = blank.not_valid_before(now - timedelta(minutes=5)).not_valid_after(now + timedelta(days=days))
        return dated.serial_number(x509.random_serial_number())

    def private(key: Any) -> bytes:
        pem, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
        return bytes(key.private_bytes(pem, form, serialization.NoEncryption()))

    issuer = f"fl_lightning CA of {host}"
    authority, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
    ca = builder(issuer, issuer, authority, _DAYS["ca"]).add_extension(x509.BasicConstraints(True, 0), True)
    ca = ca.add_extension(usage, True)
    ca = ca.add_extension(x509.SubjectKeyIdentifier.from_public_key(authority.public_key()), False)
    names = [_general_name(name) for name in dict.fromkeys([host, "localhost", "127.0.0.1"])]
    server = builder(host, issuer, key, _DAYS["server"]).add_extension(x509.SubjectAlternativeName(names), False)
    server = server.add_extension(x509.BasicConstraints(False, None), True)
    server = server.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), False)
    server = server.add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key()), False)
    pem = serialization.Encoding.PEM
    write_private(ca_key, private(authority))
    write_private(Path(files["key"]), private(key))
    Path(files["ca"]).write_bytes(ca.sign(authority, hashes.SHA256()).public_bytes(pem))
    Path(files["certificate"]).write_bytes(server.sign(authority, hashes.SHA256()).public_bytes(pem))


def _general_name(host: str) -> Any:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
