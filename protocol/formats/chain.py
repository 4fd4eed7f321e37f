"""The chain of a witnessed run: each launch's inputs follow from what the scheduler revealed and from the previous launch's outputs.

    seed(1)     = number(sha256("sark launch seed 1\\n" ‖ opening ‖ u32(1) ‖ 32 × 00))
    seed(k)     = number(sha256("sark launch seed 1\\n" ‖ reveal  ‖ u32(k) ‖ digest(k − 1)))
    digest(k)   = sha256("sark launch digest 1\\n" ‖ sha256 of the outputs ‖ sketch ‖ sketch …)
    sketch      = u8(length of dtype) ‖ dtype ‖ u64(count) ‖ f64(norm) ‖ sums

Launches that time inferences are counted, from 1. `number`: the first 8 bytes without their last 11 bits, a number that every runtime's
generator and every JSON reader accepts. All numbers are big-endian.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable
from typing import Final

SECRET_BYTES: Final = 32
SUMS: Final = 16
"""Number of signed sums in a sketch."""
SUMS_BYTES: Final = 4 * SUMS
NO_DIGEST: Final = bytes(32)
"""Used in place of a digest for the first launch."""


def launch_seed(secret: bytes, launch: int, digest: bytes = NO_DIGEST) -> int:
    """Seed of a launch's inputs, below 2^53. `secret`: the opening for the first launch, the reveal for the others; `digest`: the previous
    launch's.
    """
    link = hashlib.sha256(b"sark launch seed 1\n" + secret + struct.pack(">I", launch) + digest).digest()
    return int.from_bytes(link[:8], "big") >> 11


def launch_digest(output_sha256: str, sketches: Iterable[tuple[str, int, float, bytes]]) -> bytes:
    """A digest of a launch's outputs. `sketches`: dtype, count, norm and sums of each output that has a sketch."""
    total = hashlib.sha256(b"sark launch digest 1\n" + bytes.fromhex(output_sha256))
    for dtype, count, norm, sums in sketches:
        name = dtype.encode()[:255]
        total.update(bytes([len(name)]) + name + struct.pack(">Qd", count, norm) + sums)
    return total.digest()
