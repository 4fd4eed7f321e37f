"""Campaigns in the store: creating, adopting, ending, deleting and listing them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import sqlalchemy as sa

from protocol.errors import CampaignError, LocalProtocolError
from protocol.values.attempt import TaskState
from protocol.values.lease import MAX_EPOCH
from protocol.values.task import Task, task_body
from protocol.words import SIMULATED_UNIT, Reason
from scheduler.campaign.destination import results_of_spec
from scheduler.store import schema as t
from scheduler.store.database import Database, read, values_of
from scheduler.store.deletion import delete_rows, owe_forgets
from scheduler.store.events import EventRepository
from scheduler.store.experiments import claim_run
from scheduler.store.rows import (
    FINAL_TASK_STATES,
    UNKNOWN_WORKER,
    UNOBSERVED_EPOCH,
    AttemptRow,
    AttemptState,
    CampaignRow,
    CampaignStatus,
    CampaignSummary,
    NewCampaign,
    NewModel,
    RunClaim,
    RunRow,
    TaskRow,
    WorkerTask,
)


class CampaignRepository:
    """Campaigns with their models and tasks."""

    def __init__(self, database: Database, events: EventRepository) -> None:
        self._database, self._events = database, events

    # -- writing --------------------------------------------------------------------------------------------------------------------

    def create(
        self,
        new: NewCampaign,
        models: Sequence[NewModel],
        tasks: Sequence[Task] | None,
        *,
        claim: RunClaim | None = None,
    ) -> bool:
        """Store a whole campaign. `tasks` None: the scheduler plans them (`plan`), once its devices are known or in portions.

        `claim`: the experiment run to which the campaign belongs. False: nothing is stored, since another process has started that run or
        stored this campaign.
        """
        with self._database.transaction() as c:
            if c.execute(sa.select(t.campaigns.c.id).where(t.campaigns.c.id == new.id)).first():
                return False
            if claim is not None and not claim_run(c, new.id, claim, self._database.wall()):
                return False
            created = self._database.wall()
            self._insert(c, new, models, planned=tasks is not None, created=created)
            if (url := results_of_spec(new.spec)) is not None:
                c.execute(t.sendings.insert().values(campaign=new.id, url=url))
            self._events.append(c, new.id, "campaign.created", name=new.name, tasks=len(tasks or ()))
            _insert_tasks(c, new.id, tasks or ())
            return True

    @staticmethod
    def _insert(c: sa.Connection, new: NewCampaign, models: Sequence[NewModel], **values: Any) -> None:
        c.execute(t.campaigns.insert().values(**values_of(new), **values))
        if models:
            c.execute(t.models.insert(), [{"campaign": new.id, **values_of(model)} for model in models])

    def plan(self, campaign: str, tasks: Sequence[Task], *, after: int = 0, last: bool = True) -> bool:
        """Store tasks of a campaign that was created without them, those after the first `after`; with the `last` of them the campaign is
        planned, and can be led. False: nothing is stored, since the campaign is already planned or another process plans it.
        """
        this = t.campaigns.c.id == campaign
        with self._database.transaction() as c:
            planned = c.execute(sa.select(t.campaigns.c.planned).where(this)).scalar()
            stored = sa.select(sa.func.max(t.tasks.c.n)).where(t.tasks.c.campaign == campaign)
            if planned is not False or (c.execute(stored).scalar() or 0) != after:
                return False
            _insert_tasks(c, campaign, tasks, after)
            if last:
                c.execute(t.campaigns.update().where(this).values(planned=True))
                self._events.append(c, campaign, "campaign.planned", tasks=after + len(tasks))
            return True

    def discard_plan(self, campaign: str, most: int) -> bool:
        """Delete up to `most` of the tasks that an unfinished plan left. False: there are no more."""
        c_ = t.tasks.c
        with self._database.transaction() as c:
            planned = c.execute(sa.select(t.campaigns.c.planned).where(t.campaigns.c.id == campaign)).scalar()
            if planned is not False:
                return False
            some = sa.select(c_.id).where(c_.campaign == campaign).order_by(c_.n.desc()).limit(most)
            return bool(c.execute(t.tasks.delete().where(c_.id.in_(some))).rowcount)

    def take_over(
        self,
        new: NewCampaign,
        models: Sequence[NewModel],
        tasks: Sequence[tuple[Task, bytes]],
        reports: Mapping[str, WorkerTask],
        *,
        epoch: int,
        created: float,
    ) -> None:
        """Store a campaign of another scheduler, with its tasks in the states that workers report. Raises `CampaignError` when it is
        already stored.

        `epoch`: the highest that its workers know; `created`: wall seconds. A task that no worker reports is pending. Its attempts are
        numbered from above the highest attempt that any worker reported, so that no new request repeats an old number.
        """
        first = max((max(report.attempt, report.highest) for report in reports.values()), default=1)
        with self._database.transaction() as c:
            if c.execute(sa.select(t.campaigns.c.id).where(t.campaigns.c.id == new.id)).first():
                raise CampaignError(f"{new.id} is on this home already", hint=f"sark-node watch {new.id}")
            self._insert(c, new, models, epoch=epoch, planned=True, created=created)
            self._events.append(
                c, new.id, "campaign.taken-over", tasks=len(tasks), found=len(reports), epoch=epoch
            )
            stored, old, now = [], [], self._database.wall()
            for n, (task, body) in enumerate(tasks, start=1):
                row, attempts = _adopted(_task_row(new.id, n, task), reports.get(task.task), first, now)
                stored.append(values_of(row) | {"body": body})
                old += [values_of(attempt) for attempt in attempts]
            if stored:
                c.execute(t.tasks.insert(), stored)
                c.execute(t.attempts.insert(), old)

    def next_epoch(self, campaign: str, *, above: int = 0, step: int = 1) -> int:
        """Raise the campaign's epoch by `step` above its present value and `above`, up to `MAX_EPOCH`; workers then refuse older epochs."""
        this = t.campaigns.c.id == campaign
        with self._database.transaction() as c:
            known = max(above, int(c.execute(sa.select(t.campaigns.c.epoch).where(this)).scalar_one()))
            epoch = min(known + step, MAX_EPOCH)
            c.execute(t.campaigns.update().where(this).values(epoch=epoch))
            self._events.append(c, campaign, "campaign.adopted", epoch=epoch)
            return epoch

    def end(self, campaign: str, *, detail: str = "") -> CampaignStatus:
        """End a campaign whose tasks have all ended. Raises `LocalProtocolError` while one is open."""
        with self._database.transaction() as c:
            tasks = t.tasks.c
            query = sa.select(tasks.state, sa.func.count()).where(tasks.campaign == campaign)
            counts = {state: count for state, count in c.execute(query.group_by(tasks.state))}  # noqa: C416  (rows are Row objects)
            if set(counts) - set(FINAL_TASK_STATES):
                raise LocalProtocolError(f"campaign {campaign} still has open tasks")
            cancelled = c.execute(
                sa.select(t.campaigns.c.cancel).where(t.campaigns.c.id == campaign)
            ).scalar_one()
            adopted = sa.select(tasks.id).where(tasks.campaign == campaign, tasks.reason == Reason.ADOPTED)
            if c.execute(adopted.limit(1)).first():
                outcome = CampaignStatus.ADOPTED
            elif TaskState.FAILED in counts or (detail and not counts and not cancelled):
                outcome = CampaignStatus.FAILED
            elif TaskState.CANCELLED in counts or cancelled:
                outcome = CampaignStatus.CANCELLED
            else:
                outcome = CampaignStatus.SUCCEEDED
            c.execute(
                t.campaigns.update()
                .where(t.campaigns.c.id == campaign, t.campaigns.c.ended.is_(None))
                .values(ended=self._database.wall(), outcome=outcome, detail=detail)
            )
            self._events.append(c, campaign, "campaign.ended", outcome=outcome, detail=detail, **counts)
            return outcome

    def request_cancel(self, target: str) -> int:
        """Request the cancellation of a campaign or of one task. Returns the number of open tasks, at least 1 for an unfinished campaign;
        0: nothing to do. A campaign's request stays until its last task has ended.
        """
        c_, t_ = t.campaigns.c, t.tasks.c
        with self._database.transaction() as c:
            unended = (c_.id == target, c_.ended.is_(None))
            if c.execute(t.campaigns.update().where(*unended).values(cancel=True)).rowcount:
                open_tasks = (t_.campaign == target, t_.state.not_in(FINAL_TASK_STATES))
                tasks = int(
                    c.execute(sa.select(sa.func.count()).select_from(t.tasks).where(*open_tasks)).scalar_one()
                )
                self._events.append(c, target, "cancel.requested", tasks=tasks)
                return max(tasks, 1)
            one = (
                t.tasks.update()
                .where(t_.id == target, t_.state.not_in(FINAL_TASK_STATES))
                .values(cancel=True)
            )
            campaign = c.execute(one.returning(t_.campaign)).scalar()
            if campaign is not None:
                self._events.append(c, campaign, "cancel.requested", target, tasks=1)
            return int(campaign is not None)

    def cancel_requests(self) -> tuple[str, ...]:
        """Ids of campaigns that have not ended and whose cancellation was requested."""
        query = sa.select(t.campaigns.c.id).where(t.campaigns.c.ended.is_(None), t.campaigns.c.cancel)
        return tuple(row.id for row in self._database.all(query))

    def delete(self, campaign: str, scheduler: str = "") -> bool:
        """Delete an ended campaign with everything that belongs to it here, except its record as a run. Its workers are to forget it if
        `scheduler`, the key of this home, signed it. False: it has not ended, or is not stored.
        """
        with self._database.transaction() as c:
            ended = sa.and_(t.campaigns.c.id == campaign, t.campaigns.c.ended.is_not(None))
            row = next(iter(read(c, CampaignRow, ended)), None)
            if row is None:
                return False
            attempts = read(c, AttemptRow, t.attempts.c.task == t.tasks.c.id, t.tasks.c.campaign == campaign)
            owe_forgets(c, row, attempts, scheduler, self._database.wall())
            delete_rows(c, campaign)
            return True

    # -- reading --------------------------------------------------------------------------------------------------------------------

    def get(self, campaign: str) -> CampaignRow | None:
        """The campaign with this id."""
        return self._database.row(CampaignRow, t.campaigns.c.id == campaign)

    def unfinished(self) -> tuple[CampaignRow, ...]:
        """Campaigns that have not ended, oldest first."""
        c = t.campaigns.c
        return self._database.rows(CampaignRow, c.ended.is_(None), order=[c.created])

    def unfinished_ids(self, *, planned: bool | None = None) -> tuple[str, ...]:
        """Ids of unfinished campaigns, sorted by descending priority; `planned`: only those with tasks, or only those without."""
        c = t.campaigns.c
        where = [
            c.ended.is_(None),
            *([] if planned is None else [c.planned if planned else sa.not_(c.planned)]),
        ]
        return tuple(
            row.id
            for row in self._database.all(
                sa.select(c.id).where(*where).order_by(c.priority.desc(), c.created)
            )
        )

    def old(self, older_s: float, *, keep: int = 0) -> tuple[CampaignRow, ...]:
        """Campaigns that ended more than `older_s` ago, oldest first, without the `keep` that ended last."""
        c = t.campaigns.c
        where = [c.ended.is_not(None), c.ended < self._database.wall() - older_s]
        if keep:
            newest = sa.select(c.id).where(c.ended.is_not(None)).order_by(c.ended.desc(), c.id).limit(keep)
            where.append(c.id.not_in(newest))
        return self._database.rows(CampaignRow, *where, order=[c.ended, c.id])

    def find(self, prefix: str) -> tuple[CampaignRow, ...]:
        """Campaigns whose id begins with `prefix` or whose name is `prefix`, newest first. An exact id matches alone."""
        exact = self.get(prefix)
        if exact is not None:
            return (exact,)
        c = t.campaigns.c
        matches = c.id.startswith(prefix, autoescape=True) | (c.name == prefix)
        return self._database.rows(CampaignRow, matches, order=[c.created.desc()])

    def resolve(self, prefix: str) -> str:
        """The id of the one campaign that `prefix` names; for '', of the newest. Raises `CampaignError`."""
        matches = list(self.find(prefix))
        if not matches and not prefix:
            raise CampaignError(
                "no campaign on this home yet", hint="begin with: sark-node init, then: sark-node submit FILE"
            )
        campaign, slash, _ = prefix.partition("/")
        if not matches and slash and (whole := self.find(campaign)):
            raise CampaignError(
                f"{prefix!r} is a task, but a whole campaign is needed here",
                hint=f"write its id: {next(iter(whole)).id}",
            )
        if not matches:
            raise CampaignError(f"no campaign {prefix!r} on this home", hint="list them: sark-node campaigns")
        if len(matches) > 1 and prefix:
            raise CampaignError(
                f"{prefix!r} matches several campaigns: {', '.join(row.id for row in matches[:5])}",
                hint="write more characters of the id",
            )
        return matches[0].id

    def summary(self, campaign: str) -> CampaignSummary | None:
        """One campaign with its task counts."""
        return next(iter(self._summaries(t.campaigns.c.id == campaign)), None)

    def summaries(self) -> tuple[CampaignSummary, ...]:
        """All campaigns with their task counts, newest first."""
        return self._summaries()

    def page(
        self,
        *,
        limit: int,
        after: str | None = None,
        status: CampaignStatus | None = None,
        name: str = "",
    ) -> tuple[CampaignSummary, ...] | None:
        """Campaigns with their task counts, newest first: `limit` of those after the campaign `after`. None when `after` is not stored.

        `name`: only campaigns whose name contains it, ignoring case.
        """
        c = t.campaigns.c
        where: list[sa.ColumnElement[bool]] = []
        if after is not None:
            last = self.get(after)
            if last is None:
                return None
            where.append((c.created < last.created) | ((c.created == last.created) & (c.id < last.id)))
        if status in (CampaignStatus.RUNNING, CampaignStatus.CANCELLING):
            where += [c.ended.is_(None), c.cancel == (status is CampaignStatus.CANCELLING)]
        elif status is not None:
            where += [c.ended.is_not(None), c.outcome == status]
        if name:
            where.append(sa.func.lower(c.name).contains(name.lower(), autoescape=True))
        return self._summaries(*where, limit=limit)

    def _summaries(
        self, *where: sa.ColumnElement[bool], limit: int | None = None
    ) -> tuple[CampaignSummary, ...]:
        order = [t.campaigns.c.created.desc(), t.campaigns.c.id.desc()]
        rows = self._database.rows(CampaignRow, *where, order=order, limit=limit)
        ids = sa.select(t.campaigns.c.id).where(*where).order_by(*order).limit(limit)
        c = t.tasks.c
        counts: dict[str, dict[TaskState, int]] = {}
        counted = sa.select(c.campaign, c.state, sa.func.count().label("tasks")).where(c.campaign.in_(ids))
        for row in self._database.all(counted.group_by(c.campaign, c.state)):
            counts.setdefault(row.campaign, {})[row.state] = row.tasks
        runs = {
            run.campaign: (f"{run.experiment}@{run.version}", run.finding)
            for run in self._database.rows(RunRow, t.runs.c.campaign.in_(ids))
        }
        return tuple(CampaignSummary(row, counts.get(row.id, {}), *runs.get(row.id, ())) for row in rows)

    def models(self, campaign: str) -> tuple[NewModel, ...]:
        """The campaign's models by name."""
        return self._database.rows(NewModel, t.models.c.campaign == campaign, order=[t.models.c.name])

    def evaluations(self, campaign: str) -> dict[str, str]:
        """How the answers to examples are scored (`EvaluationAccount`), as JSON, by the names that tasks give the examples."""
        m = t.models.c
        query = sa.select(m.facts, m.evaluation).where(m.campaign == campaign, m.evaluation != "")
        return {row.facts: row.evaluation for row in self._database.all(query)}

    def needed_models(self) -> frozenset[str]:
        """Hashes of the models of unfinished campaigns: the spool must keep these."""
        query = sa.select(t.models.c.sha256).join(t.campaigns).where(t.campaigns.c.ended.is_(None))
        return frozenset(row.sha256 for row in self._database.all(query))

    def model_names(self, hashes: Collection[str]) -> dict[str, str]:
        """A name for each of these models, by hash."""
        if not hashes:
            return {}
        query = sa.select(t.models.c.sha256, sa.func.min(t.models.c.name).label("name"))
        query = query.where(t.models.c.sha256.in_(hashes)).group_by(t.models.c.sha256)
        return {row.sha256: row.name for row in self._database.all(query)}

    def state_counts(self) -> dict[str, dict[str, int]]:
        """Campaigns, tasks, simulated tasks and attempts by state, for gauges: `{"campaigns": {"running": 1}, …}`."""
        c = t.campaigns.c
        status = sa.case(
            (c.ended.is_not(None), c.outcome),
            (c.cancel, CampaignStatus.CANCELLING),
            else_=CampaignStatus.RUNNING,
        )
        simulated = t.tasks.c.unit == SIMULATED_UNIT
        states: dict[str, tuple[sa.ColumnElement[str], sa.ColumnElement[bool]]] = {
            "campaigns": (status, sa.true()),
            "tasks": (t.tasks.c.state, sa.not_(simulated)),
            "simulated_tasks": (t.tasks.c.state, simulated),
            "attempts": (t.attempts.c.state, sa.true()),
        }
        return {
            name: {
                str(row.state): int(row.number)
                for row in self._database.all(
                    sa.select(state.label("state"), sa.func.count().label("number"))
                    .where(where)
                    .group_by("state")
                )
            }
            for name, (state, where) in states.items()
        }


def _insert_tasks(c: sa.Connection, campaign: str, tasks: Sequence[Task], after: int = 0) -> None:
    if tasks:
        rows = [
            values_of(_task_row(campaign, n, task)) | {"body": task_body(task)}
            for n, task in enumerate(tasks, after + 1)
        ]
        c.execute(t.tasks.insert(), rows)


def _task_row(campaign: str, n: int, task: Task) -> TaskRow:
    model = task.model
    return TaskRow(task.task, campaign, n, model.name, model.sha256, task.unit, replica=task.replica)


def _adopted(
    row: TaskRow, report: WorkerTask | None, first: int, now: float
) -> tuple[TaskRow, list[AttemptRow]]:
    """A task of another scheduler and its attempts, as a worker reports them. `first`: the attempt to continue from without a report."""

    def unobserved(attempt: int) -> AttemptRow:
        return AttemptRow(
            task=row.id,
            attempt=attempt,
            key=f"{row.id}/{attempt}",
            worker=UNKNOWN_WORKER,
            device="",
            epoch=UNOBSERVED_EPOCH,
            state=AttemptState.REFUSED,
            begun=now,
            ended=now,
            detail="before the campaign was adopted",
        )

    if report is None:
        return replace(row, attempt=first), [unobserved(first)]
    lease: dict[str, Any] = {
        "attempt": report.attempt,
        "worker": report.worker,
        "device": report.device,
        "lease": report.lease,
        "incarnation": report.fence.incarnation,
        "number": report.fence.number,
        "trust": report.trust,
    }
    state = AttemptState.QUEUED if report.queued else AttemptState.GRANTED
    current = replace(unobserved(report.attempt), state=state, ended=None, detail="", **lease)
    later = [unobserved(report.highest)] if report.highest > report.attempt else []
    state_now = TaskState.QUEUED if report.queued else TaskState.LEASED
    return replace(row, state=state_now, **lease), [current, *later]
