"""Create and read the TLS certificates of a server."""

from __future__ import annotations

import ipaddress
import ssl
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from fl_lightning.errors import ConfigurationError
from fl_lightning.flower.private_files import write_private

LOOPBACK = "127.0.0.1"
_DAYS = {"ca": 3650, "server": 825}


@dataclass(frozen=True)
class TlsFiles:
    """Name the files, PEM, with which a server answers TLS connections.

    Attributes:
        ca: the certificate of the CA, by which clients verify the server's.
        certificate: the server's certificate.
        key: its private key.
    """

    ca: str
    certificate: str
    key: str


def names_in(files: TlsFiles) -> list[str]:
    """Return the hosts, names and addresses, for which a certificate is.

    Raises:
        ConfigurationError: if a file is missing, or certificate and key do not belong together.
    """
    from cryptography import x509

    try:
        _context(files)
        certificate = x509.load_pem_x509_certificate(Path(files.certificate).read_bytes())
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"The certificate '{files.certificate}', its key '{files.key}' and the CA '{files.ca}' cannot be used ({error}). "
            "Put PEM files there that belong together, the key without a password."
        ) from error
    return [str(name.value) for name in names]


def require_host(host: str, names: Collection[str], files: TlsFiles) -> None:
    """Refuse a host for which a certificate is not.

    Raises:
        ConfigurationError: with the hosts for which it is.
    """
    if not any(host == name or (name.startswith("*.") and host.partition(".")[2] == name[2:]) for name in names):
        raise ConfigurationError(
            f"'--host' is '{host}', but '{files.certificate}' is for {', '.join(names) or 'no host'}, so no site would "
            "connect. Use one of these, or another folder, which gets a new certificate and CA."
        )


def _context(files: TlsFiles) -> ssl.SSLContext:
    ssl.create_default_context(cafile=files.ca)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.certificate, files.key, password="")
    return context


def answering(public: TlsFiles, local: TlsFiles) -> ssl.SSLContext:
    """Return a context that answers connections by name with the public files, and others with the local ones.

    Connections to 127.0.0.1 carry no name, since it is an address.
    """
    named, nameless = _context(public), _context(local)

    def choose(connection: Any, name: str | None, context: ssl.SSLContext) -> None:
        if name is not None:
            connection.context = named

    nameless.sni_callback = choose
    return nameless


def create_certificates(files: TlsFiles, ca_key: Path, host: str) -> None:
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
    names = [_general_name(name) for name in dict.fromkeys([host, "localhost", LOOPBACK])]
    server = builder(host, issuer, key, _DAYS["server"]).add_extension(x509.SubjectAlternativeName(names), False)
    server = server.add_extension(x509.BasicConstraints(False, None), True)
    server = server.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), False)
    server = server.add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key()), False)
    pem = serialization.Encoding.PEM
    write_private(ca_key, private(authority))
    write_private(Path(files.key), private(key))
    Path(files.ca).write_bytes(ca.sign(authority, hashes.SHA256()).public_bytes(pem))
    Path(files.certificate).write_bytes(server.sign(authority, hashes.SHA256()).public_bytes(pem))


def _general_name(host: str) -> Any:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
