"""Tasks whose model is not on this disk: they wait, with the reason, until it is brought. Only an adopted campaign can have such tasks;
those whose devices fetch the model themselves need none here.
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
        self._looked = float("-inf")

    @property
    def waiting(self) -> int:
        """Tasks that are held back."""
        return sum(map(len, self._waiting.values()))

    def mark(
        self, entries: Iterable[TaskEntry], by_devices: Container[str] = ()
    ) -> tuple[tuple[str, str], ...]:
        """Hold back what has no model here. Gives (task, why it waits) for each. `by_devices`: hashes of models that devices fetch."""
        notes: list[tuple[str, str]] = []
        here: dict[str, bool] = {}
        for entry in entries:
            model = entry.task.model
            if model.sha256 not in here:
                here[model.sha256] = (self._spool / model.sha256).is_file()
            if entry.over or here[model.sha256] or model.sha256 in by_devices:
                continue
            entry.model_missing = True
            self._waiting.setdefault(model.sha256, []).append(entry)
            if not entry.live:
                notes.append((entry.id, why_lacking(entry.task.campaign, model.name)))
        return tuple(notes)

    def look(self, now: float) -> tuple[TaskEntry, ...]:
        """Let go on what has its model now, and forget what has ended. Gives what goes on, for `Book.brought`.

        To be called often: `now`, in seconds, keeps the disk in peace.
        """
        let_go: list[TaskEntry] = []
        if not self._waiting or now < self._looked + LOOK_S:
            return ()
        self._looked = now
        for sha256, entries in list(self._waiting.items()):
            brought = (self._spool / sha256).is_file()
            if brought:
                log.info("model.brought", sha256=sha256)
                for entry in entries:
                    entry.model_missing = False
                let_go += entries
            left = [] if brought else [entry for entry in entries if not entry.over]
            if left:
                self._waiting[sha256] = left
            else:
                del self._waiting[sha256]
        return tuple(let_go)


def why_lacking(campaign: str, model: str) -> str:
    """For people: what to do about a task that waits for its model."""
    return f"waits for its model {safe_text(model, 80)}: sark-node adopt {campaign} --models FOLDER"
