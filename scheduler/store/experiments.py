"""Experiments in the store: versions, schedules, runs and their findings. A run is claimed in the transaction that creates its campaign."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import sqlalchemy as sa

from scheduler.store import schema as t
from scheduler.store.database import Database, read, values_of
from scheduler.store.rows import ExperimentRow, RunClaim, RunRow, VersionModel, VersionRow

HOOK_TIMEOUT_S: Final = 600.0
"""Seconds after which a webhook that a process began to send is free for another process."""
CONFIRMING: Final = "confirming"
"""The finding of a run while cells of it are measured again."""
DUE: Final = "due"
SENDING: Final = "sending"
SENT: Final = "sent"


class ExperimentRepository:
    """Experiments with their versions and runs."""

    def __init__(self, database: Database) -> None:
        self._database = database

    # -- reading --------------------------------------------------------------------------------------------------------------------

    def all(self) -> tuple[ExperimentRow, ...]:
        """All experiments, by name."""
        return self._database.rows(ExperimentRow, order=[t.experiments.c.name])

    def get(self, name: str) -> ExperimentRow | None:
        """The experiment with this name."""
        return self._database.row(ExperimentRow, t.experiments.c.name == name)

    def versions(self, experiment: str) -> tuple[VersionRow, ...]:
        """All versions of an experiment, the oldest first."""
        c = t.versions.c
        return self._database.rows(VersionRow, c.experiment == experiment, order=[c.version])

    def runs(self, experiment: str) -> tuple[RunRow, ...]:
        """All runs of an experiment, the latest first."""
        c = t.runs.c
        return self._database.rows(RunRow, c.experiment == experiment, order=[c.begun.desc(), c.campaign])

    def run(self, campaign: str) -> RunRow | None:
        """The run to which this campaign belongs, if any."""
        return self._database.row(RunRow, t.runs.c.campaign == campaign)

    def unjudged(self) -> tuple[RunRow, ...]:
        """Runs without a finding whose campaign has ended, oldest first."""
        ended = (t.runs.c.campaign == t.campaigns.c.id, t.campaigns.c.ended.is_not(None))
        return self._database.rows(RunRow, *ended, t.runs.c.judged.is_(None), order=[t.runs.c.begun])

    def confirming(self) -> tuple[RunRow, ...]:
        """Runs of which cells are measured again before they have a finding, oldest first."""
        return self._database.rows(RunRow, t.runs.c.finding == CONFIRMING, order=[t.runs.c.begun])

    def is_running(self, experiment: str) -> bool:
        """Whether a run of this experiment has not ended."""
        open_ = (t.runs.c.campaign == t.campaigns.c.id, t.campaigns.c.ended.is_(None))
        return bool(self._database.rows(RunRow, *open_, t.runs.c.experiment == experiment, limit=1))

    # -- writing --------------------------------------------------------------------------------------------------------------------

    def save_version(
        self, name: str, *, digest: str, spec: str, models: Sequence[VersionModel], folder: str, alarm: float
    ) -> tuple[VersionRow, bool]:
        """The version with this content, and whether it is new. Creates the experiment if it does not exist."""
        now, v = self._database.wall(), t.versions.c
        with self._database.transaction() as c:
            if not c.execute(sa.select(t.experiments.c.name).where(t.experiments.c.name == name)).all():
                c.execute(t.experiments.insert().values(name=name, created=now, alarm=alarm))
            versions = read(c, VersionRow, v.experiment == name, order=[v.version.desc()], limit=1)
            if versions and versions[0].digest == digest:
                same = (v.experiment == name, v.version == versions[0].version)
                c.execute(t.versions.update().where(*same).values(folder=folder))
                return replace(versions[0], folder=folder), False
            number = versions[0].version + 1 if versions else 1
            row = VersionRow(name, number, digest, spec, tuple(models), folder, now)
            c.execute(t.versions.insert().values(**values_of(row)))
            return row, True

    def set_schedule(self, row: ExperimentRow) -> None:
        """Replace the schedule; `every_s` None: the experiment runs only on request."""
        with self._database.transaction() as c:
            c.execute(t.experiments.update().where(t.experiments.c.name == row.name).values(**values_of(row)))

    def move_due(self, name: str, due: float, then: float) -> bool:
        """Move the run that was due at `due` to `then`. False: another process was first."""
        with self._database.transaction() as c:
            return _move_due(c, name, due, then)

    def _update_run(self, campaign: str, *where: sa.ColumnElement[bool], **values: Any) -> bool:
        with self._database.transaction() as c:
            update = t.runs.update().where(t.runs.c.campaign == campaign, *where).values(**values)
            return bool(c.execute(update).rowcount)

    def set_finding(
        self, campaign: str, finding: str, cells: Sequence[dict[str, Any]], *, notify: bool
    ) -> bool:
        """Store what a run found. `notify`: its webhook is due. False: another process was first."""
        return self._update_run(
            campaign,
            t.runs.c.judged.is_(None),
            judged=self._database.wall(),
            finding=finding,
            cells=tuple(cells),
            hook=DUE if notify else "",
        )

    def claim_confirmation(self, campaign: str) -> bool:
        """Whether the caller should start to measure a run's cells again. False: another process does."""
        now, r = self._database.wall(), t.runs.c
        free = r.hook_at.is_(None) | (r.hook_at < now - HOOK_TIMEOUT_S) | (r.hook_at > now)
        return self._update_run(campaign, r.finding == CONFIRMING, free, hook_at=now)

    def settle(self, campaign: str, finding: str, cells: Sequence[dict[str, Any]], *, notify: bool) -> bool:
        """Store a run's finding after cells were measured again. False: another process was first."""
        return self._update_run(
            campaign,
            t.runs.c.finding == CONFIRMING,
            finding=finding,
            cells=tuple(cells),
            hook=DUE if notify else "",
            hook_at=None,
        )

    def add_failed_run(self, campaign: str, experiment: str, version: int, *, why: str, finding: str) -> None:
        """Store a scheduled run that could not start, with its webhook due. `campaign`: an id that no campaign has."""
        now = self._database.wall()
        with self._database.transaction() as c:
            run = RunRow(campaign, experiment, version, scheduled=True, begun=now)
            run = replace(run, judged=now, finding=finding, cells=({"why": why},), hook=DUE)
            c.execute(t.runs.insert().values(**values_of(run)))

    def accept_run(self, campaign: str) -> bool:
        """Accept the results of a run as a baseline, whatever its finding. False: there is no such run, or it has no finding yet."""
        return self._update_run(campaign, t.runs.c.judged.is_not(None), accepted=True)

    def take_hooks(self) -> tuple[RunRow, ...]:
        """Take the runs whose webhook is due; the caller sends it."""
        now, r = self._database.wall(), t.runs.c
        stuck = (r.hook == SENDING) & ((r.hook_at < now - HOOK_TIMEOUT_S) | (r.hook_at > now))
        with self._database.transaction() as c:
            rows = read(c, RunRow, (r.hook == DUE) | stuck)
            campaigns = [row.campaign for row in rows]
            c.execute(t.runs.update().where(r.campaign.in_(campaigns)).values(hook=SENDING, hook_at=now))
        return rows

    def set_hook(self, campaign: str, status: str) -> None:
        """Store the outcome of a webhook: `SENT`, or why it could not be sent."""
        self._update_run(campaign, hook=status, hook_at=self._database.wall())

    def remove(self, name: str) -> None:
        """Delete an experiment with its versions and runs. Their campaigns stay."""
        with self._database.transaction() as c:
            for table in (t.runs, t.versions):
                c.execute(table.delete().where(table.c.experiment == name))
            c.execute(t.experiments.delete().where(t.experiments.c.name == name))


def claim_run(c: sa.Connection, campaign: str, claim: RunClaim, now: float) -> bool:
    """Inside the transaction that creates the campaign: record the campaign as this run. False: another process has started the run."""
    if claim.due is not None and not _move_due(c, claim.experiment, claim.due, claim.then):
        return False
    run = RunRow(campaign, claim.experiment, claim.version, scheduled=claim.due is not None, begun=now)
    c.execute(t.runs.insert().values(**values_of(run)))
    return True


def _move_due(c: sa.Connection, name: str, due: float, then: float | None) -> bool:
    where = (t.experiments.c.name == name, t.experiments.c.due == due)
    return bool(c.execute(t.experiments.update().where(*where).values(due=then)).rowcount)
