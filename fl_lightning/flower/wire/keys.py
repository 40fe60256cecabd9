"""Create and read the key pair by which a server knows a site: EC P-384 in OpenSSH's format, as Flower requires."""

from __future__ import annotations

import os
import ssl
from pathlib import Path

from fl_lightning.errors import ConfigurationError
from fl_lightning.flower.wire.private_files import write_private

_CREATE = "Create one: fl-lightning site --create_key NAME.key"


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
        found = load_ssh_private_key(content, None)
    except Exception as error:  # its errors have several types
        raise ConfigurationError(
            f"'--key' is '{path}', which is not a private key that this program created ({error}). Pass the file that "
            "'fl-lightning site --create_key' named private, or create a new one."
        ) from error
    if not isinstance(found, ec.EllipticCurvePrivateKey):
        raise ConfigurationError(f"'--key' is '{path}', which is not an elliptic curve key. {_CREATE}")
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


def require_certificate(path: str) -> None:
    """Check the file of the server's CA.

    Raises:
        ConfigurationError: if it is missing, or is not a certificate.
    """
    if not Path(path).is_file():
        raise ConfigurationError(f"'--ca' is '{path}', which is not a file. Use the ca.crt that the server gave you.")
    try:
        ssl.create_default_context(cafile=path)
    except (OSError, ssl.SSLError) as error:
        raise ConfigurationError(f"'--ca' is '{path}', which is not a certificate. Use the server's ca.crt.") from error
