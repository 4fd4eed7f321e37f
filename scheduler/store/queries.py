"""What can be asked of the store: each question is one function, the answers are plain values. Looking only; nothing here writes."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from typing import Any, Final

import sqlalchemy as sa

from protocol.errors import CampaignError
from protocol.formats.phase import Phase
from protocol.values.attempt import TASK, TaskState
from protocol.values.lease import Fence
from protocol.wire.table import final
from protocol.words import Reason
from scheduler.store import experiment_schema as x
from scheduler.store import schema as t
from scheduler.store.backend import Backend
from scheduler.store.rows import (
    AttemptRow,
    AttemptState,
    CampaignOutcome,
    CampaignRow,
    CampaignSummary,
    EventRow,
    NewModel,
    ResultRow,
    StoredAttempts,
    TaskRow,
    WorkerRow,
    why_not,
)

ENDED: Final = tuple(str(state) for state in TaskState if final(TASK, state))
"""The words of the final states."""
TASK_COLUMNS: Final = tuple(column for column in t.tasks.c if column.name != "body")


class Queries:
    """The reading half of `scheduler.store.Store`."""

    _backend: Backend
    _connection: sa.Connection

    def _open(self) -> sa.Connection:
        """The connection; a new one in place of one that broke: what it was used for has been told as an error. Where there is none to be
        had now, the broken one stays, and the next question tries again."""
        if self._connection.invalidated:
            fresh = self._backend.connect()
            self._connection.close()
            self._connection = fresh
        return self._connection

    def _all(self, query: sa.Executable) -> Sequence[sa.Row[Any]]:
        with self._backend.told():
            return self._open().execute(query).all()

    def unfinished_campaigns(self) -> tuple[CampaignRow, ...]:
        """Those that have not ended, oldest first."""
        query = sa.select(t.campaigns).where(t.campaigns.c.ended.is_(None))
        return tuple(campaign_row(row) for row in self._all(query.order_by(t.campaigns.c.created)))

    def campaign(self, campaign: str) -> CampaignRow | None:
        """One campaign by its id."""
        rows = self._all(sa.select(t.campaigns).where(t.campaigns.c.id == campaign))
        return campaign_row(rows[0]) if rows else None

    def find_campaign(self, prefix: str) -> tuple[CampaignRow, ...]:
        """Those whose id begins with `prefix`, or whose name is it; an exact id stands alone. Newest first."""
        exact = self.campaign(prefix)
        if exact is not None:
            return (exact,)
        c = t.campaigns.c
        query = sa.select(t.campaigns).where(
            sa.or_(c.id.startswith(prefix, autoescape=True), c.name == prefix)
        )
        return tuple(campaign_row(row) for row in self._all(query.order_by(c.created.desc())))

    def summaries(self) -> tuple[CampaignSummary, ...]:
        """All campaigns with their counts, newest first."""
        counted = sa.select(t.tasks.c.campaign, t.tasks.c.state, sa.func.count().label("tasks")).group_by(
            t.tasks.c.campaign, t.tasks.c.state
        )
        counts: dict[str, dict[TaskState, int]] = {}
        for row in self._all(counted):
            counts.setdefault(row.campaign, {})[TaskState(row.state)] = row.tasks
        rows = self._all(sa.select(t.campaigns).order_by(t.campaigns.c.created.desc()))
        titles = self._run_titles()
        return tuple(
            CampaignSummary(campaign_row(row), counts.get(row.id, {}), *titles.get(row.id, ()))
            for row in rows
        )

    def _run_titles(self, campaigns: Sequence[str] | None = None) -> dict[str, tuple[str, str]]:
        """Those of these campaigns (None: of all) that are runs of an experiment: `nightly@3`, and what was found."""
        c = x.runs.c
        query = sa.select(c.campaign, c.experiment, c.version, c.finding)
        if campaigns is not None:
            query = query.where(c.campaign.in_(campaigns))
        return {row.campaign: (f"{row.experiment}@{row.version}", row.finding) for row in self._all(query)}

    def models(self, campaign: str) -> tuple[NewModel, ...]:
        """The campaign's models by name."""
        query = sa.select(t.models).where(t.models.c.campaign == campaign).order_by(t.models.c.name)
        return tuple(NewModel(r.name, r.sha256, r.size, r.facts) for r in self._all(query))

    def needed_models(self) -> frozenset[str]:
        """Hashes of the models of unfinished campaigns: what the spool must keep."""
        query = (
            sa.select(t.models.c.sha256)
            .join(t.campaigns, t.campaigns.c.id == t.models.c.campaign)
            .where(t.campaigns.c.ended.is_(None))
        )
        return frozenset(row.sha256 for row in self._all(query))

    def cancel_requests(self) -> tuple[str, ...]:
        """Ids of open tasks that somebody wants cancelled."""
        query = (
            sa.select(t.tasks.c.id)
            .join(t.campaigns, t.campaigns.c.id == t.tasks.c.campaign)
            .where(
                sa.or_(
                    t.tasks.c.cancel, t.campaigns.c.cancel
                ),  # the campaign's wish may be older than its tasks
                t.tasks.c.state.not_in(ENDED),
                t.campaigns.c.ended.is_(None),
            )
        )
        return tuple(row.id for row in self._all(query))

    def changed_by_others(self) -> int:
        """A number that differs from the last one when another process has written: quick, to be asked often."""
        with self._backend.told():
            return self._backend.changes(self._open())

    def tasks(self, campaign: str) -> tuple[TaskRow, ...]:
        """All of a campaign, in its order."""
        query = sa.select(*TASK_COLUMNS).where(t.tasks.c.campaign == campaign).order_by(t.tasks.c.n)
        return tuple(task_row(row) for row in self._all(query))

    def task(self, task: str) -> TaskRow | None:
        """One task by its id."""
        rows = self._all(sa.select(*TASK_COLUMNS).where(t.tasks.c.id == task))
        return task_row(rows[0]) if rows else None

    def tasks_at_work(self) -> tuple[TaskRow, ...]:
        """Tasks of campaigns that have not ended which a worker has a place for, or runs."""
        query = (
            sa.select(*TASK_COLUMNS)
            .join(t.campaigns, t.campaigns.c.id == t.tasks.c.campaign)
            .where(
                t.campaigns.c.ended.is_(None),
                t.tasks.c.state.in_([str(TaskState.LEASED), str(TaskState.RUNNING)]),
            )
            .order_by(t.tasks.c.campaign, t.tasks.c.n)
        )
        return tuple(task_row(row) for row in self._all(query))

    def model_names(self, hashes: Collection[str]) -> dict[str, str]:
        """What the campaigns here call these models; of several names one."""
        if not hashes:
            return {}
        query = sa.select(t.models.c.sha256, sa.func.min(t.models.c.name).label("name"))
        rows = self._all(query.where(t.models.c.sha256.in_(hashes)).group_by(t.models.c.sha256))
        return {row.sha256: row.name for row in rows}

    def bodies(self, campaign: str, first: int = 1, last: int | None = None) -> dict[str, bytes]:
        """The canonical bytes of each task, by id; only those with a number from `first` to `last`."""
        query = sa.select(t.tasks.c.id, t.tasks.c.body).where(
            t.tasks.c.campaign == campaign, t.tasks.c.n >= first
        )
        if last is not None:
            query = query.where(t.tasks.c.n <= last)
        return {row.id: row.body for row in self._all(query)}

    def attempts(self, campaign: str) -> tuple[AttemptRow, ...]:
        """All attempts of a campaign's tasks, in the order of tasks and attempts."""
        query = (
            sa.select(t.attempts)
            .join(t.tasks, t.tasks.c.id == t.attempts.c.task)
            .where(t.tasks.c.campaign == campaign)
            .order_by(t.tasks.c.n, t.attempts.c.attempt)
        )
        return tuple(_attempt(row) for row in self._all(query))

    def known_result(self, *, task: str, attempt: int, worker: str, sha256: str) -> StoredAttempts:
        """What to answer to a result that comes from no current attempt: recorded before, or stale and why. Changes nothing."""
        query = sa.select(t.records.c.sha256).where(
            t.records.c.task == task, t.records.c.attempt == attempt, t.records.c.worker == worker
        )
        if any(row.sha256 == sha256 for row in self._all(query)):
            return StoredAttempts(again=True)
        row = self.task(task)
        if row is None:
            return StoredAttempts(Reason.UNKNOWN)
        return StoredAttempts(why_not(row.state, row.reason))

    def rows(self, campaign: str, low: int = 0, high: int | None = None) -> tuple[ResultRow, ...]:
        """Every task of a campaign, in its order, with the record that decided it. `low`, `high`: only those with these numbers."""
        query = (
            sa.select(
                *t.tasks.c,
                t.records.c.worker.label("by"),
                t.records.c.attempt.label("at"),
                t.records.c.body.label("record"),
                t.records.c.signature,
                t.records.c.accepted,
            )
            .join_from(
                t.tasks,
                t.records,
                sa.and_(t.records.c.task == t.tasks.c.id, t.records.c.decides),
                isouter=True,
            )
            .where(t.tasks.c.campaign == campaign, t.tasks.c.n >= low)
            .order_by(t.tasks.c.n)
        )
        if high is not None:
            query = query.where(t.tasks.c.n <= high)
        return tuple(
            ResultRow(task_row(r), r.body, r.by, r.at, r.record, r.signature, r.accepted)
            for r in self._all(query)
        )

    def events_since(self, campaign: str, seq: int = 0, *, limit: int = 1000) -> tuple[EventRow, ...]:
        """What happened after event `seq`, in order."""
        query = (
            sa.select(t.events)
            .where(t.events.c.campaign == campaign, t.events.c.seq > seq)
            .order_by(t.events.c.seq)
            .limit(limit)
        )
        return tuple(
            EventRow(r.campaign, r.seq, r.at, r.name, r.task, _fields(r.fields), r.hash)
            for r in self._all(query)
        )

    def run_times(self, models: Collection[str], limit: int = 500) -> tuple[tuple[bytes, float], ...]:
        """The tasks with one of these models that succeeded, the latest first: canonical bytes, and seconds from place to result."""
        c = t.tasks.c
        query = (
            sa.select(c.body, c.begun, c.ended)
            .where(c.sha256.in_(models), c.state == str(TaskState.SUCCEEDED), c.begun.is_not(None))
            .order_by(c.ended.desc())
            .limit(limit)
        )
        return tuple((row.body, row.ended - row.begun) for row in self._all(query))

    def all_events(self, campaign: str) -> Iterator[EventRow]:
        """Every event there is, in order, page by page."""
        seq = 0
        while page := self.events_since(campaign, seq):
            yield from page
            seq = page[-1].seq

    def event_count(self, campaign: str) -> tuple[int, int]:
        """How many events were written, and the highest number there is; the same unless somebody took some away or put some in."""
        highest = (
            sa.select(sa.func.max(t.events.c.seq))
            .where(t.events.c.campaign == campaign)
            .scalar_subquery()
            .label("highest")
        )
        rows = self._all(sa.select(t.campaigns.c.next_seq, highest).where(t.campaigns.c.id == campaign))
        return (0, 0) if not rows else (int(rows[0].next_seq) - 1, int(rows[0].highest or 0))

    def attempts_of(self, task: str) -> tuple[AttemptRow, ...]:
        """All attempts of one task, in order."""
        query = sa.select(t.attempts).where(t.attempts.c.task == task).order_by(t.attempts.c.attempt)
        return tuple(_attempt(row) for row in self._all(query))

    def events_of(self, campaign: str, task: str, limit: int = 1000) -> tuple[EventRow, ...]:
        """What happened to one task, in order; of many events the last ones."""
        query = (
            sa.select(t.events)
            .where(t.events.c.campaign == campaign, t.events.c.task == task)
            .order_by(t.events.c.seq.desc())
            .limit(limit)
        )
        return tuple(
            EventRow(r.campaign, r.seq, r.at, r.name, r.task, _fields(r.fields), r.hash)
            for r in reversed(self._all(query))
        )

    def workers(self) -> tuple[WorkerRow, ...]:
        """All that were ever reached."""
        rows = self._all(sa.select(t.workers))
        return tuple(WorkerRow(r.peer, r.device, tuple(json.loads(r.addresses)), r.seen) for r in rows)


def _fields(text: str) -> dict[str, Any]:
    """What was written with an event; a store that somebody edited can still be looked at."""
    try:
        value = json.loads(text)
    except ValueError:
        return {"unreadable": text}
    return value if isinstance(value, dict) else {"unreadable": text}


def _fence(row: sa.Row[Any]) -> Fence | None:
    return None if row.number is None else Fence(incarnation=row.incarnation, number=row.number)


def campaign_row(row: sa.Row[Any]) -> CampaignRow:
    """A campaign from a row of its table."""
    values = dict(row._mapping)
    del values["next_seq"]
    return CampaignRow(**{**values, "outcome": CampaignOutcome(row.outcome) if row.outcome else None})


def task_row(row: sa.Row[Any]) -> TaskRow:
    """A task from a row of `TASK_COLUMNS`."""
    values = {name: row._mapping[name] for name in TaskRow.__dataclass_fields__ if name != "fence"}
    values |= {
        "fence": _fence(row),
        "state": TaskState(row.state),
        "reason": Reason(row.reason) if row.reason else None,
        "phase": Phase(row.phase) if row.phase else None,
    }
    return TaskRow(**values)


def _attempt(row: sa.Row[Any]) -> AttemptRow:
    values = {name: row._mapping[name] for name in AttemptRow.__dataclass_fields__ if name != "fence"}
    values |= {
        "fence": _fence(row),
        "state": AttemptState(row.state),
        "reason": Reason(row.reason) if row.reason else None,
    }
    return AttemptRow(**values)


def find_campaign(store: Any, prefix: str) -> str:
    """The one campaign whose id begins so. Raises `CampaignError`."""
    found = store.find_campaign(prefix)
    if not found:
        if not prefix:
            raise CampaignError(
                "no campaign on this home yet", hint="begin with: sark-node init, then: sark-node submit FILE"
            )
        raise CampaignError(f"no campaign {prefix!r} on this home", hint="list them: sark-node campaigns")
    if len(found) > 1 and prefix and found[0].id != prefix:
        raise CampaignError(
            f"{prefix!r} may be any of {', '.join(item.id for item in found[:5])}",
            hint="write more of the id",
        )
    return str(found[0].id)
