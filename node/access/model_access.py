"""Whose a cached model is: who brought it here whole, or showed that it has it. Only they, and who acts for them, get it from here.

Who knows no more than a model's hash can commit a task that names it, or write it into a manifest; that is no reason to be given the model.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Final

import structlog

from swarm.base.durable import write_atomically

MAX_OF_EACH: Final = 64
"""Principals of one model; the first ones go."""
MAX_MODELS: Final = 1_024
PROOF: Final = 1024**2
"""Bytes at a model's end that show that somebody has it."""

log = structlog.get_logger("sark.whose")


class ModelAccess:
    """One file beside the models. Lost, it costs that each shows once more what it has."""

    def __init__(self, path: Path, has: Callable[[str], bool]) -> None:
        """Read it (blocking, quick). `has`: whether a model is in the cache. What does not read well is forgotten."""
        self._path = path
        self._has = has
        try:
            document = json.loads(path.read_bytes())
            self._of = {str(sha256): [str(each) for each in peers] for sha256, peers in document.items()}
        except (OSError, ValueError, TypeError, AttributeError):
            self._of = {}

    def knows(self, sha256: str, principal: str) -> bool:
        return principal in self._of.get(sha256, ())

    def note(self, sha256: str, principal: str) -> None:
        if self.knows(sha256, principal):
            return
        peers = [*self._of.pop(sha256, ()), principal]
        self._of[sha256] = peers[-MAX_OF_EACH:]
        stored = [each for each in self._of if self._has(each)][-MAX_MODELS:]
        self._of = {each: self._of[each] for each in stored}
        try:
            write_atomically(self._path, json.dumps(self._of).encode())
        except OSError as exc:
            log.warning("whose.not_written", why=exc.strerror or str(exc))


def is_end_of(path: Path, data: bytes) -> bool:
    """Whether these bytes are the end of that file. Blocking."""
    try:
        with path.open("rb") as file:
            file.seek(proof_offset(path.stat().st_size))
            return file.read() == data
    except OSError:
        return False


def proof_offset(size: int) -> int:
    """Where the end begins that is to be shown."""
    return max(0, size - PROOF)
