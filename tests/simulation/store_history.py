"""The history that a scheduler's store tells."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import sqlalchemy as sa

from protocol.values.record import read_record
from scheduler.store import schema as t
from scheduler.store.database import backend_of
from scheduler.store.events import check_chain
from scheduler.store.store import Store
from tests.simulation.history import History, Kind

ENDS: Final = {"task.succeeded": "succeeded", "task.failed": "failed", "task.cancelled": "cancelled"}
GIVEN_UP: Final = {
    "task.refused": "refused",
    "task.ticket-ended": "refused",
    "task.attempt-ended": "dropped",
    "task.preempted": "preempted",
    "task.lost": "lost",
    "task.retried": "failed",
}


def from_store(path: Path, who: str, history: History, *, began: float = 0.0) -> None:
    """Add the store's events to `history`, with the states at the end. `began`: the store's wall clock at time 0 of the history."""
    history.final = dict(history.final or {})
    with Store(path) as store:
        campaigns = [summary.campaign for summary in store.campaigns.summaries()]
        stored = {(row.task, row.attempt): row for row in _records(path)}
        history.stored = (history.stored or frozenset()) | {row.sha256 for row in stored.values()}
        for campaign in campaigns:
            history.attempts.setdefault(campaign.id, campaign.attempts)
            history.final |= {task.id: str(task.state) for task in store.tasks.all(campaign.id)}
            broken = check_chain(store.events.all(campaign.id), store.events.count(campaign.id))
            if broken is not None:
                history.broken_chains += (f"{campaign.id}: {broken.why}",)
            for event in store.events.all(campaign.id):
                at, task = event.at - began, event.task or ""
                attempt = int(event.fields.get("attempt") or 0)
                record = stored.get((task, attempt))
                ends = ENDS.get(event.name)
                match event.name:
                    case "campaign.created":
                        history.add(at, Kind.ACCEPTED, who=who, campaign=campaign.id)
                    case "task.committing":
                        worker = str(event.fields["worker"])
                        history.add(at, Kind.COMMITTED, who=who, task=task, attempt=attempt, worker=worker)
                    case "task.granted":
                        fence = tuple(event.fields["fence"])
                        history.add(
                            at,
                            Kind.WANTED,
                            who=who,
                            task=task,
                            attempt=attempt,
                            worker=record.worker if record else "",
                            fence=fence,
                        )
                    case (
                        "task.succeeded"
                        | "task.failed"
                        | "task.retried"
                        | "task.preempted"
                        | "task.discounted"
                        | "task.cancelled"
                    ) if record is not None:
                        history.add(
                            at,
                            Kind.RECORDED,
                            who=who,
                            task=task,
                            attempt=attempt,
                            worker=record.worker,
                            fence=read_record(record.body).fence.key(),
                            sha256=record.sha256,
                            word=ends or "pending",
                            number=int(event.name == "task.retried"),
                        )
                    case name if name in GIVEN_UP and attempt:
                        history.add(
                            at, Kind.ATTEMPT_ENDED, who=who, task=task, attempt=attempt, word=GIVEN_UP[name]
                        )
                    case _:
                        pass
                if ends is not None:
                    history.add(at, Kind.ENDED, who=who, task=task, word=ends)


def _records(path: Path) -> Sequence[Any]:
    columns = t.records.c
    with backend_of(path).connect() as connection:
        query = sa.select(columns.task, columns.attempt, columns.worker, columns.sha256, columns.body)
        return connection.execute(query).all()
