"""The scheduler's store on SQLite or PostgreSQL: campaigns, tasks, attempts, signed records, events; safe against kill -9 at every point.

    submit ── create_campaign ──▶ ┌───────┐ ──▶ unfinished_campaigns ── the service
    cancel ── request_cancel ───▶ │ store │ ◀── begin_attempts, record_grant, record_result, end_attempt
    watch  ◀── tasks, events_since└───────┘

Every function is one transaction, and returns after it is on the disk. Each can raise `ResourceError` (disk full, locked, damaged), and
then nothing has changed. One process schedules; others read, submit and cancel beside it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import sqlalchemy as sa

from protocol.errors import LocalProtocolError
from protocol.values.attempt import TaskState
from protocol.values.lease import MAX_EPOCH
from protocol.values.task import Task, task_body
from protocol.words import Reason
from scheduler.store import schema as t
from scheduler.store.attempts import AttemptRepository
from scheduler.store.backend import Backend, Place, migrate, refuse_newer
from scheduler.store.experiments import ExperimentRepository, RunClaim
from scheduler.store.listing import CampaignListing
from scheduler.store.migrations import MIGRATIONS
from scheduler.store.queries import ENDED
from scheduler.store.rows import CampaignOutcome, NewCampaign, NewModel
from scheduler.store.search import ResultSearch
from scheduler.store.takeover import TakeoverRepository
from scheduler.store.transfer import Transfer


class Store(
    AttemptRepository, TakeoverRepository, ExperimentRepository, CampaignListing, ResultSearch, Transfer
):
    """An open store. Not for two threads at once."""

    def __init__(self, place: Place, *, wall: Callable[[], float] = time.time) -> None:
        """Open or make it, and bring it to the newest form. ResourceError when that cannot be."""
        self.place = place
        self._wall = wall
        self._backend = backend_of(place)
        self._connection = self._backend.connect()
        try:
            with self._backend.told():
                version = self._backend.version(self._connection)
            refuse_newer(self._backend, version)
            if version < len(MIGRATIONS):
                with self._writing() as c:
                    migrate(self._backend, c)
        except BaseException:
            self._connection.close()
            raise

    def claim(self) -> None:
        """Be the one that runs this store's campaigns, until it is closed. `ResourceError` when another machine does."""
        with self._backend.told():
            self._backend.claim(self._open())

    def close(self) -> None:
        """Close it. What was stored is on the disk already."""
        self._connection.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # -- campaigns ------------------------------------------------------------------------------------------------------------------

    def create_campaign(
        self,
        new: NewCampaign,
        models: Sequence[NewModel],
        tasks: Sequence[Task] | None,
        *,
        folder: str = "",
        claim: RunClaim | None = None,
    ) -> bool:
        """Put a whole campaign on disk, or nothing of it. `tasks` None: they are planned once the devices are seen. `folder`: where its
        file lies. `claim`: of which experiment it is a run; False: another process has started that one, and nothing is stored.
        """
        with self._writing() as c:
            if claim is not None and not self.claim_run(c, new.id, claim):
                return False
            self._put_campaign(c, new, models, planned=tasks is not None, created=self._wall())
            self._event(c, new.id, "campaign.created", None, name=new.name, tasks=len(tasks or ()))
            self._add_tasks(c, new.id, tasks or ())
            if folder:
                self.keep_folder(c, new.id, folder)
            return True

    def plan_campaign(self, campaign: str, tasks: Sequence[Task]) -> None:
        """The tasks of a campaign that waited for its devices to be seen. Nothing happens when it has been planned."""
        with self._writing() as c:
            done = c.execute(
                t.campaigns.update()
                .where(t.campaigns.c.id == campaign, sa.not_(t.campaigns.c.planned))
                .values(planned=True)
            )
            if done.rowcount:
                self._event(c, campaign, "campaign.planned", None, tasks=len(tasks))
                self._add_tasks(c, campaign, tasks)

    @staticmethod
    def _add_tasks(c: sa.Connection, campaign: str, tasks: Sequence[Task]) -> None:
        rows = [
            {
                "id": task.task,
                "campaign": campaign,
                "n": n,
                "body": task_body(task),
                "model": task.model.name,
                "sha256": task.model.sha256,
                "unit": task.unit,
                "state": str(TaskState.PENDING),
                "replica": task.replica,
            }
            for n, task in enumerate(tasks, start=1)
        ]
        if rows:
            c.execute(t.tasks.insert(), rows)

    def next_epoch(self, campaign: str) -> int:
        """A higher epoch than any before, as far as there is one: workers refuse older ones from now on."""
        before = t.campaigns.c.epoch
        with self._writing() as c:
            epoch = c.execute(
                t.campaigns.update()
                .where(t.campaigns.c.id == campaign)
                .values(epoch=sa.case((before < MAX_EPOCH, before + 1), else_=MAX_EPOCH))
                .returning(t.campaigns.c.epoch)
            ).scalar_one()
            self._event(c, campaign, "campaign.adopted", None, epoch=epoch)
            return int(epoch)

    def end_campaign(self, campaign: str, *, detail: str = "") -> CampaignOutcome:
        """All of its tasks have ended: so has it. Says how. LocalProtocolError while one is open."""
        with self._writing() as c:
            rows = c.execute(
                sa.select(t.tasks.c.state, sa.func.count())
                .where(t.tasks.c.campaign == campaign)
                .group_by(t.tasks.c.state)
            ).all()
            states = {str(state) for state, _ in rows}
            if states - set(ENDED):
                raise LocalProtocolError(f"campaign {campaign} still has open tasks")
            cancelled = c.execute(
                sa.select(t.campaigns.c.cancel).where(t.campaigns.c.id == campaign)
            ).scalar_one()
            adopted = c.execute(
                sa.select(sa.func.count()).where(
                    t.tasks.c.campaign == campaign, t.tasks.c.reason == str(Reason.ADOPTED)
                )
            ).scalar_one()
            if adopted:
                outcome = CampaignOutcome.ADOPTED
            elif TaskState.FAILED in states or (detail and not states and not cancelled):
                outcome = CampaignOutcome.FAILED
            elif TaskState.CANCELLED in states or cancelled:
                outcome = CampaignOutcome.CANCELLED
            else:
                outcome = CampaignOutcome.SUCCEEDED
            c.execute(
                t.campaigns.update()
                .where(t.campaigns.c.id == campaign, t.campaigns.c.ended.is_(None))
                .values(ended=self._wall(), outcome=str(outcome), detail=detail)
            )
            counts = {state: count for state, count in rows}  # noqa: C416  (rows are Row objects, not pairs)
            self._event(c, campaign, "campaign.ended", None, outcome=str(outcome), detail=detail, **counts)
            return outcome

    # -- wishes of the command line --------------------------------------------------------------------------------------------------

    def request_cancel(self, target: str) -> int:
        """Ask that a campaign, or one task of it, be cancelled. How many open tasks that concerns; 0: nothing to do."""
        with self._writing() as c:
            open_ = t.tasks.c.state.not_in(ENDED)
            whole = c.execute(
                t.campaigns.update()
                .where(t.campaigns.c.id == target, t.campaigns.c.ended.is_(None))
                .values(cancel=True)
            ).rowcount
            where = t.tasks.c.campaign == target if whole else t.tasks.c.id == target
            touched = c.execute(
                t.tasks.update().where(where, open_).values(cancel=True).returning(t.tasks.c.campaign)
            ).all()
            campaign = target if whole else touched[0].campaign if touched else None
            if campaign is not None:
                self._event(c, campaign, "cancel.requested", None if whole else target, tasks=len(touched))
            return max(len(touched), whole)

    # -- workers ----------------------------------------------------------------------------------------------------------------------

    def remember_worker(self, peer: str, device: str, addresses: Sequence[str]) -> None:
        """Where a worker can be reached: needed to find it again after a restart."""
        values = {"device": device, "addresses": json.dumps(list(addresses)), "seen": self._wall()}
        with self._writing() as c:
            changed = c.execute(t.workers.update().where(t.workers.c.peer == peer).values(**values))
            if not changed.rowcount:
                c.execute(t.workers.insert().values(peer=peer, **values))


def backend_of(place: Place) -> Backend:
    """What knows how to open it."""
    if isinstance(place, Path):
        from scheduler.store.sqlite import SQLite

        return SQLite(place)
    from scheduler.store.postgres import PostgreSQL

    return PostgreSQL(place)
