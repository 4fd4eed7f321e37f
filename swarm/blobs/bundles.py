"""The bytes of a model as sent: a file's own or, if the model is a folder, the bundle of its files (`protocol/wire/bundle.py`).

Schedulers send these bytes. A folder measured on this machine is identified by their sha256.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from protocol.wire.bundle import MAX_DEPTH, MAX_PARTS, BundlePart, pack_header, problem

_CHUNK: Final = 1024 * 1024


def contents(path: Path) -> Iterator[bytes]:
    """The bytes to give a worker for the model at `path`, piece by piece. Blocking.

    Raises `OSError`, and `ValueError` with a one-line reason if a folder cannot be a model.
    """
    if not path.is_dir():
        if path.exists() and not path.is_file():
            raise ValueError("it is not a regular file")  # a pipe or a device has no end
        yield from _pieces(path)
        return
    parts = parts_of(path)
    yield pack_header(parts)
    for part in parts:
        yield from _pieces(path / part.path)


def parts_of(folder: Path) -> tuple[BundlePart, ...]:
    """The files in a folder and below it, sorted by path, each read and hashed. Files whose names begin with a dot are left out: they
    belong to the system or to version control, not to a model. Raises as `contents`; links and other special files are refused.
    """
    paths = list(_walk(folder, "", 1))
    if len(paths) > MAX_PARTS:
        raise ValueError(f"the folder holds more than {MAX_PARTS} files")
    if not paths:
        raise ValueError("the folder is empty")
    return tuple(sorted(_part(folder, path) for path in paths))


def _walk(folder: Path, below: str, depth: int) -> Iterator[str]:
    if depth > MAX_DEPTH:
        raise ValueError(f"the folder is nested deeper than {MAX_DEPTH} levels")
    result = 0
    with os.scandir(folder / below) as entries:
        for entry in entries:
            if entry.name.startswith("."):
                continue
            result += 1
            path = f"{below}/{entry.name}" if below else entry.name
            if why := problem(path):
                raise ValueError(f"{path!r}: {why}")
            kind = entry.stat(follow_symlinks=False).st_mode
            if stat.S_ISDIR(kind):
                yield from _walk(folder, path, depth + 1)
            elif stat.S_ISREG(kind):
                yield path
            else:
                raise ValueError(
                    f"{path!r} is a link or another special file; a model's folder may hold only regular files"
                )
            if result > MAX_PARTS:
                raise ValueError(f"the folder holds more than {MAX_PARTS} files")


def _part(folder: Path, path: str) -> BundlePart:
    with (folder / path).open("rb") as file:
        digest = hashlib.file_digest(file, "sha256")
        return BundlePart(path, file.tell(), digest.hexdigest())


def _pieces(file: Path) -> Iterator[bytes]:
    with file.open("rb") as source:
        while piece := source.read(_CHUNK):
            yield piece
