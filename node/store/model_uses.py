"""The campaigns for which each model was fetched. When a campaign is forgotten, the models that no other campaign used are removed.

The table is a file in the folder of models. If it is lost, models stay until they are evicted.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

import structlog

from swarm.base.durable import write_atomically

MAX_OF_EACH: Final = 256
"""Campaigns remembered for one model; the earliest are forgotten. A model that is removed too early for them is fetched again if needed."""
MAX_MODELS: Final = 1_024

log = structlog.get_logger("sark.models")


class ModelUses:
    """One file. Writing blocks."""

    def __init__(self, path: Path) -> None:
        """Read the file (quick). An unreadable file counts as empty."""
        self._path = path
        try:
            document = json.loads(path.read_bytes())
            self._of = {
                str(sha256): {(str(principal), str(campaign)): None for principal, campaign in uses}
                for sha256, uses in document.items()
            }
        except (OSError, ValueError, TypeError, AttributeError):
            self._of = {}

    def note(self, sha256: str, principal: str, campaign: str) -> None:
        """Note that a campaign uses a model."""
        uses = self._of.setdefault(sha256, {})
        if (principal, campaign) in uses:
            return
        uses[principal, campaign] = None
        while len(uses) > MAX_OF_EACH:
            del uses[next(iter(uses))]
        while len(self._of) > MAX_MODELS:
            del self._of[next(iter(self._of))]
        self._write()

    def only_of(self, principal: str, campaign: str) -> tuple[str, ...]:
        """The models that only this campaign used."""
        return tuple(sha256 for sha256, uses in self._of.items() if tuple(uses) == ((principal, campaign),))

    def end(self, principal: str, campaign: str) -> None:
        """Forget a campaign."""
        for sha256, uses in list(self._of.items()):
            uses.pop((principal, campaign), None)
            if not uses:
                del self._of[sha256]
        self._write()

    def _write(self) -> None:
        try:
            write_atomically(
                self._path, json.dumps({each: list(uses) for each, uses in self._of.items()}).encode()
            )
        except OSError as exc:
            log.warning("uses.not_written", why=exc.strerror or str(exc))
