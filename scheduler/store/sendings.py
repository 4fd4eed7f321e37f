"""Results that are also written to a URL: which are due, and what became of them."""

from __future__ import annotations

from typing import Final

from scheduler.store import schema as t
from scheduler.store.database import Database
from scheduler.store.events import EventRepository
from scheduler.store.rows import CampaignStatus, SendingRow

MAX_TRIES: Final = 30
"""Tries after which only the campaign's owner can send the results: `sark-node results CAMPAIGN --send URL`."""


class SendingRepository:
    """One entry for each campaign whose file names a URL."""

    def __init__(self, database: Database, events: EventRepository) -> None:
        self._database, self._events = database, events

    def get(self, campaign: str) -> SendingRow | None:
        """Where the results of a campaign are also written; None: nowhere."""
        return self._database.row(SendingRow, t.sendings.c.campaign == campaign)

    def due(self, scheduler: str) -> tuple[SendingRow, ...]:
        """Entries of this scheduler's ended campaigns that are not sent yet, earliest first. Results of other schedulers' campaigns, for
        example from an imported copy, are never sent.
        """
        s, c = t.sendings.c, t.campaigns.c
        own = (c.id == s.campaign, c.scheduler == scheduler)
        ended = (*own, c.ended.is_not(None), c.outcome != CampaignStatus.ADOPTED)
        return self._database.rows(SendingRow, *ended, s.sent.is_(None), s.tries < MAX_TRIES, order=[c.ended])

    def settle(self, campaign: str, url: str, why: str = "") -> None:
        """Record a finished try to write the results below `url`. `why`: why it failed, empty: it succeeded."""
        s = t.sendings.c
        with self._database.transaction() as c:
            values = {"tries": s.tries + 1, "why": why} | ({} if why else {"sent": self._database.wall()})
            update = t.sendings.update().where(s.campaign == campaign, s.url == url).values(**values)
            if c.execute(update).rowcount:
                name = "results.not-sent" if why else "results.sent"
                self._events.append(
                    c, campaign, name, url=f"{url}/{campaign}", **({"why": why} if why else {})
                )
