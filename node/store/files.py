"""The stores' interface to one folder of small files. A simulation puts its own disk here. Blocking."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, Protocol

from swarm.base.durable import UNFINISHED, make_folder, unusable, write_durably

AS_ROOT: Final = hasattr(os, "geteuid") and os.geteuid() == 0
MODEL_FILE, MODEL_FOLDER = (0o444, 0o555) if AS_ROOT else (0o400, 0o500)
"""Modes of models in the cache, a folder that only its user can enter. A root node's runs have the user `nobody`, and must read them."""


class Files(Protocol):
    """Files by name. All methods raise `OSError` or `ResourceError` if the disk fails."""

    folder: Path

    def names(self) -> Iterable[str]: ...
    def read(self, name: str) -> bytes: ...
    def size(self, name: str) -> int: ...

    def write(self, name: str, data: bytes) -> None:
        """Write a file durably and atomically."""

    def rename(self, old: str, new: str) -> None: ...

    def remove(self, name: str) -> None:
        """Remove a file, if it exists."""


class FileFolder:
    """A real folder, created if there is none, and used by one process at a time."""

    def __init__(self, path: Path) -> None:
        """Removes files that a kill left half-written. Raises `ResourceError`."""
        self.folder = path
        with self.usable():
            make_folder(path)
            for part in path.glob(".*"):
                if UNFINISHED.fullmatch(part.name):
                    part.unlink()

    @contextlib.contextmanager
    def usable(self) -> Iterator[None]:
        """Turns an `OSError` of the block into a `ResourceError`."""
        try:
            yield
        except OSError as exc:
            raise unusable(self.folder, exc) from exc

    def names(self) -> list[str]:
        return sorted(path.name for path in self.folder.iterdir())

    def read(self, name: str) -> bytes:
        return (self.folder / name).read_bytes()

    def size(self, name: str) -> int:
        return (self.folder / name).stat().st_size

    def write(self, name: str, data: bytes) -> None:
        write_durably(self.folder / name, data)

    def rename(self, old: str, new: str) -> None:
        (self.folder / old).replace(self.folder / new)

    def remove(self, name: str) -> None:
        (self.folder / name).unlink(missing_ok=True)
