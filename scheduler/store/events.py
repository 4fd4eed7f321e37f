"""The events of each campaign as a hash chain: each event carries a hash over itself and the previous event's hash.

    hash 0 = ""        hash n = sha256(hash n-1 as bytes, then event n as JSON)

The chain has no key: whoever can write to the store can write a new chain. An intact chain shows that no single event was damaged or
changed. Someone who noted the last hash elsewhere can tell later that nothing up to it was changed, removed or inserted.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import sqlalchemy as sa

from scheduler.store import schema as t
from scheduler.store.database import Database, values_of
from scheduler.store.rows import EventRow
from scheduler.store.statements import RowStatement

_INSERT: Final = RowStatement(t.events.insert(), tuple(EventRow.__dataclass_fields__))
_NUMBER: Final = (
    t.campaigns.update()
    .where(t.campaigns.c.id == sa.bindparam("of"))
    .values(next_seq=t.campaigns.c.next_seq + sa.bindparam("count"))
    .returning(t.campaigns.c.next_seq)
)
_LAST: Final = sa.select(t.events.c.hash).where(
    t.events.c.campaign == sa.bindparam("of"), t.events.c.seq == sa.bindparam("last")
)


_CANONICAL: Final = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=True)


@dataclass(frozen=True, slots=True)
class NewEvent:
    """An event without its number."""

    campaign: str
    at: float
    """Seconds since 1970."""
    name: str
    task: str | None
    fields: Mapping[str, Any]


class EventRepository:
    """Events, appended in the transaction of the change that they describe."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def append(
        self, c: sa.Connection, campaign: str, event: str, task: str | None = None, /, **fields: Any
    ) -> None:
        """Append an event inside the open transaction `c`."""
        self.append_many(c, campaign, event, [(task, fields)])

    def append_many(
        self,
        c: sa.Connection,
        campaign: str,
        event: str,
        each: Sequence[tuple[str | None, Mapping[str, Any]]],
    ) -> None:
        """Append an event for each of these tasks, with its fields, inside the open transaction `c`."""
        at = self._database.wall()
        self.append_all(c, [NewEvent(campaign, at, event, task, fields) for task, fields in each])

    def append_all(self, c: sa.Connection, news: Sequence[NewEvent]) -> None:
        """Append events of any campaigns inside the open transaction `c`."""
        by_campaign: dict[str, list[NewEvent]] = {}
        for event in news:
            by_campaign.setdefault(event.campaign, []).append(event)
        for campaign, events in by_campaign.items():
            next_seq = c.execute(_NUMBER, {"of": campaign, "count": len(events)}).scalar_one()
            first = next_seq - len(events)
            previous = c.execute(_LAST, {"of": campaign, "last": first - 1}).scalar() or ""
            rows = []
            for seq, event in enumerate(events, first):
                row = EventRow(campaign, seq, event.at, event.name, event.task, event.fields)
                previous = chain_hash(previous, row)
                rows.append(values_of(row) | {"hash": previous})
            _INSERT.run(c, rows)

    def add(self, campaigns: Sequence[str], event: str, /, *, task: str | None = None, **fields: Any) -> None:
        """Add an event that changes no other table to each of these campaigns."""
        with self._database.transaction() as c:
            for campaign in campaigns:
                self.append(c, campaign, event, task, **fields)

    def since(self, campaign: str, seq: int = 0, *, limit: int = 1000) -> tuple[EventRow, ...]:
        """The events after `seq`, in order."""
        c = t.events.c
        return self._database.rows(EventRow, c.campaign == campaign, c.seq > seq, order=[c.seq], limit=limit)

    def all(self, campaign: str) -> Iterator[EventRow]:
        """All events, in order, read page by page."""
        seq = 0
        while page := self.since(campaign, seq):
            yield from page
            seq = page[-1].seq

    def of_task(self, campaign: str, task: str, limit: int = 1000) -> tuple[EventRow, ...]:
        """The last `limit` events of a task, in order."""
        c = t.events.c
        where = (c.campaign == campaign, c.task == task)
        return self._database.rows(EventRow, *where, order=[c.seq.desc()], limit=limit)[::-1]

    def named(self, campaign: str, names: Sequence[str]) -> tuple[EventRow, ...]:
        """All events with one of these names that concern no task, in order."""
        c = t.events.c
        where = (c.campaign == campaign, c.task.is_(None), c.name.in_(names))
        return self._database.rows(EventRow, *where, order=[c.seq])

    def count(self, campaign: str) -> tuple[int, int]:
        """The number of events written, and the highest number stored; they differ when events were removed or inserted by hand."""
        highest = sa.select(sa.func.max(t.events.c.seq)).where(t.events.c.campaign == campaign)
        query = sa.select(t.campaigns.c.next_seq, highest.scalar_subquery().label("highest"))
        rows = self._database.all(query.where(t.campaigns.c.id == campaign))
        return (rows[0].next_seq - 1, rows[0].highest or 0) if rows else (0, 0)


def chain_hash(previous: str, event: EventRow) -> str:
    """The hash of an event in hexadecimal. `previous`: the hash of the previous event, empty for the first."""
    body = _CANONICAL.encode([event.campaign, event.seq, event.at, event.name, event.task, event.fields])
    return hashlib.sha256(bytes.fromhex(previous) + body.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class BrokenChain:
    """The first link that does not hold."""

    seq: int
    why: str


def check_chain(events: Iterable[EventRow], count: tuple[int, int], noted: str = "") -> BrokenChain | None:
    """None when all events are present and unchanged. `count`: from `EventRepository.count`; `noted`: a hash that one of them must have."""
    written, highest = count
    noted_reached = not noted
    previous, expected = "", 1
    for event in events:
        if event.seq > highest:
            break  # written after the count
        if event.seq != expected:
            return BrokenChain(expected, f"event {expected} is missing")
        if not event.hash:
            return BrokenChain(expected, f"event {expected} has no hash")
        if event.hash != chain_hash(previous, event):
            return BrokenChain(expected, f"event {expected} was changed")
        previous, expected = event.hash, expected + 1
        noted_reached = noted_reached or event.hash == noted
    if expected <= max(written, highest):
        return BrokenChain(expected, f"event {expected} is missing")
    if highest > written:
        return BrokenChain(written + 1, f"event {written + 1} was inserted")
    if not noted_reached:
        return BrokenChain(highest, "no event has the hash that was noted: the chain was rewritten")
    return None
