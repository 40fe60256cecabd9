"""Keys, signatures and sealed messages of a round under masks; every primitive is from ``cryptography``."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fl_lightning.errors import ConfigurationError, ProtocolError
from fl_lightning.functional.words import WordLayout

_DOMAIN = b"fl_lightning masks 1\0"
"""Stands before all that is signed or derived, since the same key signs other messages elsewhere."""
SIGNATURE_BYTES = 96
_BLOCK = 2**17
"""The words that are masked at a time; they stay in the cache."""


@dataclass(frozen=True)
class KeyRing:
    """Sign with a private key on the curve P-384, and check with the public keys of peers.

    Args:
        private: the private key.
        peers: the public keys by name, in OpenSSH's format.
    """

    private: Any
    peers: Mapping[str, bytes]

    def sign(self, what: str, content: bytes) -> bytes:
        """Return the signature of a content."""
        from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

        hashes, ec = _signing()
        parts = decode_dss_signature(self.private.sign(_signed(what, content), ec.ECDSA(hashes.SHA384())))
        return b"".join(part.to_bytes(SIGNATURE_BYTES // 2, "big") for part in parts)  # of one length, unlike DER

    def check(self, name: str, what: str, content: bytes, signature: bytes) -> None:
        """Refuse a wrong signature, or that of an unknown peer.

        Raises:
            ProtocolError: naming the peer.
        """
        if name not in self.peers:
            raise ProtocolError(f"'{name}' is not among the peers whose public keys this client has.")
        if not _is_signed(self.peers[name], _signed(what, content), signature):
            raise ProtocolError(f"The signature of '{name}' under its {what} is wrong.")


def _signed(what: str, content: bytes) -> bytes:
    return _DOMAIN + what.encode() + b"\0" + content


def _signing() -> tuple[Any, Any]:
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec

    return hashes, ec


@functools.lru_cache(2**14)  # in a simulation one process checks each signature for every neighbour
def _is_signed(public: bytes, content: bytes, signature: bytes) -> bool:
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature

    hashes, ec = _signing()
    half = SIGNATURE_BYTES // 2
    encoded = encode_dss_signature(int.from_bytes(signature[:half], "big"), int.from_bytes(signature[half:], "big"))
    try:
        _public(public).verify(encoded, content, ec.ECDSA(hashes.SHA384()))
    except InvalidSignature:
        return False
    return len(signature) == SIGNATURE_BYTES


@functools.lru_cache(2**12)
def _public(content: bytes) -> Any:
    from cryptography.hazmat.primitives.serialization import load_ssh_public_key

    return load_ssh_public_key(content)


def openssh(private: Any) -> bytes:
    """Return the public half of a private key in OpenSSH's format."""
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    return bytes(private.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH))


def key_from(seed: bytes) -> Any:
    """Return the private key on P-384 that a seed gives, for a simulated client."""
    _, ec = _signing()
    return ec.derive_private_key(1 + int.from_bytes(seed, "big"), ec.SECP384R1())


# ---------------------------------------------------------------- agreement


class SecretKey:
    """Keep a secret key on Curve25519 ready for use: reading it takes as long as one agreement.

    Args:
        secret: the secret key, 32 bytes.
    """

    def __init__(self, secret: bytes) -> None:
        self._key = _x25519().X25519PrivateKey.from_private_bytes(secret)

    @property
    def public(self) -> bytes:
        """Return the public key, 32 bytes."""
        return bytes(self._key.public_key().public_bytes_raw())

    def agreed(self, public: bytes) -> bytes:
        """Return the secret, 32 bytes, that this key and another's public one give (X25519); derive keys from it.

        Raises:
            ProtocolError: if the public key is invalid.
        """
        try:
            return bytes(self._key.exchange(_x25519().X25519PublicKey.from_public_bytes(public)))
        except ValueError as error:  # of a wrong length, or of low order
            raise ProtocolError("A public key of the round under masks is not valid.") from error


def derived(secret: bytes, *purpose: bytes) -> bytes:
    """Return the key, 32 bytes, that a secret gives for a purpose (HKDF-SHA256)."""
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    return bytes(HKDF(hashes.SHA256(), 32, None, _DOMAIN + b"\0".join(purpose)).derive(secret))


def commitment(seed: bytes, digest: bytes) -> bytes:
    """Return what a client signs of the seed of its own mask, which says nothing of it."""
    return hashlib.sha256(_DOMAIN + b"seed\0" + digest + seed).digest()


def seal(key: bytes, message: bytes, context: bytes) -> bytes:
    """Encrypt and authenticate a message with a key that seals nothing else (ChaCha20-Poly1305)."""
    return bytes(_aead(key).encrypt(bytes(12), message, context))


def unseal(key: bytes, sealed: bytes, context: bytes, sender: str) -> bytes:
    """Return a sealed message.

    Raises:
        ProtocolError: naming the sender, if it was changed, or sealed for somebody else.
    """
    from cryptography.exceptions import InvalidTag

    try:
        return bytes(_aead(key).decrypt(bytes(12), sealed, context))
    except (InvalidTag, ValueError) as error:
        raise ProtocolError(
            f"The shares of '{sender}' were changed on their way, or are not for this client and round."
        ) from error


def _aead(key: bytes) -> Any:
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

    return ChaCha20Poly1305(key)


def _x25519() -> Any:
    try:
        from cryptography.hazmat.primitives.asymmetric import x25519
    except ImportError as error:
        raise ConfigurationError(
            "'federation.secure_aggregation' needs the package cryptography. Install it: pip install 'fl_lightning[secure]'"
        ) from error
    return x25519


# ---------------------------------------------------------------- masks


def add_mask(words: Tensor, key: bytes, layout: WordLayout, sign: int) -> None:
    """Add the stream of a key to words in place, or subtract it (AES-256 in counter mode, each key for one stream).

    Args:
        words: int64, shape (w,).
        key: 32 bytes.
        layout: the arrangement of the words.
        sign: 1 or -1.
    """
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    stream, narrow = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor(), layout.narrow
    zeros, space = bytes(8 * min(_BLOCK, len(words))), bytearray(8 * min(_BLOCK, len(words)) + 15)

    def block(size: int) -> Tensor:
        stream.update_into(memoryview(zeros)[: 8 * size], space)
        return torch.frombuffer(space, dtype=torch.int64, count=size)

    for start in range(0, narrow, _BLOCK):
        part = words[start : min(start + _BLOCK, narrow)]
        part.add_(block(len(part)), alpha=sign)
    rest = words[narrow:]
    if len(rest):
        parts = [block(min(_BLOCK, len(rest) - start)).clone() for start in range(0, len(rest), _BLOCK)]
        layout.add_rest(rest, torch.cat(parts), sign)
