"""Tasks whose model is not on this disk: they wait, with the reason, until it is. Only an adopted campaign can have such tasks; those whose
devices fetch the model themselves need none here.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from pathlib import Path
from typing import Final

import structlog

from scheduler.core.state import TaskEntry
from swarm.base.text import safe_text

LOOK_S: Final = 2.0
"""Between two looks at the disk."""

log = structlog.get_logger("sark.scheduler")


class MissingModels:
    """Watches the spool for models that are not there yet."""

    def __init__(self, spool: Path) -> None:
        self._spool = spool
        self._waiting: dict[str, list[TaskEntry]] = {}
        self._looked_at = float("-inf")

    @property
    def waiting(self) -> int:
        """Number of tasks that are held back."""
        return sum(map(len, self._waiting.values()))

    def mark(
        self, entries: Iterable[TaskEntry], by_devices: Container[str] = ()
    ) -> tuple[tuple[str, str], ...]:
        """Hold back tasks without a model. Gives (task, why it waits) for each. `by_devices`: hashes of models that devices fetch."""
        notes: list[tuple[str, str]] = []
        for entry in entries:
            model = entry.task.model
            if entry.over or model.sha256 in by_devices or self._has(model.sha256):
                continue
            entry.model_missing = True
            self._waiting.setdefault(model.sha256, []).append(entry)
            if not entry.live:
                notes.append((entry.id, why_missing(entry.task.campaign, model.name)))
        return tuple(notes)

    def look(self, now: float) -> tuple[TaskEntry, ...]:
        """Tasks whose model has arrived, for `SchedulerCore.add_models`. To be called often: it looks at the disk every `LOOK_S`."""
        arrived: list[TaskEntry] = []
        if not self._waiting or now < self._looked_at + LOOK_S:
            return ()
        self._looked_at = now
        for sha256, entries in list(self._waiting.items()):
            if self._has(sha256):
                log.info("model.arrived", sha256=sha256)
                arrived += entries
                entries = []
            self._waiting[sha256] = [entry for entry in entries if not entry.over]
            if not self._waiting[sha256]:
                del self._waiting[sha256]
        for entry in arrived:
            entry.model_missing = False
        return tuple(arrived)

    def _has(self, sha256: str) -> bool:
        return (self._spool / sha256).is_file()


def why_missing(campaign: str, model: str) -> str:
    """For people: what to do about a task that waits for its model."""
    return f"waits for its model {safe_text(model, 80)}: sark-node adopt {campaign} --models FOLDER"
