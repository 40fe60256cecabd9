"""Create and read the keys by which a server knows its sites, and the certificate by which sites know their server."""

from __future__ import annotations

import ipaddress
import os
import ssl
from collections.abc import Collection, Mapping
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from fl_lightning.errors import ConfigurationError

LOOPBACK = "127.0.0.1"
_DAYS = {"ca": 3650, "server": 825}
_CREATE = "Create one: fl-lightning site --create_key NAME.key"


def write_private(path: Path, content: bytes) -> None:
    """Write a file that only this account can read."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)


# ---------------------------------------------------------------- a site's key: EC P-384 in OpenSSH's format, for Flower


def create_key(path: Path) -> Path:
    """Create the key pair of a site, and return the file of the public key.

    Args:
        path: the file of the private key, readable by this account only; the public one has the suffix ``.pub``.

    Raises:
        ConfigurationError: if one of the files exists already, or cannot be written.
    """
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    public = path.with_name(path.name + ".pub") if path.suffix != ".key" else path.with_suffix(".pub")
    for file in (path, public):
        if file.exists():
            raise ConfigurationError(f"'{file}' exists already. Choose another name; a key is not overwritten.")
    key = ec.generate_private_key(ec.SECP384R1())
    pem, openssh = serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH
    form = serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    try:
        write_private(path, key.private_bytes(pem, openssh, serialization.NoEncryption()))
        public.write_bytes(key.public_key().public_bytes(*form) + b"\n")
    except OSError as error:
        raise ConfigurationError(f"Cannot write '{path}' ({error.strerror}). Choose another folder.") from error
    return public


def read_private_key(path: Path) -> bytes:
    """Return the private key of this site.

    Raises:
        ConfigurationError: if the file is missing, is not such a key, or other accounts can read it.
    """
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key

    if not path.is_file():
        raise ConfigurationError(f"'--key' is '{path}', which is not a file. {_CREATE}")
    if os.name == "posix" and path.stat().st_mode & 0o077:
        raise ConfigurationError(f"Other accounts can read the private key '{path}'. Run: chmod 600 {path}")
    content = path.read_bytes()
    try:
        if not isinstance(load_ssh_private_key(content, None), ec.EllipticCurvePrivateKey):
            raise ValueError("not an elliptic curve key")
    except Exception as error:  # its errors have several types
        raise ConfigurationError(
            f"'--key' is '{path}', which is not a private key that this program created ({error}). Pass the file that "
            "'fl-lightning site --create_key' named private, or create a new one."
        ) from error
    return content


def read_public_key(path: Path) -> bytes:
    """Return the public key that a site has sent.

    Raises:
        ConfigurationError: if the file cannot be read, or is not such a key.
    """
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import load_ssh_public_key

    try:
        content = path.read_bytes()
    except OSError as error:
        raise ConfigurationError(f"Cannot read '{path}' ({error.strerror}). Pass the site's public key.") from error
    if b"PRIVATE" in content:
        raise ConfigurationError(f"'{path}' is a private key, which must not leave the site. Ask for the file '.pub'.")
    try:
        found = load_ssh_public_key(content)
    except Exception:  # its errors have several types
        found = None
    if not isinstance(found, ec.EllipticCurvePublicKey):
        raise ConfigurationError(
            f"'{path}' is not a site's public key. Ask for the file '.pub' that 'fl-lightning site --create_key' wrote."
        )
    return content


# ---------------------------------------------------------------- a server's certificate


def require_certificate(path: str) -> None:
    """Check the file of the server's CA at a site.

    Raises:
        ConfigurationError: if it is missing, or is not a certificate.
    """
    try:
        ssl.create_default_context(cafile=path)
    except OSError as error:
        what = "certificate" if Path(path).is_file() else "file"
        raise ConfigurationError(f"'--ca' is '{path}', which is not a {what}. Use the server's ca.crt.") from error


def require_host(host: str, files: Mapping[str, str]) -> None:
    """Check that a server's certificate can be used by sites, and by this machine.

    Raises:
        ConfigurationError: if a file is missing, certificate and key do not belong together, or the certificate has expired or
            is not for the host or 127.0.0.1.
    """
    from cryptography import x509

    path = files["certificate"]
    try:
        ssl.create_default_context(cafile=files["ca"])
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(path, files["key"], password="")
        certificate = x509.load_pem_x509_certificate(Path(path).read_bytes())
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"The certificate '{path}', its key '{files['key']}' and the CA '{files['ca']}' cannot be used ({error}). "
            "Put PEM files there that belong together, the key without a password."
        ) from error
    renew = "To renew or replace one that 'serve' created, delete it, and put the CA's key back for the next start."
    end = certificate.not_valid_after_utc
    if end < datetime.now(timezone.utc):
        raise ConfigurationError(f"The certificate '{path}' expired on {end:%Y-%m-%d}. Put a new one there. {renew}")
    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        found = []  # type: ignore[assignment]
    names = [str(name.value) for name in found]
    for wanted, why in ((host, "'--host'"), (LOOPBACK, "where 'fit' and 'register' connect")):
        if not _covers(names, wanted):
            raise ConfigurationError(
                f"'{path}' is for {', '.join(names) or 'no host'}, but not for {wanted} ({why}). Use one that names both, or "
                f"let 'serve' create its own, and give yours to a proxy on this machine: see docs/deployment.md. {renew}"
            )


def _covers(names: Collection[str], host: str) -> bool:
    return any(host == name or (name.startswith("*.") and host.partition(".")[2] == name[2:]) for name in names)


def create_certificates(files: Mapping[str, str], ca_key: Path, host: str) -> bool:
    """Create a server's certificate that names its host and loopback, and its CA if that does not exist.

    Returns:
        Whether the CA is new.

    Raises:
        ConfigurationError: if there is a CA, but not its key.
    """
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID

    ca, key = Path(files["ca"]), ec.generate_private_key(ec.SECP256R1())
    is_new = not ca.exists()
    if is_new:
        own, name = ec.generate_private_key(ec.SECP256R1()), _named(f"fl_lightning CA of {host}")
        usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
        identity = x509.SubjectKeyIdentifier.from_public_key(own.public_key())
        write_private(ca_key, _pem(own))
        ca.write_bytes(_signed(name, own, name, own, _DAYS["ca"], x509.BasicConstraints(True, 0), usage, identity))
    issuer, authority = _read_ca(ca, ca_key)
    server = _signed(
        *(_named(host), key, issuer, authority, _DAYS["server"]),
        x509.SubjectAlternativeName([_general_name(name) for name in dict.fromkeys([host, "localhost", LOOPBACK])]),
        x509.BasicConstraints(False, None),
        x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]),
        x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key()),
    )
    write_private(Path(files["key"]), _pem(key))
    Path(files["certificate"]).write_bytes(server)
    return is_new


def _read_ca(path: Path, ca_key: Path) -> tuple[Any, Any]:
    """Return the name of a CA, and its key."""
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
    return ca.subject, key


def _signed(name: Any, key: Any, issuer: Any, authority: Any, days: int, *extensions: Any) -> bytes:
    """Return a certificate, PEM."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization

    now = datetime.now(timezone.utc)
    start, end = now - timedelta(minutes=5), now + timedelta(days=days)
    draft = x509.CertificateBuilder(issuer, name, key.public_key(), x509.random_serial_number(), start, end)
    for extension in extensions:
        draft = draft.add_extension(extension, critical=isinstance(extension, x509.BasicConstraints | x509.KeyUsage))
    return draft.sign(authority, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def _named(name: str) -> Any:
    from cryptography import x509

    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])


def _pem(key: Any) -> bytes:
    from cryptography.hazmat.primitives import serialization

    form = serialization.PrivateFormat.PKCS8
    return bytes(key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()))


def _general_name(host: str) -> Any:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
