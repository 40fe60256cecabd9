"""Certificates of a server's own authority, and a connection that verifies one."""

import contextlib
import datetime
import ssl
from pathlib import Path
from typing import Any

from fl_lightning.flower.wire.server_folder import ServerFolder


def put_certificate(folder: ServerFolder, *names: str, days: int = 2) -> None:
    """Put a CA and a certificate of yesterday for some names into the folder, as the server's owner does."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    def signed(name: str, key: Any, issuer: str, by: Any, *extensions: Any) -> bytes:
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
    Path(folder.files["ca"]).write_bytes(ca)
    issued_by = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key())  # which Python 3.13 wants
    Path(folder.files["certificate"]).write_bytes(signed("server", key, "Root", authority, issued_by, *alternatives))
    form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    Path(folder.files["key"]).write_bytes(key.private_bytes(*form))


def connect(server: ssl.SSLContext, ca: str, name: str) -> list[str]:
    """Return the names in the certificate that a client sees and verifies."""
    client_in, server_in = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = ssl.create_default_context(cafile=ca).wrap_bio(client_in, server_in, server_hostname=name)
    answering = server.wrap_bio(server_in, client_in, server_side=True)
    for _ in range(4):
        for side in (client, answering):
            with contextlib.suppress(ssl.SSLWantReadError):
                side.do_handshake()
    found: Any = client.getpeercert() or {}
    return [value for _, value in found["subjectAltName"]]
