"""A model folder as one file: its manifest (path, size and sha256 of each file), then the files' bytes in that order.

    sark bundle 1\\n │ 4 bytes length, big endian │ [["Data/weights.bin", 512, "ab…"], …] │ bytes of all files, one after the other

A folder is therefore content-addressed, copied, fetched and resumed like any other model. A bundle is not an archive: nothing in it is
compressed, a link, or has rights or times. The same folder always gives the same bytes, and a header in any other form is refused. Pure:
bytes in, parts out; the scheduler makes bundles, the worker unpacks them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from protocol.errors import RemoteProtocolError

MAGIC: Final = b"sark bundle 1\n"
LENGTH: Final = 4
PREFIX: Final = len(MAGIC) + LENGTH
MAX_HEADER: Final = 128 * 1024
MAX_PARTS: Final = 256
MAX_PATH: Final = 200
MAX_DEPTH: Final = 8
MAX_BYTES: Final = 2**40

_STEP: Final = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_.+@ -]{0,126}[A-Za-z0-9_+@-])?")
"""A name in a path: no leading dot, no trailing dot or space, nothing that some file system interprets differently."""
_DEVICES: Final = re.compile(r"(?:con|prn|aux|nul|com[0-9]|lpt[0-9])(?:\..*)?", re.IGNORECASE)
"""Names that are devices on Windows, with any extension."""
_SHA256: Final = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True, order=True)
class BundlePart:
    """One file of the folder."""

    path: str
    """Relative to the folder, with `/`."""
    size: int
    sha256: str


def problem(path: str) -> str:
    """What is wrong with a file's path; empty if nothing is."""
    steps = path.split("/")
    if len(path) > MAX_PATH or len(steps) > MAX_DEPTH:
        return f"its path is longer than {MAX_PATH} characters, or deeper than {MAX_DEPTH} folders"
    for step in steps:
        if not _STEP.fullmatch(step) or _DEVICES.fullmatch(step):
            return "names may hold letters, digits, space and . _ + @ -, must not begin with a dot, and must not be those of devices"
    return ""


def pack_header(parts: Sequence[BundlePart]) -> bytes:
    """The beginning of the bundle of these files, up to the first file's bytes. Raises `ValueError` with a one-line reason."""
    ordered = sorted(parts)
    _check(ordered)
    text = json.dumps([[part.path, part.size, part.sha256] for part in ordered], separators=(",", ":"))
    body = text.encode("ascii")
    if len(body) > MAX_HEADER:
        raise ValueError(f"its list of files is longer than {MAX_HEADER // 1024} KiB")
    return MAGIC + len(body).to_bytes(LENGTH, "big") + body


def read_header(read: Callable[[int], bytes]) -> tuple[BundlePart, ...] | None:
    """The parts of the bundle that `read(count)` reads from its beginning. Stops at the first file's bytes.

    None if it is not a bundle. Raises `RemoteProtocolError` if it is an invalid one.
    """
    head = read(PREFIX)
    if not head.startswith(MAGIC):
        return None
    length = int.from_bytes(head[len(MAGIC) :], "big")
    if len(head) < PREFIX or length > MAX_HEADER:
        raise RemoteProtocolError("bad bundle: its list of files is too long or cut off")
    body = read(length)
    try:
        parts = tuple(_part(entry) for entry in json.loads(body))
        again = pack_header(parts)
    except (ValueError, TypeError, RecursionError) as exc:
        raise RemoteProtocolError(f"bad bundle: {exc}") from exc
    if again != head + body:
        raise RemoteProtocolError("bad bundle: its list of files is not in canonical form")
    return parts


def size_of(parts: Sequence[BundlePart]) -> int:
    return len(pack_header(parts)) + sum(part.size for part in parts)


def _part(entry: Any) -> BundlePart:
    if type(entry) is not list or [type(value) for value in entry] != [str, int, str]:
        raise ValueError("a file is a path, a size and a sha256")
    return BundlePart(*entry)


def _check(parts: Sequence[BundlePart]) -> None:
    if not 1 <= len(parts) <= MAX_PARTS:
        raise ValueError(f"it holds {len(parts)} files; 1 to {MAX_PARTS} are allowed")
    files: set[str] = set()
    folders: set[str] = set()
    for part in parts:
        if why := problem(part.path):
            raise ValueError(f"file {part.path[:MAX_PATH]!r}: {why}")
        if part.size < 0 or not _SHA256.fullmatch(part.sha256):
            raise ValueError(
                f"file {part.path!r}: a size must be 0 or more, and a sha256 must have 64 hexadecimal digits"
            )
        path = part.path.lower()  # some systems treat names that differ only in case as one
        if path in files:
            raise ValueError(f"file {part.path!r} occurs twice, or differs from another only in case")
        files.add(path)
        steps = path.split("/")
        folders.update("/".join(steps[:depth]) for depth in range(1, len(steps)))
    if both := files & folders:
        raise ValueError(f"{min(both)!r} is a file and a folder at once")
    if sum(part.size for part in parts) > MAX_BYTES:
        raise ValueError(f"its files exceed {MAX_BYTES // 2**30} GiB")
