"""Create and read the TLS certificates of a server."""

from __future__ import annotations

import ipaddress
import re
import ssl
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from fl_lightning.errors import ConfigurationError
from fl_lightning.flower.wire.private_files import write_private

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
        ConfigurationError: if a file is missing, certificate and key do not belong together, or the certificate has expired.
    """
    from cryptography import x509

    try:
        _context(files)
        certificate = x509.load_pem_x509_certificate(Path(files.certificate).read_bytes())
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"The certificate '{files.certificate}', its key '{files.key}' and the CA '{files.ca}' cannot be used ({error}). "
            "Put PEM files there that belong together, the key without a password."
        ) from error
    end = certificate.not_valid_after_utc
    if end < datetime.now(timezone.utc):
        raise ConfigurationError(
            f"The certificate '{files.certificate}' expired on {end:%Y-%m-%d}. Put a new one there. To renew one that 'serve' "
            "created, delete it, and put the CA's key back for the next start."
        )
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    return [str(name.value) for name in names]


def require_host(host: str, names: Collection[str], files: TlsFiles) -> None:
    """Refuse a host for which a certificate is not, or an address that connections could not tell from 127.0.0.1.

    Raises:
        ConfigurationError: with the hosts for which it is.
    """
    if not any(host == name or (name.startswith("*.") and host.partition(".")[2] == name[2:]) for name in names):
        raise ConfigurationError(
            f"'--host' is '{host}', but '{files.certificate}' is for {', '.join(names) or 'no host'}, so no site would "
            "connect. Use one of these. To replace a certificate that 'serve' created, delete it, and put the CA's key back "
            "for the next start."
        )
    if LOOPBACK not in names and re.fullmatch(r"[0-9.]+|.*:.*", host):
        raise ConfigurationError(
            f"'--host' is the address '{host}', but '{files.certificate}' does not name 127.0.0.1, and connections to an "
            "address do not tell which. Use a host's name, or a certificate that names 127.0.0.1 as well."
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


def create_certificates(files: TlsFiles, ca_key: Path, host: str) -> bool:
    """Create a server's certificate that names its host and loopback, and its CA if that does not exist.

    Returns:
        Whether the CA is new.

    Raises:
        ConfigurationError: if there is a CA, but not its key.
    """
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID

    is_new = not Path(files.ca).exists()
    if is_new:
        _create_ca(Path(files.ca), ca_key, f"fl_lightning CA of {host}")
    ca, authority = _read_ca(Path(files.ca), ca_key)
    key = ec.generate_private_key(ec.SECP256R1())
    names = x509.SubjectAlternativeName([_general_name(name) for name in dict.fromkeys([host, "localhost", LOOPBACK])])
    server = _draft(host, ca.subject, key, _DAYS["server"]).add_extension(names, critical=False)
    server = server.add_extension(x509.BasicConstraints(False, None), critical=True)
    server = server.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
    server = server.add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key()), critical=False)
    write_private(Path(files.key), _pem(key))
    Path(files.certificate).write_bytes(_signed(server, authority))
    return is_new


def _create_ca(path: Path, ca_key: Path, name: str) -> None:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
    ca = _draft(name, _named(name), key, _DAYS["ca"]).add_extension(x509.BasicConstraints(True, 0), critical=True)
    ca = ca.add_extension(usage, critical=True)
    ca = ca.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    write_private(ca_key, _pem(key))
    path.write_bytes(_signed(ca, key))


def _read_ca(path: Path, ca_key: Path) -> tuple[Any, Any]:
    """Return the certificate of a CA, and its key."""
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        ca, key = x509.load_pem_x509_certificate(path.read_bytes()), load_pem_private_key(ca_key.read_bytes(), None)
        if ca.public_key() != key.public_key():
            raise ValueError("another key")
    except (OSError, ValueError, TypeError) as error:
        raise ConfigurationError(
            f"A new certificate needs the key of the CA '{path}', which is not in '{ca_key}'. Put it there for this start, or "
            "delete the CA's certificate: every site then needs the new one."
        ) from error
    return ca, key


def _draft(name: str, issuer: Any, key: Any, days: int) -> Any:
    from cryptography import x509

    now = datetime.now(timezone.utc)
    blank = x509.CertificateBuilder(issuer, _named(name), key.public_key(), x509.random_serial_number())
    return blank.not_valid_before(now - timedelta(minutes=5)).not_valid_after(now + timedelta(days=days))


def _named(name: str) -> Any:
    from cryptography import x509

    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])


def _pem(key: Any) -> bytes:
    from cryptography.hazmat.primitives import serialization

    form = serialization.PrivateFormat.PKCS8
    return bytes(key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()))


def _signed(draft: Any, key: Any) -> bytes:
    from cryptography.hazmat.primitives import hashes, serialization

    return bytes(draft.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))


def _general_name(host: str) -> Any:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
