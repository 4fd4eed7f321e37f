"""A worker's disk in the model: `node.store.files.Files` in memory. It outlives the process.

When power fails, everything written stays. Of the names that were changed or removed since the last write, only the first few changes stay,
in their order.
"""

from __future__ import annotations

import random
from pathlib import Path

from protocol.errors import ResourceError


class SimDisk:
    """Files by name."""

    folder = Path("outbox")

    def __init__(self) -> None:
        self.full = False
        """The disk takes no writes."""
        self.syncs = True
        self._files: dict[str, bytes] = {}
        self._unsynced: list[dict[str, bytes]] = []
        """The files before each change since the last write."""

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
        if self.syncs:
            self._unsynced.clear()
        else:
            self._unsynced.append(dict(self._files))
        self._files[name] = data

    def rename(self, old: str, new: str) -> None:
        data = self.read(old)
        self._unsynced.append(dict(self._files))
        self._files[new] = data
        del self._files[old]

    def remove(self, name: str) -> None:
        if name in self._files:
            self._unsynced.append(dict(self._files))
            del self._files[name]

    def lose_power(self, rng: random.Random) -> int:
        """Cut the power. Returns the number of changes that are lost."""
        lost = rng.randint(0, len(self._unsynced))
        if lost:
            self._files = self._unsynced[-lost]
        self._unsynced.clear()
        return lost

    def image(self) -> dict[str, bytes]:
        """All files."""
        return dict(self._files)

    def become(self, image: dict[str, bytes]) -> None:
        """Restore the files of an image."""
        self._files = dict(image)
        self._unsynced.clear()
