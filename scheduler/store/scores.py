"""Scores of the answers in stored records. Records stay as their workers signed them; scores are stored separately."""

from __future__ import annotations

from typing import Final

import sqlalchemy as sa

from results.row.scores import WAITING, Scores
from scheduler.store import schema as t
from scheduler.store.database import Database
from scheduler.store.events import EventRepository

SCORING: Final = "its answers are being scored"
"""The note of an ended task that waits for its scores."""


class ScoreRepository:
    """Scores of the records of `AttemptRepository.record_result`."""

    def __init__(self, database: Database, events: EventRepository) -> None:
        self._database, self._events = database, events

    def set(self, task: str, attempt: int, scores: Scores) -> None:
        """Store the scores of this attempt's answers, or replace them. Does nothing if its campaign was deleted."""
        r = t.records.c
        with self._database.transaction() as c:
            update = t.records.update().where(r.task == task, r.attempt == attempt)
            if not c.execute(update.values(scores=scores.model_dump_json())).rowcount:
                return
            c.execute(t.tasks.update().where(t.tasks.c.id == task).values(note=""))
            campaign = c.execute(sa.select(t.tasks.c.campaign).where(t.tasks.c.id == task)).scalar_one()
            figures = ", ".join(f"{name} {figure:.6g}" for name, figure in sorted(scores.scores.items()))
            fields = {key: words for key, words in (("scores", figures), ("why", scores.why)) if words}
            name = "answers.scored" if scores.scores else "answers.unscored"
            self._events.append(c, campaign, name, task, **fields)

    def waiting(self, campaign: str) -> dict[str, int]:
        """Tasks whose answers are still to be scored, with the attempts that produced them."""
        r = t.records.c
        of_campaign = sa.select(r.task, r.attempt).join(t.tasks, t.tasks.c.id == r.task)
        query = of_campaign.where(
            t.tasks.c.campaign == campaign, r.decides, r.scores == WAITING.model_dump_json()
        )
        return {row.task: row.attempt for row in self._database.all(query)}

    def record(self, task: str, attempt: int) -> bytes | None:
        """The record of this attempt, as its worker signed it."""
        r = t.records.c
        found = self._database.all(sa.select(r.body).where(r.task == task, r.attempt == attempt))
        return next((row.body for row in found), None)
