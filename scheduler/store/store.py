"""The scheduler's store on SQLite or PostgreSQL: campaigns, tasks, attempts, signed records, events. Safe against kill -9 at every point.

    submit ── campaigns.create ─────────▶ ┌───────┐ ──▶ campaigns.unfinished ── the scheduler process
    cancel ── campaigns.request_cancel ─▶ │ store │ ◀── attempts.begin, record_grant, record_result, end
    watch  ◀─ tasks.all, events.since ─── └───────┘

Every writing method of a repository is one transaction, and returns once it is on disk. The scheduler process gathers changes of tasks
(`gather`) and sends nothing about them before they are committed. Each method can raise `ResourceError` (disk full, locked, damaged), and
then nothing has changed. One process leads a campaign (`scheduler.store.seats`); others read, submit and cancel meanwhile.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from scheduler.store import schema as t
from scheduler.store.attempts import AttemptRepository
from scheduler.store.campaigns import CampaignRepository
from scheduler.store.database import Database, Location, ServerLocation, server_url
from scheduler.store.deletion import DeletionRepository
from scheduler.store.events import EventRepository
from scheduler.store.experiments import ExperimentRepository
from scheduler.store.results import ResultRepository
from scheduler.store.scores import ScoreRepository
from scheduler.store.seats import SeatRepository
from scheduler.store.sendings import SendingRepository
from scheduler.store.settings import SchedulerSettings, StoreSettings
from scheduler.store.tasks import TaskRepository, WorkerRepository
from swarm.base.home import Home
from swarm.base.settings import load_settings


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
        self.scores = ScoreRepository(database, self.events)
        self.experiments = ExperimentRepository(database)
        self.workers = WorkerRepository(database)
        self.sendings = SendingRepository(database, self.events)
        self.deletions = DeletionRepository(database)
        self.seats = SeatRepository(database)

    def claim(self) -> None:
        """Claim the store until it is closed: no other process runs its campaigns. Raises `ResourceError` when another process does."""
        self.database.call(self.database.backend.claim)

    def wait_while_busy(self, waits: Callable[[float], None]) -> None:
        """From now on wait for another process's long transaction instead of failing. `waits` is called with the seconds so far."""
        self.database.waits = waits

    def changes_by_others(self) -> int:
        """A number that changes when another process writes. Cheap enough to poll."""
        return self.database.changes()

    def copy_to(self, target: Path) -> bool:
        """Copy a SQLite store to the new file `target`, as of one instant. False: the store is on a server."""
        return self.database.call(lambda c: self.database.backend.copy_to(c, target))

    def describe(self) -> dict[str, Any]:
        """Location, engine, size and row counts, for people."""
        database = self.database
        return {
            "store": str(self.location),
            "version": database.call(database.backend.version),
            **database.call(database.backend.describe),
            "open_campaigns": database.count(t.campaigns, t.campaigns.c.ended.is_(None)),
            "schedulers": [asdict(seat) for seat in self.seats.all()],
            "rows": {table.name: database.count(table) for table in t.metadata.sorted_tables},
        }

    def gather(self, gathered: Callable[[], None]) -> None:
        """From now on gather changes of tasks, which `commit` writes together. `gathered` is called when there is something to commit."""
        self.attempts.gather(gathered)

    def write_through(self) -> None:
        """End `gather`: each change is on disk at once again. Changes gathered and not committed are dropped."""
        self.attempts.write_through()

    def commit(self) -> None:
        """Write everything gathered. Raises `ResourceError`."""
        self.database.commit()

    @property
    def uncommitted(self) -> bool:
        """Whether a gathered change is not yet on disk."""
        return bool(self.database.pending)

    def close(self) -> None:
        """Close the store. Uncommitted changes are lost; everything else is already on disk."""
        self.database.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def store_settings(home: Home, environment: Mapping[str, str] = os.environ) -> StoreSettings:
    """The store's settings alone, for commands that need no network. Raises `SettingsError`, `ResourceError`."""
    section, others = SchedulerSettings.section, SchedulerSettings.model_fields
    return load_settings(StoreSettings, home.config_file, environment, {}, section=section, foreign=others)


def store_location(home: Home, environment: Mapping[str, str] = os.environ) -> Location:
    """Where this home's store is: a file, or a server's schema named after its scheduler. Raises like `store_settings`."""
    url = store_settings(home, environment).store
    if url is None:
        return home.store
    from swarm.net.identity import load_or_create

    return ServerLocation(server_url(url), f"sark_{load_or_create(home.key('scheduler')).peer_id}")


def open_store(home: Home) -> Store:
    """This home's store, created if it does not exist. Raises `ResourceError`, `SettingsError`."""
    return Store(store_location(home))


def has_store(home: Home) -> bool:
    """Whether the store may exist; a server is assumed to have it, without a query."""
    location = store_location(home)
    return isinstance(location, ServerLocation) or location.exists()


def delete_old(store: Store, older_s: float, *, keep: int = 0, scheduler: str = "") -> tuple[str, ...]:
    """Delete campaigns that ended more than `older_s` ago, except the `keep` that ended last; returns their ids. Workers are to forget
    those that `scheduler` signed. Blocking.
    """
    old = store.campaigns.old(older_s, keep=keep)
    return tuple(campaign.id for campaign in old if store.campaigns.delete(campaign.id, scheduler))
