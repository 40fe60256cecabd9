"""Certificates of a server's own authority, and a connection that verifies one."""

import contextlib
import ssl
from pathlib import Path
from typing import Any

from fl_lightning.flower.wire import keys
from fl_lightning.flower.wire.server_folder import ServerFolder


def put_certificate(folder: ServerFolder, *names: str, days: int = 1) -> None:
    """Put a CA and a certificate for some names into the folder, as the server's owner does."""
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

    authority, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    root, own = keys._named("Root"), keys._named("server")
    alternatives = [x509.SubjectAlternativeName([x509.DNSName(name) for name in names])] if names else []
    identity = x509.SubjectKeyIdentifier.from_public_key(authority.public_key())
    usage = x509.KeyUsage(False, False, False, False, False, True, False, False, False)  # it signs certificates
    issued_by = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key())  # which Python 3.13 wants
    ca = keys._signed(root, authority, root, authority, days, x509.BasicConstraints(True, None), identity, usage)
    content = {"ca": ca, "certificate": keys._signed(own, key, root, authority, days, issued_by, *alternatives)}
    folder.path.mkdir(exist_ok=True)
    for name, text in (content | {"key": keys._pem(key)}).items():
        Path(folder.files[name]).write_bytes(text)


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
