"""The scheduler's store on SQLite or PostgreSQL: campaigns, tasks, attempts, signed records, events. Safe against kill -9 at every point.

    submit ── campaigns.create ─────────▶ ┌───────┐ ──▶ campaigns.unfinished ── the scheduler process
    cancel ── campaigns.request_cancel ─▶ │ store │ ◀── attempts.begin, record_grant, record_result, end
    watch  ◀─ tasks.all, events.since ─── └───────┘

Every method of a repository that writes is one transaction, and returns once it is on disk. Each can raise `ResourceError` (disk full,
locked, damaged), and then nothing has changed. One process schedules; others read, submit and cancel beside it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from scheduler.store import schema as t
from scheduler.store.attempts import AttemptRepository
from scheduler.store.backend import Location
from scheduler.store.campaigns import CampaignRepository
from scheduler.store.database import Database
from scheduler.store.events import EventRepository
from scheduler.store.experiments import ExperimentRepository
from scheduler.store.results import ResultRepository
from scheduler.store.tasks import TaskRepository, WorkerRepository


class Store:
    """An open store. Not for two threads at once."""

    def __init__(self, location: Location, *, wall: Callable[[], float] = time.time) -> None:
        """Open the store, or create it. Raises `ResourceError`."""
        self.location = location
        self.database = database = Database(location, wall)
        self.events = EventRepository(database)
        self.campaigns = CampaignRepository(database, self.events)
        self.tasks = TaskRepository(database)
        self.attempts = AttemptRepository(database, self.events)
        self.results = ResultRepository(database)
        self.experiments = ExperimentRepository(database)
        self.workers = WorkerRepository(database)

    def claim(self) -> None:
        """Be the one that runs this store's campaigns until it is closed. Raises `ResourceError` when another machine does."""
        with self.database.backend.errors():
            self.database.backend.claim(self.database.connection)

    def changes_by_others(self) -> int:
        """A number that changes when another process writes. Cheap enough to poll."""
        with self.database.backend.errors():
            return self.database.backend.changes(self.database.connection)

    def copy_to(self, target: Path) -> bool:
        """Copy a SQLite store to the new file `target`, as of one instant. False: the store is on a server."""
        with self.database.backend.errors():
            return self.database.backend.copy_to(self.database.connection, target)

    def describe(self) -> dict[str, Any]:
        """Location, engine, size and row counts, for people."""
        database, backend = self.database, self.database.backend
        with backend.errors():
            details = {
                "version": backend.version(database.connection),
                **backend.describe(database.connection),
            }
        return {
            "store": str(self.location),
            **details,
            "open_campaigns": database.count(t.campaigns, t.campaigns.c.ended.is_(None)),
            "rows": {table.name: database.count(table) for table in t.metadata.sorted_tables},
        }

    def close(self) -> None:
        """Close the store. Every change is on disk already."""
        self.database.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
