"""Lists of the store a page at a time: for who shows a large one, or goes through it over a network."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import sqlalchemy as sa

from protocol.values.attempt import TaskState
from protocol.words import UNIT
from scheduler.store import schema as t
from scheduler.store.queries import TASK_COLUMNS, Queries, campaign_row, task_row
from scheduler.store.rows import CampaignStatus, CampaignSummary, TaskRow, WaitingTasks

_WAITING: Final = (TaskState.PENDING, TaskState.COMMITTING, TaskState.QUEUED)
_STILL: Final = (CampaignStatus.RUNNING, CampaignStatus.CANCELLING)


class CampaignListing(Queries):
    """Questions for pages of rows. Each page begins after the last row of the one before, so that rows that come meanwhile move nothing."""

    def summary(self, campaign: str) -> CampaignSummary | None:
        """One campaign with its counts."""
        row = self.campaign(campaign)
        if row is None:
            return None
        return CampaignSummary(
            row, self._counts([row.id]).get(row.id, {}), *self._run_titles([row.id]).get(row.id, ())
        )

    def summaries_page(
        self,
        *,
        limit: int,
        after: str | None = None,
        status: CampaignStatus | None = None,
        name: str = "",
    ) -> tuple[CampaignSummary, ...] | None:
        """Campaigns with their counts, newest first. `after`: the id that the page before ended with; None comes back where there is no
        such campaign. `status`, `name`: only those that stand so, whose name holds that (small or large letters).
        """
        c = t.campaigns.c
        query = sa.select(t.campaigns).order_by(c.created.desc(), c.id.desc()).limit(limit)
        if after is not None:
            last = self.campaign(after)
            if last is None:
                return None
            query = query.where(
                sa.or_(c.created < last.created, sa.and_(c.created == last.created, c.id < last.id))
            )
        if status in _STILL:
            asked = status is CampaignStatus.CANCELLING
            query = query.where(c.ended.is_(None), c.cancel if asked else sa.not_(c.cancel))
        elif status is not None:
            query = query.where(c.ended.is_not(None), c.outcome == str(status))
        if name:
            query = query.where(sa.func.lower(c.name).contains(name.lower(), autoescape=True))
        rows = [campaign_row(row) for row in self._all(query)]
        counts = self._counts([row.id for row in rows])
        titles = self._run_titles([row.id for row in rows])
        return tuple(CampaignSummary(row, counts.get(row.id, {}), *titles.get(row.id, ())) for row in rows)

    def tasks_page(
        self, campaign: str, *, limit: int, after: int = 0, state: TaskState | None = None
    ) -> tuple[TaskRow, ...]:
        """Tasks of a campaign with a higher number than `after`, in its order."""
        c = t.tasks.c
        query = sa.select(*TASK_COLUMNS).where(c.campaign == campaign, c.n > after).order_by(c.n).limit(limit)
        if state is not None:
            query = query.where(c.state == str(state))
        return tuple(task_row(row) for row in self._all(query))

    def ended_numbers(self, campaign: str, *, limit: int, after: int = 0) -> tuple[int, ...]:
        """Numbers above `after` of tasks that have ended, in order."""
        c = t.tasks.c
        query = sa.select(c.n).where(c.campaign == campaign, c.n > after, c.ended.is_not(None))
        return tuple(row.n for row in self._all(query.order_by(c.n).limit(limit)))

    def waiting(self) -> tuple[WaitingTasks, ...]:
        """Tasks of campaigns that have not ended which wait to be begun, counted."""
        c = t.tasks.c
        query = (
            sa.select(c.unit, c.state, c.worker, c.device, sa.func.count().label("tasks"))
            .join(t.campaigns, t.campaigns.c.id == c.campaign)
            .where(t.campaigns.c.ended.is_(None), c.state.in_([str(state) for state in _WAITING]))
            .group_by(c.unit, c.state, c.worker, c.device)
            .order_by(c.unit, c.worker)
        )
        return tuple(
            WaitingTasks(
                row.unit, row.worker if row.state == TaskState.QUEUED else None, row.device, row.tasks
            )
            for row in self._all(query)
        )

    def _counts(self, campaigns: Sequence[str]) -> dict[str, dict[TaskState, int]]:
        c = t.tasks.c
        counted = (
            sa.select(c.campaign, c.state, sa.func.count().label("tasks"))
            .where(c.campaign.in_(campaigns))
            .group_by(c.campaign, c.state)
        )
        found: dict[str, dict[TaskState, int]] = {}
        for row in self._all(counted):
            found.setdefault(row.campaign, {})[TaskState(row.state)] = row.tasks
        return found

    def counted(self) -> dict[str, dict[str, int]]:
        """How many campaigns, tasks and attempts stand where, for gauges: `{"campaigns": {"running": 1}, …}`. Simulations are
        counted apart.
        """
        c = t.campaigns.c
        standing = sa.case((c.ended.is_not(None), c.outcome), (c.cancel, "cancelling"), else_="running")
        pretended = t.tasks.c.unit == UNIT

        def by_state(table: sa.Table, *which: sa.ColumnElement[bool]) -> sa.Executable:
            query = sa.select(table.c.state, sa.func.count().label("number")).where(*which)
            return query.group_by(table.c.state)

        questions: dict[str, Any] = {
            "campaigns": sa.select(standing.label("state"), sa.func.count().label("number")).group_by(
                "state"
            ),
            "tasks": by_state(t.tasks, sa.not_(pretended)),
            "simulated_tasks": by_state(t.tasks, pretended),
            "attempts": by_state(t.attempts),
        }
        return {
            name: {str(row.state): int(row.number) for row in self._all(query)}
            for name, query in questions.items()
        }
