"""Deletes campaigns, and records what their workers have still to forget."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import sqlalchemy as sa

from protocol.errors import CampaignError
from scheduler.store import schema as t
from scheduler.store.database import Database, read, values_of
from scheduler.store.experiments import CONFIRMING
from scheduler.store.rows import (
    UNKNOWN_WORKER,
    AttemptRow,
    AttemptState,
    CampaignRow,
    CampaignStatus,
    ForgetRow,
    NewModel,
    RunRow,
)
from swarm.base.text import safe_text

KEEP_S: Final = 30 * 86_400.0
"""Seconds after which a worker that was not reached is not asked any more: by then its cache has been used for other models."""


@dataclass(frozen=True, slots=True)
class DeletedRows:
    """What was deleted from the store."""

    campaign: CampaignRow
    tasks: int
    records: int
    models: tuple[NewModel, ...]
    """Models that no stored campaign uses any more."""
    forgets: tuple[ForgetRow, ...]
    """Workers that are to forget the campaign too."""
    run_of: str = ""
    """The version of an experiment whose run the campaign was, such as nightly@3; empty: none."""


class DeletionRepository:
    """Deletions of campaigns, and the forgets that workers owe for them."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def delete(self, campaign: str, scheduler: str) -> DeletedRows:
        """Delete an ended campaign with all rows that belong to it, and note which workers are to forget it. `scheduler`: the key of this
        home, which may ask workers only about campaigns that it signed.

        Raises `CampaignError` when there is no such campaign, or part of it still goes on.
        """
        with self._database.transaction() as c:
            row = next(iter(read(c, CampaignRow, t.campaigns.c.id == campaign)), None)
            if row is None:
                raise CampaignError(
                    f"no campaign {safe_text(campaign, 60)!r} on this home",
                    hint="list them: sark-node campaigns",
                )
            run = next(iter(read(c, RunRow, t.runs.c.campaign == campaign)), None)
            of_campaign = (t.attempts.c.task == t.tasks.c.id, t.tasks.c.campaign == campaign)
            attempts = read(c, AttemptRow, *of_campaign)
            _check(row, run, attempts)
            models = read(c, NewModel, t.models.c.campaign == campaign)
            tasks, records = delete_rows(c, campaign)
            c.execute(t.runs.delete().where(t.runs.c.campaign == campaign))
            others = set(c.execute(sa.select(t.models.c.sha256)).scalars())
            forgets = owe_forgets(c, row, attempts, scheduler, self._database.wall())
        gone = tuple(model for model in models if model.sha256 not in others)
        return DeletedRows(
            row, tasks, records, gone, forgets, "" if run is None else f"{run.experiment}@{run.version}"
        )

    # -- what workers are still to forget -------------------------------------------------------------------------------------------

    def owed(self, campaign: str = "") -> tuple[ForgetRow, ...]:
        """Forgets that workers still owe, oldest first: all, or one campaign's."""
        f = t.forgets.c
        where = [f.campaign == campaign] if campaign else []
        return self._database.rows(ForgetRow, *where, order=[f.since, f.campaign, f.worker])

    def settle(self, campaign: str, worker: str) -> None:
        """A worker has forgotten a campaign, or never will."""
        f = t.forgets.c
        with self._database.transaction() as c:
            c.execute(t.forgets.delete().where(f.campaign == campaign, f.worker == worker))

    def give_up(self) -> None:
        """Drop forgets that have been owed for too long, and those of campaigns that were imported again."""
        f = t.forgets.c
        with self._database.transaction() as c:
            old = f.since < self._database.wall() - KEEP_S
            c.execute(t.forgets.delete().where(old | f.campaign.in_(sa.select(t.campaigns.c.id))))


def owe_forgets(
    c: sa.Connection, row: CampaignRow, attempts: Iterable[AttemptRow], scheduler: str, now: float
) -> tuple[ForgetRow, ...]:
    """Inside the open transaction: note which workers are to forget a deleted campaign; none unless `scheduler` signed and leads it."""
    if row.scheduler != scheduler or row.outcome is CampaignStatus.ADOPTED:
        return ()
    devices = {one.worker: one.device for one in attempts if one.worker != UNKNOWN_WORKER}
    forgets = tuple(ForgetRow(row.id, worker, device, row.epoch, now) for worker, device in devices.items())
    if forgets:
        # Drop what is still owed from an earlier copy, which was deleted and imported again.
        c.execute(t.forgets.delete().where(t.forgets.c.campaign == row.id))
        c.execute(t.forgets.insert(), [values_of(one) for one in forgets])
    return forgets


def delete_rows(c: sa.Connection, campaign: str) -> tuple[int, int]:
    """Inside the open transaction: delete a campaign and everything that belongs to it. Returns the number of tasks and of records."""
    tasks = sa.select(t.tasks.c.id).where(t.tasks.c.campaign == campaign)
    gone = {
        table: c.execute(table.delete().where(table.c.task.in_(tasks))).rowcount
        for table in (t.results, t.records, t.attempts)
    }
    for table in (t.tasks, t.events, t.models, t.sendings):
        gone[table] = c.execute(table.delete().where(table.c.campaign == campaign)).rowcount
    c.execute(t.campaigns.delete().where(t.campaigns.c.id == campaign))
    return gone[t.tasks], gone[t.records]


def not_ended(campaign: str) -> CampaignError:
    return CampaignError(f"{campaign} has not ended", hint=f"cancel it first: sark-node cancel {campaign}")


def _check(row: CampaignRow, run: RunRow | None, attempts: tuple[AttemptRow, ...]) -> None:
    if row.ended is None:
        raise not_ended(row.id)
    stopping = [one for one in attempts if one.state is AttemptState.UNCONFIRMED]
    if stopping:
        device = safe_text(stopping[0].device or stopping[0].worker[-8:], 60)
        raise CampaignError(
            f"{row.id}: {device} has not confirmed yet that its run was stopped",
            hint="delete it again in a minute: the run ends with its lease",
        )
    if run is not None and run.finding == CONFIRMING:
        raise CampaignError(
            f"{row.id} is being measured again before {safe_text(run.experiment, 60)} reports it",
            hint=f"delete it when that has ended: sark-node experiment history {safe_text(run.experiment, 60)}",
        )
