"""Which scheduler processes share this store, and which of them leads which campaign. Two tables that exist on PostgreSQL only.

    take      a process takes a seat: a session lock shows that no other process has it, a term numbers its writes
    renew     every 2 s: keeps the seat for another 10 s, by the server's clock
    lead      takes a campaign that nobody leads, or whose leader's time has run out; this ends the leader's term

Every write of a seated process is refused once its term has ended, so a process that was slow, frozen or cut off records nothing of a
campaign that another process leads. A store in a file has one process, in seat 0, which leads everything.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

import sqlalchemy as sa

from protocol.errors import ResourceError
from scheduler.store import schema as t
from scheduler.store.database import Database

MAX_SEATS: Final = 16
TERM_S: Final = 10.0
"""Seconds for which a seat is kept for a process that has not renewed it. Shorter than a worker keeps a lease, so runs are carried on."""
RENEW_EVERY_S: Final = 2.0
MAX_PLACE: Final = 200


@dataclass(frozen=True, slots=True)
class SeatRow:
    """A seat that a process has taken."""

    seat: int
    term: int
    place: str
    """The machine and home of its process, for people, and so that the process finds its seat again."""
    peer: str
    left_s: float
    """Seconds until the process's time has run out; negative: seconds since then."""
    campaigns: int
    """Number of unfinished campaigns that the process leads."""


class SeatRepository:
    """The seats, for the process that opened this store."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.seat = 0
        self.shared = database.backend.shared
        """Whether several processes can run this store's campaigns."""

    def take(self, place: str, peers: Sequence[str]) -> int:
        """Take a seat until the store is closed: this place's own, otherwise a free one. `peers`: the peer id of each seat.

        Raises `ResourceError` when no seat is free, or the store is being restored.
        """
        if not self.shared:
            return 0
        database, backend, place = self._database, self._database.backend, place[:MAX_PLACE]
        database.call(backend.join)
        known = {row.seat: row for row in self.all()}
        self.seat = next(
            (
                seat
                for seat in _in_order(known, place)
                if database.call(lambda c, s=seat: backend.take_seat(c, s))  # type: ignore[misc]
            ),
            -1,
        )
        if self.seat < 0:
            raise ResourceError(
                f"{database.location}: {MAX_SEATS} schedulers share this store already",
                hint="stop the scheduler on another machine first",
            )
        before = known.get(self.seat)
        with database.transaction() as c:
            values = {"place": place, "peer": peers[self.seat], "until": _NOW + TERM_S}
            raised = t.seats.update().where(t.seats.c.seat == self.seat)
            taken = c.execute(raised.values(term=t.seats.c.term + 1, **values).returning(t.seats.c.term))
            term = taken.scalar()
            if term is None:
                term = 1
                c.execute(t.seats.insert().values(seat=self.seat, term=term, **values))
            if before is not None and before.place != place:  # its models are on another machine
                c.execute(t.led.delete().where(t.led.c.seat == self.seat))
        backend.fence(self.seat, term)
        return self.seat

    def renew(self) -> None:
        """Keep the seat. Raises `LeadershipLost`."""
        self._set_until(_NOW + TERM_S)

    def leave(self) -> None:
        """Let other processes have this one's campaigns at once. Raises `LeadershipLost`."""
        self._set_until(sa.literal(0.0))

    def _set_until(self, until: sa.ColumnElement[float]) -> None:
        if self.shared:
            with self._database.transaction() as c:
                c.execute(t.seats.update().where(t.seats.c.seat == self.seat).values(until=until))

    def lead(self, campaign: str) -> bool:
        """Lead a campaign that is free. False: another process was first. Raises `LeadershipLost`."""
        with self._database.transaction() as c:
            leader = c.execute(sa.select(t.led.c.seat).where(t.led.c.campaign == campaign)).scalar()
            if leader is None:
                c.execute(t.led.insert().values(campaign=campaign, seat=self.seat))
                return True
            if leader != self.seat:
                of_leader = t.seats.c.seat == leader
                if c.execute(sa.select(t.seats.c.seat).where(of_leader, t.seats.c.until > _NOW)).first():
                    return False
                c.execute(t.seats.update().where(of_leader).values(term=t.seats.c.term + 1))
                c.execute(t.led.update().where(t.led.c.campaign == campaign).values(seat=self.seat))
            return True

    # -- reading --------------------------------------------------------------------------------------------------------------------

    def all(self) -> tuple[SeatRow, ...]:
        """All seats that were ever taken."""
        if not self.shared:
            return ()
        open_ones = sa.select(sa.func.count()).select_from(t.led.join(t.campaigns, _OF_CAMPAIGN))
        led = open_ones.where(t.led.c.seat == t.seats.c.seat, t.campaigns.c.ended.is_(None))
        s = t.seats.c
        columns = (s.seat, s.term, s.place, s.peer, s.until - _NOW, led.scalar_subquery())
        rows = self._database.all(sa.select(*columns).order_by(s.seat))
        return tuple(SeatRow(*tuple(row)) for row in rows)

    def own(self) -> Collection[str]:
        """Unfinished campaigns that this process leads."""
        return self._unfinished(t.led.c.seat == self.seat if self.shared else sa.true())

    def free(self) -> Sequence[str]:
        """Unfinished campaigns that nobody leads, sorted by descending priority."""
        return self._unfinished(t.seats.c.seat.is_(None)) if self.shared else ()

    def _unfinished(self, which: sa.ColumnElement[bool]) -> tuple[str, ...]:
        c = t.campaigns.c
        source: sa.FromClause = t.campaigns
        if self.shared:
            live = (t.led.c.seat == t.seats.c.seat) & (
                (t.seats.c.until > _NOW) | (t.seats.c.seat == self.seat)
            )
            source = t.campaigns.outerjoin(t.led, _OF_CAMPAIGN).outerjoin(t.seats, live)
        query = sa.select(c.id).select_from(source).where(c.ended.is_(None), which)
        return tuple(row.id for row in self._database.all(query.order_by(c.priority.desc(), c.created)))

    def leads(self, campaign: str) -> bool:
        """Whether this process was the last to lead a campaign, ended or not, or no live process leads it."""
        if not self.shared:
            return True
        of_others = t.led.join(t.seats, t.led.c.seat == t.seats.c.seat)
        living = (t.led.c.campaign == campaign, t.seats.c.seat != self.seat, t.seats.c.until > _NOW)
        return not self._database.all(sa.select(t.led.c.seat).select_from(of_others).where(*living))

    def leader_place(self, campaign: str) -> str:
        """The machine and home of the live process that leads a campaign; empty if none does, and for a store in a file."""
        if not self.shared:
            return ""
        of_led = t.led.join(t.seats, t.led.c.seat == t.seats.c.seat)
        living = (t.led.c.campaign == campaign, t.seats.c.until > _NOW)
        rows = self._database.all(sa.select(t.seats.c.place).select_from(of_led).where(*living))
        return str(rows[0].place) if rows else ""


_NOW: Final[sa.ColumnElement[float]] = sa.cast(sa.extract("epoch", sa.func.clock_timestamp()), t.Real)
"""The server's clock, in seconds since 1970."""
_OF_CAMPAIGN: Final = t.led.c.campaign == t.campaigns.c.id


def _in_order(known: dict[int, SeatRow], place: str) -> list[int]:
    """The seats in the order in which a process tries them: its own, then untaken or expired ones, then those with time left."""

    def rank(seat: int) -> int:
        row = known.get(seat)
        if row is not None and row.place == place:
            return 0
        return 1 if row is None or row.left_s <= 0 else 2

    return sorted(range(MAX_SEATS), key=rank)
