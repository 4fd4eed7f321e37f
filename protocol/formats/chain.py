"""The chain of a witnessed run: each launch's inputs follow from what the scheduler revealed and from the outputs of the launch before.

    seed(1)     = number(sha256("sark launch seed 1\\n" ‖ opening ‖ u32(1) ‖ 32 × 00))
    seed(k)     = number(sha256("sark launch seed 1\\n" ‖ reveal  ‖ u32(k) ‖ digest(k − 1)))
    digest(k)   = sha256("sark launch digest 1\\n" ‖ sha256 of the outputs ‖ sketch ‖ sketch …)
    sketch      = u8(length of dtype) ‖ dtype ‖ u64(count) ‖ f64(norm) ‖ sums

Launches are counted that time inferences, from 1. `number`: the first 8 bytes without their last 11 bits, which every runtime's generator
and every JSON reader takes. All numbers are big-endian.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable
from typing import Final

SECRET_BYTES: Final = 32
SUMS: Final = 16
"""Signed sums in a sketch."""
SUMS_BYTES: Final = 4 * SUMS
NO_DIGEST: Final = bytes(32)
"""In place of the digest before the first."""


def launch_seed(secret: bytes, launch: int, digest: bytes = NO_DIGEST) -> int:
    """Seed of a launch's inputs, below 2^53. `secret`: the opening for the first launch, the reveal for the others; `digest`: of the launch
    before.
    """
    link = hashlib.sha256(b"sark launch seed 1\n" + secret + struct.pack(">I", launch) + digest).digest()
    return int.from_bytes(link[:8], "big") >> 11


def launch_digest(output_sha256: str, sketches: Iterable[tuple[str, int, float, bytes]]) -> bytes:
    """What a launch put out, bound to one value. `sketches`: dtype, count, norm and sums of each output that has one."""
    total = hashlib.sha256(b"sark launch digest 1\n" + bytes.fromhex(output_sha256))
    for dtype, count, norm, sums in sketches:
        name = dtype.encode()[:255]
        total.update(bytes([len(name)]) + name + struct.pack(">Qd", count, norm) + sums)
    return total.digest()
