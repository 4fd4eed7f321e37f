"""Files that are complete whenever they exist: written to a temporary name in the same folder, then moved into place."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Final

from protocol.errors import ResourceError

UNFINISHED: Final = re.compile(r"\..+\.[0-9a-f]{12}")
"""Names of temporary files: after a start, a file with such a name was never finished."""
_FLAGS: Final = (
    os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
)


@contextlib.contextmanager
def replacing(path: Path, *, mode: int = 0o600, durable: bool = True) -> Iterator[IO[bytes]]:
    """A new file that replaces `path` when the block ends, and is removed if the block raises. Raises `OSError`. Blocking.

    `durable`: the file and its name are on the disk before this returns; otherwise a power cut may leave the file empty.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(6)}")
    try:
        with os.fdopen(os.open(temporary, _FLAGS | getattr(os, "O_BINARY", 0), mode), "wb") as file:
            yield file
            if durable:
                file.flush()
                os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    if durable:
        sync_folder(path.parent)


def write_atomically(path: Path, data: bytes, *, mode: int = 0o600) -> None:
    """Replace the content of `path` with `data`: readers see the old content or the new. Raises `OSError`. A power cut may lose it."""
    with replacing(path, mode=mode, durable=False) as file:
        file.write(data)


def write_durably(path: Path, data: bytes) -> None:
    """Replace the content of `path`, mode 0600; after a crash it is the old or the new. Makes the folder. Raises `ResourceError`."""
    try:
        make_folder(path.parent)
        with replacing(path) as file:
            file.write(data)
    except OSError as error:
        raise unusable(path, error) from error


def make_folder(path: Path, *, mode: int = 0o700) -> None:
    """Make a folder, and those above it, durably: the names of new folders are on the disk when this returns. Raises `OSError`."""
    if not path.is_dir():
        make_folder(path.parent, mode=0o777)
        path.mkdir(mode=mode, exist_ok=True)
        sync_folder(path.parent)


def remove_durably(path: Path) -> None:
    """Remove a file so that it does not come back after a power cut; a missing file is fine. Raises `OSError`."""
    with contextlib.suppress(FileNotFoundError):
        path.unlink()
        sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Write the names in `folder` to the disk. Windows has no handle on a folder, and needs none."""
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def unusable(path: Path, error: OSError) -> ResourceError:
    """The error to raise for a file or folder that cannot be read or written."""
    return ResourceError(
        f"cannot use {path}: {error.strerror or error}",
        hint="check that the folder exists and is yours, and the disk",
    )
