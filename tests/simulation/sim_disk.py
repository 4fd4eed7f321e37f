"""A worker's disk in the model: `node.store.files.Files` in memory. It outlives the process."""

from __future__ import annotations

from pathlib import Path

from protocol.errors import ResourceError


class SimDisk:
    """Files by name."""

    folder = Path("outbox")

    def __init__(self) -> None:
        self.full = False
        """Nothing can be written."""
        self._files: dict[str, bytes] = {}

    def names(self) -> list[str]:
        return sorted(self._files)

    def read(self, name: str) -> bytes:
        try:
            return self._files[name]
        except KeyError:
            raise FileNotFoundError(name) from None

    def size(self, name: str) -> int:
        return len(self.read(name))

    def write(self, name: str, data: bytes) -> None:
        if self.full:
            raise ResourceError("the disk is full")
        self._files[name] = data

    def rename(self, old: str, new: str) -> None:
        self._files[new] = self.read(old)
        del self._files[old]

    def remove(self, name: str) -> None:
        self._files.pop(name, None)
