"""Reads the arrays of an .npz file that may be damaged or malicious."""

from __future__ import annotations

import math
import tokenize
import zipfile
import zlib
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

from protocol.formats.examples import MIB
from swarm.base.text import safe_text

if TYPE_CHECKING:
    import numpy as np

MAX_ARRAYS: Final = 256
MAX_BYTES: Final = 512 * MIB
"""Limit on all arrays of a file together, unpacked."""
MAX_HEAD: Final = 10_000
"""Maximum bytes of the header text that gives an array's type and shape."""
KINDS: Final = "biuf"
HOW: Final = "make it with numpy.savez(FILE, name=array, …)"


def read_arrays(path: Path) -> dict[str, np.ndarray[Any, Any]]:
    """Arrays of real numbers by name, in this machine's byte order. Nothing is unpickled, and nothing is unpacked before its size is known.
    Raises `ValueError` with one line.
    """
    shown = safe_text(path.name, 80)
    try:
        file = path.open("rb")
    except OSError as why:
        raise ValueError(f"{shown}: {why.strerror or 'it cannot be read'}") from None
    try:
        with file, zipfile.ZipFile(file) as archive:
            return _read_all(archive)
    except (OSError, EOFError, zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError):
        raise ValueError(f"{shown} is not an .npz file, or is damaged: {HOW}") from None
    except ValueError as why:
        raise ValueError(f"{shown}: {safe_text(str(why))}") from None


def _read_all(archive: zipfile.ZipFile) -> dict[str, np.ndarray[Any, Any]]:
    members = archive.infolist()
    if not 0 < len(members) <= MAX_ARRAYS:
        raise ValueError(f"it has {len(members)} arrays, but 1 to {MAX_ARRAYS} are allowed")
    if sum(member.file_size for member in members) > MAX_BYTES:
        raise ValueError(f"its arrays exceed {MAX_BYTES // MIB} MiB unpacked: use fewer examples")
    arrays: dict[str, np.ndarray[Any, Any]] = {}
    for member in members:
        name = member.filename.removesuffix(".npy")
        if name == member.filename or not name or name in arrays:
            raise ValueError(
                f"{safe_text(member.filename, 80)!r} in it is not an array, or is in it twice: {HOW}"
            )
        if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise ValueError(
                f"array {safe_text(name, 80)!r} is compressed by a method that NumPy does not use: {HOW}"
            )
        with archive.open(member) as stream:
            arrays[name] = _read_one(stream, f"array {safe_text(name, 80)!r}", member.file_size)
    return arrays


def _read_one(stream: IO[bytes], shown: str, size: int) -> np.ndarray[Any, Any]:
    """`size`: bytes of the whole member, which the declared shape must fill exactly."""
    import numpy as np
    from numpy.lib import format as npy

    readers = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
    try:
        reader = readers.get(npy.read_magic(stream))
        if reader is None:
            raise ValueError
        shape, fortran, dtype = reader(stream, max_header_size=MAX_HEAD)
    except (ValueError, SyntaxError, tokenize.TokenError, RecursionError, MemoryError):
        raise ValueError(f"{shown} has no header that NumPy can read: {HOW}") from None
    if dtype.hasobject:
        raise ValueError(f"{shown} holds Python objects, which are never loaded: make it an array of numbers")
    if dtype.kind not in KINDS or dtype.itemsize > 8:
        raise ValueError(
            f"{shown} is {dtype}: only whole numbers, real numbers up to 64 bits and booleans can be used"
        )
    declared, there = math.prod(shape) * dtype.itemsize, size - stream.tell()
    if min(shape, default=0) < 0 or declared != there:
        raise ValueError(f"{shown} is declared as {list(shape)} of {dtype}, but has {there} bytes")
    flat = np.frombuffer(stream.read(there), dtype)
    if flat.nbytes != declared:
        raise EOFError
    return flat.reshape(shape, order="F" if fortran else "C").astype(dtype.newbyteorder("="), order="C")
