"""Random numbers from a key, once more in plain Python: what functional/keyed_noise.py is compared with."""

import hashlib
import math
import struct

BLOCK = 2**16


def part(field):
    data = field if isinstance(field, bytes) else str(field).encode()
    letter = {bytes: b"b", int: b"i", str: b"s"}[type(field)]
    return letter + struct.pack(">Q", len(data)) + data


def words(count, call, key, round_idx, client, step, attempt, purpose):
    """64-bit words of the call of a stream, in blocks of 2^16."""
    head = b"".join(part(field) for field in (key, round_idx, client, step, attempt, purpose))
    found = []
    for block in range(-(-count // BLOCK)):
        size = min(BLOCK, count - block * BLOCK)
        digest = hashlib.shake_256(head + struct.pack(">QQ", call, block)).digest(8 * size)
        found.append(struct.unpack(f"<{size}Q", digest))
    return found


def uniforms(count, *fields, call=0):
    return [(word >> 11) / 2**53 for block in words(count, call, *fields) for word in block]


def normals(count, *fields, call=0):
    """Box and Muller: of each block the first half are radii, the second angles."""
    drawn = []
    for block in words(count + count % 2, call, *fields):
        half = len(block) // 2
        pairs = [
            (math.sqrt(-2 * math.log(((a >> 11) + 1) / 2**53)), 2 * math.pi * (b >> 11) / 2**53)
            for a, b in zip(block[:half], block[half:], strict=True)
        ]
        drawn += [r * math.cos(angle) for r, angle in pairs] + [r * math.sin(angle) for r, angle in pairs]
    return drawn[:count]


def key_of(noise_seed, seed=0):
    """The key of a ``noise_seed`` and the federation's seed."""
    return hashlib.shake_256(part("noise seed") + part(noise_seed) + part(seed)).digest(32)
