"""The whole of a store out and in again, row by row, and the end of what is old. The rows are the same for SQLite and PostgreSQL.

dump ──▶ (table, row), each campaign's together ──▶ load      what `scheduler.store.archive` writes to a file and reads from one
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError

from protocol.errors import CampaignError, ResourceError
from scheduler.store import experiment_schema as x
from scheduler.store import schema as t
from scheduler.store.queries import campaign_row
from scheduler.store.rows import CampaignRow
from scheduler.store.transactions import Transactions
from swarm.base.text import count as plural

Entry = tuple[str, dict[str, Any]]
"""A table's name, and a row of it by column."""

BY_CAMPAIGN: Final = (t.models, x.folders, t.events)
"""Rows that belong to a campaign, by the column `campaign`."""
BY_TASK: Final = (t.attempts, t.records, t.results)
"""Rows that belong to a task, by the column `task`."""
ALONE: Final = (t.workers, x.experiments, x.versions, x.runs)
"""Rows that belong to no campaign, or outlive it; each is known by its primary key."""
TABLES: Final[dict[str, sa.Table]] = {
    table.name: table for table in (t.campaigns, t.tasks, *BY_CAMPAIGN, *BY_TASK, *ALONE)
}
_ALONE: Final = frozenset(table.name for table in ALONE)
_ANOTHER: Final = "nothing of that campaign was put in; take another copy"
PAGE: Final = 200
"""Rows that are read or written at once: each has a record of kilobytes, or of megabytes."""


@dataclass(frozen=True, slots=True)
class LoadedCampaigns:
    """What became of the campaigns of a file."""

    new: int = 0
    known: int = 0
    """Were here already: left as they are."""
    open: int = 0
    """Had not ended where they come from: left out."""


class Transfer(Transactions):
    """Part of `scheduler.store.Store`."""

    page: int = PAGE
    """Tasks that go out at once."""

    def dump(self) -> Iterator[Entry]:
        """All there is, as of one instant, however long it takes and whatever others write. Nothing else may be asked of the store
        meanwhile."""
        with self._backend.told():
            c = self._open()
            self._backend.begin_reading(c)
            try:
                for table in ALONE:
                    yield from _rows(c, sa.select(table).order_by(*table.primary_key), table)
                ids = c.execute(sa.select(t.campaigns.c.id).order_by(t.campaigns.c.created, t.campaigns.c.id))
                for campaign in ids.scalars().all():
                    yield from _campaign(c, campaign, self.page)
            finally:
                self._backend.roll_back(c)

    def load(self, entries: Iterable[Entry], *, with_open: bool) -> LoadedCampaigns:
        """Put in what is not here yet, each campaign in a transaction of its own: those that are here are left as they are.

        `with_open`: also those that had not ended, which this home carries on then.
        """
        new = known = left = 0
        for name, rows in groupby(entries, key=_Owner()):
            if name is None:
                self._load_alone(rows)
                continue
            row = next(rows)
            if self.campaign(name) is not None:
                known += 1
            elif row[1]["ended"] is None and not with_open:
                left += 1
            else:
                with _no_contradiction(), self._writing() as c:
                    _put(c, [row])
                    _put(c, rows)  # noqa: B031  (what is left of it)
                new += 1
        return LoadedCampaigns(new, known, left)

    def _load_alone(self, entries: Iterable[Entry]) -> None:
        with _no_contradiction(), self._writing() as c:
            for name, row in entries:
                table = TABLES[name]
                key = [column == row[column.name] for column in table.primary_key]
                if not c.execute(sa.select(sa.literal(1)).select_from(table).where(*key)).first():
                    c.execute(table.insert().values(**row))

    def replace(self, entries: Iterable[Entry]) -> int:
        """Have these rows and no others, in one transaction; gives how many campaigns there are then."""
        with _no_contradiction(), self._writing() as c:
            for table in reversed(t.metadata.sorted_tables):
                c.execute(table.delete())
            _put(c, entries)
            return int(c.execute(sa.select(sa.func.count()).select_from(t.campaigns)).scalar_one())

    def old_campaigns(self, older_s: float, *, keep: int = 0) -> tuple[CampaignRow, ...]:
        """Those that ended longer ago than that, but for the `keep` that ended last; the oldest first."""
        c = t.campaigns.c
        newest = sa.select(c.id).where(c.ended.is_not(None)).order_by(c.ended.desc(), c.id).limit(keep)
        query = sa.select(t.campaigns).where(c.ended.is_not(None), c.ended < self._wall() - older_s)
        if keep:
            query = query.where(c.id.not_in(newest))
        return tuple(campaign_row(row) for row in self._all(query.order_by(c.ended, c.id)))

    def forget_campaign(self, campaign: str) -> bool:
        """Remove one that has ended, with all that belongs to it. False: it has not ended, or is not here."""
        with self._writing() as c:
            ended = sa.and_(t.campaigns.c.id == campaign, t.campaigns.c.ended.is_not(None))
            if not c.execute(sa.select(t.campaigns.c.id).where(ended)).first():
                return False
            own = sa.select(t.tasks.c.id).where(t.tasks.c.campaign == campaign)
            for table in reversed(BY_TASK):
                c.execute(table.delete().where(table.c.task.in_(own)))
            for table in (t.tasks, *reversed(BY_CAMPAIGN)):
                c.execute(table.delete().where(table.c.campaign == campaign))
            c.execute(t.campaigns.delete().where(ended))
            return True

    def forget_workers(self) -> bool:
        """Remove where workers were last reached. False: a campaign that has not ended needs it to find them again."""
        with self._writing() as c:
            if c.execute(sa.select(t.campaigns.c.id).where(t.campaigns.c.ended.is_(None))).first():
                return False
            c.execute(t.workers.delete())
            return True

    def about(self) -> dict[str, Any]:
        """Where it is, what stores it, how much there is."""
        with self._backend.told():
            c = self._open()
            found: dict[str, Any] = {
                "store": str(self._backend.place),
                "version": self._backend.version(c),
                **self._backend.about(c),
            }
        counts = {name: self._count(table) for name, table in TABLES.items()}
        open_ = sa.select(sa.func.count()).select_from(t.campaigns).where(t.campaigns.c.ended.is_(None))
        return {**found, "open_campaigns": int(self._all(open_)[0][0]), "rows": counts}

    def copy_file(self, target: Path) -> bool:
        """A whole copy of a store in a file, as of one instant. False: it is no file, and `dump` is the way. Raises `ResourceError`."""
        with self._backend.told():
            return self._backend.copy_file(self._open(), target)

    def _count(self, table: sa.Table) -> int:
        return int(self._all(sa.select(sa.func.count()).select_from(table))[0][0])


class _Owner:
    """The campaign that a row belongs to: the one that was told last; None for rows that belong to none."""

    def __init__(self) -> None:
        self._campaign: str | None = None

    def __call__(self, entry: Entry) -> str | None:
        """The key of one row, in their order."""
        name, row = entry
        if name in _ALONE:
            return None
        if name == t.campaigns.name:
            self._campaign = str(row["id"])
        if self._campaign is None:
            raise CampaignError("a row comes before its campaign", hint=_ANOTHER)
        return self._campaign


@contextmanager
def _no_contradiction() -> Iterator[None]:
    try:
        yield
    except IntegrityError:
        raise CampaignError("rows of the file contradict each other", hint=_ANOTHER) from None


def _campaign(c: sa.Connection, campaign: str, size: int) -> Iterator[Entry]:
    """One campaign's rows: itself first, then each after what it refers to."""
    yield from _rows(c, sa.select(t.campaigns).where(t.campaigns.c.id == campaign), t.campaigns)
    for table in BY_CAMPAIGN[:-1]:
        query = sa.select(table).where(table.c.campaign == campaign).order_by(*table.primary_key)
        yield from _rows(c, query, table)
    last = 0
    while numbers := _page_of_tasks(c, campaign, last, size):
        within = (t.tasks.c.campaign == campaign, t.tasks.c.n > last, t.tasks.c.n <= numbers[-1])
        yield from _rows(c, sa.select(t.tasks).where(*within).order_by(t.tasks.c.n), t.tasks)
        own = sa.select(t.tasks.c.id).where(*within)
        for table in BY_TASK:
            query = sa.select(table).where(table.c.task.in_(own)).order_by(*table.primary_key)
            yield from _rows(c, query, table)
        last = numbers[-1]
    seq = 0
    while page := list(
        _rows(
            c,
            sa.select(t.events)
            .where(t.events.c.campaign == campaign, t.events.c.seq > seq)
            .order_by(t.events.c.seq)
            .limit(size * 10),
            t.events,
        )
    ):
        yield from page
        seq = page[-1][1]["seq"]


def _page_of_tasks(c: sa.Connection, campaign: str, after: int, size: int) -> Sequence[int]:
    query = sa.select(t.tasks.c.n).where(t.tasks.c.campaign == campaign, t.tasks.c.n > after)
    return c.execute(query.order_by(t.tasks.c.n).limit(size)).scalars().all()


def _rows(c: sa.Connection, query: sa.Select[Any], table: sa.Table) -> Iterator[Entry]:
    for row in c.execute(query):
        yield table.name, dict(row._mapping)


def _put(c: sa.Connection, entries: Iterable[Entry]) -> None:
    """Inside a transaction; rows of one table that follow each other go in together."""
    for name, group in groupby(entries, key=lambda entry: entry[0]):
        rows: list[dict[str, Any]] = []
        for _, row in group:
            rows.append(row)
            if len(rows) >= PAGE:
                c.execute(TABLES[name].insert(), rows)
                rows = []
        if rows:
            c.execute(TABLES[name].insert(), rows)


def refuse_full(count: int, place: object) -> None:
    """Raises `CampaignError` where a backup would take the place of campaigns."""
    if count:
        raise CampaignError(
            f"{place} holds {plural(count, 'campaign')}, which would be gone",
            hint="with --replace the backup takes their place; or keep both: sark-node db import FILE",
        )


def refuse_running(running: bool) -> None:
    """Raises `ResourceError` while campaigns are carried on."""
    if running:
        raise ResourceError(
            "the scheduler process of this home runs: a backup cannot be put under its feet",
            hint="wait until its campaigns have ended, or cancel them",
        )
