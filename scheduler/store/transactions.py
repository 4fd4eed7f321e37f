"""Writing to the store: one transaction at a time, and the event that each change leaves in the campaign's chain."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

import sqlalchemy as sa

from scheduler.store import schema as t
from scheduler.store.event_chain import chained
from scheduler.store.queries import Queries
from scheduler.store.rows import NewCampaign, NewModel


class Transactions(Queries):
    """The part of `scheduler.store.Store` that all its changes share."""

    _wall: Callable[[], float]

    @contextmanager
    def _writing(self) -> Iterator[sa.Connection]:
        """One transaction that nobody else can write beside; undone whole when anything in it raises."""
        with self._backend.told():
            c = self._open()
            try:
                self._backend.begin(c)
                yield c
                self._backend.commit(c)
            except BaseException:
                self._backend.roll_back(c)
                raise

    @staticmethod
    def _put_campaign(c: sa.Connection, new: NewCampaign, models: Sequence[NewModel], **values: Any) -> None:
        """A campaign with its models, and without its tasks. `values`: the columns that `new` does not tell."""
        c.execute(t.campaigns.insert().values(**asdict(new), **values))
        rows = [{"campaign": new.id, **asdict(model)} for model in models]
        if rows:
            c.execute(t.models.insert(), rows)

    def tell(self, campaigns: Sequence[str], name: str, *, task: str | None = None, **fields: Any) -> None:
        """Something that happened outside the tables and is to be read later, as an event of each of these campaigns."""
        with self._writing() as c:
            for campaign in campaigns:
                self._event(c, campaign, name, task, **fields)

    def _event(self, c: sa.Connection, campaign: str, event: str, task: str | None, **fields: Any) -> None:
        seq = c.execute(
            t.campaigns.update()
            .where(t.campaigns.c.id == campaign)
            .values(next_seq=t.campaigns.c.next_seq + 1)
            .returning(t.campaigns.c.next_seq)
        ).scalar_one()
        seq -= 1
        before = c.execute(
            sa.select(t.events.c.hash).where(t.events.c.campaign == campaign, t.events.c.seq == seq - 1)
        ).scalar()
        at, told = self._wall(), json.dumps(fields)
        c.execute(
            t.events.insert().values(
                campaign=campaign,
                seq=seq,
                at=at,
                name=event,
                task=task,
                fields=told,
                hash=chained(before or "", campaign, seq, at, event, task, told),
            )
        )
