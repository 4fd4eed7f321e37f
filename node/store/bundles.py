"""Unpacks a bundle into a read-only folder of plain files, and verifies every file's hash. Blocking; see `protocol.wire.bundle`."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Final

from node.store.files import MODEL_FILE, MODEL_FOLDER
from protocol.errors import RemoteProtocolError
from protocol.wire.bundle import MAGIC, MAX_DEPTH, MAX_PARTS, BundlePart, read_header, size_of

_CHUNK: Final = 1024 * 1024


def is_bundle(file: Path) -> bool:
    """Whether this file is a bundle. Raises `OSError`."""
    with file.open("rb") as source:
        return source.read(len(MAGIC)) == MAGIC


def is_unpacked(file: Path, folder: Path) -> bool:
    """Whether `folder` holds exactly the files that the bundle in `file` lists. Reads every byte.

    Raises `RemoteProtocolError` for a bad bundle.
    """
    with file.open("rb") as source:
        parts = read_header(source.read) or ()
    try:
        return _sizes(folder) == {part.path: part.size for part in parts} and all(
            _sha256(folder / part.path) == part.sha256 for part in parts
        )
    except OSError:
        return False


def unpack(file: Path, folder: Path) -> None:
    """Unpack the bundle in `file` to `folder`, which appears under its name only once it is complete and on disk.

    Raises `RemoteProtocolError` if a hash does not match or the bundle is malformed, `OSError` if the folder cannot be written.
    """
    remove(folder)
    partial = folder.with_suffix(".unpacking")
    remove(partial)
    try:
        with file.open("rb") as source:
            parts = read_header(source.read)
            if parts is None or file.stat().st_size != size_of(parts):
                raise RemoteProtocolError("bad bundle: its size is not that of its files")
            partial.mkdir(mode=0o700)
            for part in parts:
                _write(source.read, part, partial / part.path)
        for path in sorted(partial.rglob("*"), reverse=True):
            if path.is_dir():
                path.chmod(MODEL_FOLDER)
        partial.replace(folder)
        folder.chmod(MODEL_FOLDER)  # after the move: macOS does not move a read-only folder
    except BaseException:
        remove(partial)
        raise


def remove(folder: Path) -> None:
    """Remove a read-only folder, if it exists. For a link to a folder, remove only the link."""
    if folder.is_symlink():
        folder.unlink()
    if not folder.is_dir():
        return
    for path in (folder, *folder.rglob("*")):
        if path.is_dir() and not path.is_symlink():
            path.chmod(0o700)
        elif os.name == "nt":
            path.chmod(0o600)
    shutil.rmtree(folder)


def _write(read: Callable[[int], bytes], part: BundlePart, target: Path) -> None:
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    hashing = hashlib.sha256()
    left = part.size
    with target.open("xb") as out:
        while left:
            piece = read(min(left, _CHUNK))
            if not piece:
                raise RemoteProtocolError(f"bad bundle: {part.path} is cut off")
            hashing.update(piece)
            out.write(piece)
            left -= len(piece)
        out.flush()
        os.fsync(out.fileno())
    if hashing.hexdigest() != part.sha256:
        raise RemoteProtocolError(f"bad bundle: {part.path} does not have the hash that its list says")
    target.chmod(MODEL_FILE)


def _sizes(folder: Path) -> dict[str, int]:
    """Path → size of each file below `folder`; -1 for anything but a plain file."""
    sizes: dict[str, int] = {}
    waiting = [(folder, "", 0)]
    while waiting:
        parent, below, depth = waiting.pop()
        with os.scandir(parent) as entries:
            for entry in entries:
                path = f"{below}{entry.name}"
                info = entry.stat(follow_symlinks=False)
                if stat.S_ISDIR(info.st_mode) and depth < MAX_DEPTH:
                    waiting.append((parent / entry.name, f"{path}/", depth + 1))
                else:
                    sizes[path] = info.st_size if stat.S_ISREG(info.st_mode) else -1
                if len(sizes) > MAX_PARTS:
                    return {}
    return sizes


def _sha256(file: Path) -> str:
    with contextlib.closing(file.open("rb")) as source:
        return hashlib.file_digest(source, "sha256").hexdigest()
