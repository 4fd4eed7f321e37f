"""The events of each campaign as a hash chain: each event carries a hash of itself and of the one before.

    hash 0 = ""        hash n = sha256(hash n-1 as bytes, then event n as JSON)

The chain has no key: whoever can write to the store can write a new chain. An intact chain shows that no event was damaged or changed
alone; someone who noted the last hash elsewhere can tell later that nothing up to it was changed, removed or inserted.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from scheduler.store import schema as t
from scheduler.store.database import Database
from scheduler.store.rows import EventRow


class EventRepository:
    """Events, appended in the transaction of the change they describe."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def append(
        self, c: sa.Connection, campaign: str, event: str, task: str | None = None, /, **fields: Any
    ) -> None:
        """Append an event inside the open transaction `c`."""
        next_seq = c.execute(
            t.campaigns.update()
            .where(t.campaigns.c.id == campaign)
            .values(next_seq=t.campaigns.c.next_seq + 1)
            .returning(t.campaigns.c.next_seq)
        ).scalar_one()
        seq = next_seq - 1
        previous = c.execute(
            sa.select(t.events.c.hash).where(t.events.c.campaign == campaign, t.events.c.seq == seq - 1)
        ).scalar()
        at, text = self._database.wall(), json.dumps(fields)
        c.execute(
            t.events.insert().values(
                campaign=campaign,
                seq=seq,
                at=at,
                name=event,
                task=task,
                fields=text,
                hash=chain_hash(previous or "", campaign, seq, at, event, task, text),
            )
        )

    def add(self, campaigns: Sequence[str], event: str, /, *, task: str | None = None, **fields: Any) -> None:
        """Add an event that changes no other table to each of these campaigns."""
        with self._database.transaction() as c:
            for campaign in campaigns:
                self.append(c, campaign, event, task, **fields)

    def since(self, campaign: str, seq: int = 0, *, limit: int = 1000) -> tuple[EventRow, ...]:
        """The events after `seq`, in order."""
        query = sa.select(t.events).where(t.events.c.campaign == campaign, t.events.c.seq > seq)
        return tuple(_event(row) for row in self._database.all(query.order_by(t.events.c.seq).limit(limit)))

    def all(self, campaign: str) -> Iterator[EventRow]:
        """Every event, in order, read page by page."""
        seq = 0
        while page := self.since(campaign, seq):
            yield from page
            seq = page[-1].seq

    def of_task(self, campaign: str, task: str, limit: int = 1000) -> tuple[EventRow, ...]:
        """The last `limit` events of a task, in order."""
        query = sa.select(t.events).where(t.events.c.campaign == campaign, t.events.c.task == task)
        rows = self._database.all(query.order_by(t.events.c.seq.desc()).limit(limit))
        return tuple(_event(row) for row in reversed(rows))

    def count(self, campaign: str) -> tuple[int, int]:
        """How many events were written, and the highest number stored; they differ when events were removed or inserted by hand."""
        highest = sa.select(sa.func.max(t.events.c.seq)).where(t.events.c.campaign == campaign)
        row = self._database.first(
            sa.select(t.campaigns.c.next_seq, highest.scalar_subquery().label("highest")).where(
                t.campaigns.c.id == campaign
            )
        )
        return (0, 0) if row is None else (int(row.next_seq) - 1, int(row.highest or 0))


def _event(row: sa.Row[Any]) -> EventRow:
    try:
        fields = json.loads(row.fields)
    except ValueError:
        fields = None
    if not isinstance(fields, dict):
        fields = {"unreadable": row.fields}  # a store that was edited by hand can still be read
    return EventRow(row.campaign, row.seq, row.at, row.name, row.task, fields, row.hash)


def chain_hash(
    previous: str, campaign: str, seq: int, at: float, name: str, task: str | None, fields: str
) -> str:
    """The hash of an event in hexadecimal. `previous`: that of the event before, empty for the first; `fields`: a JSON object."""
    body = json.dumps(
        [campaign, seq, at, name, task, json.loads(fields)],
        sort_keys=True,
        separators=(",", ":"),
        ensure_ascii=True,
    )
    return hashlib.sha256(bytes.fromhex(previous) + body.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class BrokenChain:
    """The first link that does not hold."""

    seq: int
    why: str


def check_chain(events: Iterable[EventRow], count: tuple[int, int], noted: str = "") -> BrokenChain | None:
    """None when all events are present and unchanged. `count`: of `EventRepository.count`; `noted`: a hash that one of them must have."""
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
        text = json.dumps(event.fields)
        if event.hash != chain_hash(
            previous, event.campaign, event.seq, event.at, event.name, event.task, text
        ):
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
