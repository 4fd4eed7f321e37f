"""What a process did to the files below one folder, as recorded by `shim.c`.

library = build(folder)                              compiles the library with gcc
environment(library, root, log)                      of a process that is recorded
operations(log, root)                                what the process did, in order
"""

from __future__ import annotations

import shutil
import struct
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path, PurePosixPath
from typing import Final

_HEAD: Final = struct.Struct("<I1sQQHH")
SHIM: Final = Path(__file__).with_name("shim.c")


class Operation(StrEnum):
    """Operations on a disk."""

    CREATE = "C"
    WRITE = "W"
    TRUNCATE = "T"
    SYNC_FILE = "F"
    SYNC_FOLDER = "D"
    RENAME = "R"
    LINK = "L"
    REMOVE = "U"
    MAKE_FOLDER = "M"


@dataclass(frozen=True, slots=True)
class Step:
    """One operation. Paths are relative to the recorded folder."""

    operation: Operation
    inode: int
    number: int
    """WRITE: the offset; TRUNCATE: the size."""
    path: PurePosixPath
    other: PurePosixPath
    """RENAME, LINK: the new name."""
    data: bytes


def build(folder: Path) -> Path:
    """Compile the library to preload. Raises `RuntimeError` where there is no gcc."""
    compiler = shutil.which("gcc")
    if compiler is None:
        raise RuntimeError(
            "no gcc on this machine: the library that records writes cannot be built; apt install gcc"
        )
    library = folder / "shim.so"
    command = [compiler, "-shared", "-fPIC", "-O2", "-o", str(library), str(SHIM), "-ldl", "-lpthread"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"gcc cannot build {SHIM.name}: {done.stderr}")
    return library


def environment(library: Path, root: Path, log: Path) -> dict[str, str]:
    """Variables to add to the environment of a recorded process. `root` must not contain a symbolic link."""
    return {"LD_PRELOAD": str(library), "DURABILITY_ROOT": str(root), "DURABILITY_LOG": str(log)}


def operations(log: Path, root: Path) -> Iterator[Step]:
    """All recorded operations. Raises `ValueError` for a log that is cut off, and for an operation that the model of a disk does not
    know.
    """
    data, at = log.read_bytes(), 0
    while at < len(data):
        size, letter, inode, number, one, two = _HEAD.unpack_from(data, at)
        first = at + _HEAD.size
        second = first + one
        end = at + size
        if end > len(data):
            raise ValueError(f"{log} is cut off at {at}")
        yield Step(
            Operation(letter.decode()),
            inode,
            number,
            _inside(data[first:second].decode(), root),
            _inside(data[second : second + two].decode(), root),
            data[second + two : end],
        )
        at = end


def _inside(path: str, root: Path) -> PurePosixPath:
    return PurePosixPath(path).relative_to(root.as_posix()) if path else PurePosixPath()
