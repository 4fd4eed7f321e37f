"""The part of the store that keeps experiments. A schedule's run is claimed in the very transaction that stores its campaign."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import sqlalchemy as sa

from scheduler.store import experiment_schema as x
from scheduler.store import schema as t
from scheduler.store.transactions import Transactions

RETAKEN_S: Final = 600.0
"""A webhook that somebody took on and that was not heard of for so long is somebody else's to send."""
DUE: Final = "due"
SENDING: Final = "sending"
SENT: Final = "sent"


@dataclass(frozen=True, slots=True)
class StoredModel:
    """A model of a version, by content."""

    name: str
    sha256: str
    size: int


@dataclass(frozen=True, slots=True)
class VersionRow:
    """One version of an experiment. `spec`: the campaign as JSON; `folder`: where its models' relative paths begin."""

    experiment: str
    version: int
    digest: str
    spec: str
    models: tuple[StoredModel, ...]
    folder: str
    created: float

    @property
    def title(self) -> str:
        """`nightly@3`"""
        return f"{self.experiment}@{self.version}"


@dataclass(frozen=True, slots=True)
class ExperimentRow:
    """An experiment, with its schedule where it has one. Instants are wall seconds since 1970."""

    name: str
    created: float
    every_s: float | None
    at_s: float | None
    """Seconds after midnight (UTC)."""
    alarm: float
    """Share by which a result must surely be worse before it is told as a regression."""
    webhook: str
    secret_file: str
    due: float | None
    """When it is to run next; None: it has no schedule."""


@dataclass(frozen=True, slots=True)
class RunClaim:
    """That a campaign is a run of this version. `due`, `then`: of a scheduled one, the instant it was due at and the one after it."""

    experiment: str
    version: int
    due: float | None = None
    then: float | None = None


@dataclass(frozen=True, slots=True)
class RunRow:
    """One run, and what was found when its campaign had ended."""

    campaign: str
    experiment: str
    version: int
    scheduled: bool
    begun: float
    judged: float | None
    finding: str
    cells: tuple[dict[str, Any], ...]
    accepted: bool
    hook: str
    """Of the webhook: empty (nothing to send), due, sending, sent, or why it could not be sent."""
    hook_at: float | None


class ExperimentRepository(Transactions):
    """See `scheduler.store.Store`."""

    # -- asking -------------------------------------------------------------------------------------------------------------------------

    def experiments(self) -> tuple[ExperimentRow, ...]:
        """All, by name."""
        return tuple(
            _experiment(row) for row in self._all(sa.select(x.experiments).order_by(x.experiments.c.name))
        )

    def experiment(self, name: str) -> ExperimentRow | None:
        """One by its name."""
        rows = self._all(sa.select(x.experiments).where(x.experiments.c.name == name))
        return _experiment(rows[0]) if rows else None

    def versions(self, experiment: str) -> tuple[VersionRow, ...]:
        """All of one experiment, the oldest first."""
        query = sa.select(x.versions).where(x.versions.c.experiment == experiment)
        return tuple(_version(row) for row in self._all(query.order_by(x.versions.c.version)))

    def runs(self, experiment: str) -> tuple[RunRow, ...]:
        """All of one experiment, the latest first."""
        c = x.runs.c
        query = sa.select(x.runs).where(c.experiment == experiment).order_by(c.begun.desc(), c.campaign)
        return tuple(_run(row) for row in self._all(query))

    def run(self, campaign: str) -> RunRow | None:
        """The run that this campaign is; None: it is none."""
        rows = self._all(sa.select(x.runs).where(x.runs.c.campaign == campaign))
        return _run(rows[0]) if rows else None

    def unjudged(self) -> tuple[RunRow, ...]:
        """Runs whose campaign has ended and of which nothing was found yet, in the order they began."""
        ended = sa.select(t.campaigns.c.id).where(t.campaigns.c.ended.is_not(None))
        query = sa.select(x.runs).where(x.runs.c.judged.is_(None), x.runs.c.campaign.in_(ended))
        return tuple(_run(row) for row in self._all(query.order_by(x.runs.c.begun)))

    def under_way(self, experiment: str) -> bool:
        """Whether a run of it has not ended."""
        query = (
            sa.select(sa.func.count())
            .select_from(x.runs.join(t.campaigns, t.campaigns.c.id == x.runs.c.campaign))
            .where(x.runs.c.experiment == experiment, t.campaigns.c.ended.is_(None))
        )
        return bool(self._all(query)[0][0])

    def folder(self, campaign: str) -> str:
        """The folder its file lay in; empty: not known."""
        rows = self._all(sa.select(x.folders.c.folder).where(x.folders.c.campaign == campaign))
        return str(rows[0].folder) if rows else ""

    # -- changing -----------------------------------------------------------------------------------------------------------------------

    def save_version(
        self, name: str, *, digest: str, spec: str, models: Sequence[StoredModel], folder: str, alarm: float
    ) -> tuple[VersionRow, bool]:
        """The version with this content, and whether it is new. The experiment is made if it is not there."""
        with self._writing() as c:
            if not c.execute(sa.select(x.experiments.c.name).where(x.experiments.c.name == name)).all():
                c.execute(
                    x.experiments.insert().values(
                        name=name, created=self._wall(), alarm=alarm, webhook="", secret_file=""
                    )
                )
            rows = c.execute(
                sa.select(x.versions)
                .where(x.versions.c.experiment == name)
                .order_by(x.versions.c.version.desc())
            ).all()
            if rows and rows[0].digest == digest:
                c.execute(
                    x.versions.update()
                    .where(x.versions.c.experiment == name, x.versions.c.version == rows[0].version)
                    .values(folder=folder)
                )
                return _version(rows[0], folder=folder), False
            number = rows[0].version + 1 if rows else 1
            made = VersionRow(name, number, digest, spec, tuple(models), folder, self._wall())
            kept = json.dumps([asdict(model) for model in models])
            c.execute(x.versions.insert().values(**{**asdict(made), "models": kept}))
            return made, True

    def set_schedule(
        self,
        name: str,
        *,
        every_s: float | None,
        at_s: float | None,
        alarm: float,
        webhook: str,
        secret_file: str,
        due: float | None,
    ) -> None:
        """From now on it runs so; `every_s` None: only when it is asked for."""
        with self._writing() as c:
            c.execute(
                x.experiments.update()
                .where(x.experiments.c.name == name)
                .values(
                    every_s=every_s,
                    at_s=at_s,
                    alarm=alarm,
                    webhook=webhook,
                    secret_file=secret_file,
                    due=due,
                )
            )

    def move_due(self, name: str, due: float, then: float) -> bool:
        """What was due then is due at another time. False: another process was first."""
        with self._writing() as c:
            return _moved(c, name, due, then)

    def claim_run(self, c: sa.Connection, campaign: str, claim: RunClaim) -> bool:
        """Inside the transaction that stores the campaign: it is this run. False: another process has started it; nothing is changed."""
        if claim.due is not None and not _moved(c, claim.experiment, claim.due, claim.then):
            return False
        c.execute(
            x.runs.insert().values(
                campaign=campaign,
                experiment=claim.experiment,
                version=claim.version,
                scheduled=claim.due is not None,
                begun=self._wall(),
                finding="",
                cells="[]",
                accepted=False,
                hook="",
            )
        )
        return True

    @staticmethod
    def keep_folder(c: sa.Connection, campaign: str, folder: str) -> None:
        """Inside the transaction that stores the campaign."""
        c.execute(x.folders.insert().values(campaign=campaign, folder=folder))

    def set_finding(
        self, campaign: str, finding: str, cells: Sequence[dict[str, Any]], *, tell: bool
    ) -> bool:
        """What was found of a run. `tell`: its webhook is due. False: another process has said so before."""
        with self._writing() as c:
            done = c.execute(
                x.runs.update()
                .where(x.runs.c.campaign == campaign, x.runs.c.judged.is_(None))
                .values(
                    judged=self._wall(),
                    finding=finding,
                    cells=json.dumps(list(cells)),
                    hook=DUE if tell else "",
                )
            )
            return bool(done.rowcount)

    def put_unstarted(self, campaign: str, experiment: str, version: int, *, why: str, finding: str) -> None:
        """A scheduled run that could not begin: it stands in the history, and its webhook is due. `campaign`: an id that is none."""
        now = self._wall()
        with self._writing() as c:
            c.execute(
                x.runs.insert().values(
                    campaign=campaign,
                    experiment=experiment,
                    version=version,
                    scheduled=True,
                    begun=now,
                    judged=now,
                    finding=finding,
                    cells=json.dumps([{"why": why}]),
                    accepted=False,
                    hook=DUE,
                )
            )

    def accept_run(self, campaign: str) -> bool:
        """Its results are good ones from now on, whatever was found. False: there is no such run, or nothing was found of it yet."""
        with self._writing() as c:
            return bool(
                c.execute(
                    x.runs.update()
                    .where(x.runs.c.campaign == campaign, x.runs.c.judged.is_not(None))
                    .values(accepted=True)
                ).rowcount
            )

    def take_hooks(self) -> tuple[RunRow, ...]:
        """Runs whose webhook is due; from now on they are the caller's to send."""
        now, c_ = self._wall(), x.runs.c
        lost = sa.and_(c_.hook == SENDING, sa.or_(c_.hook_at < now - RETAKEN_S, c_.hook_at > now))
        with self._writing() as c:
            rows = c.execute(sa.select(x.runs).where(sa.or_(c_.hook == DUE, lost))).all()
            for row in rows:
                c.execute(
                    x.runs.update().where(c_.campaign == row.campaign).values(hook=SENDING, hook_at=now)
                )
        return tuple(_run(row) for row in rows)

    def set_hook(self, campaign: str, became: str) -> None:
        """`SENT`, or why it could not be sent."""
        with self._writing() as c:
            c.execute(
                x.runs.update().where(x.runs.c.campaign == campaign).values(hook=became, hook_at=self._wall())
            )

    def remove_experiment(self, name: str) -> None:
        """Its definition, versions and history; its campaigns stay."""
        with self._writing() as c:
            for table in (x.runs, x.versions):
                c.execute(table.delete().where(table.c.experiment == name))
            c.execute(x.experiments.delete().where(x.experiments.c.name == name))


def _moved(c: sa.Connection, name: str, due: float, then: float | None) -> bool:
    done = c.execute(
        x.experiments.update()
        .where(x.experiments.c.name == name, x.experiments.c.due == due)
        .values(due=then)
    )
    return bool(done.rowcount)


def _experiment(row: sa.Row[Any]) -> ExperimentRow:
    return ExperimentRow(**row._mapping)


def _version(row: sa.Row[Any], folder: str | None = None) -> VersionRow:
    values = {**row._mapping, "models": tuple(StoredModel(**model) for model in json.loads(row.models))}
    return VersionRow(**(values if folder is None else {**values, "folder": folder}))


def _run(row: sa.Row[Any]) -> RunRow:
    return RunRow(**{**row._mapping, "cells": tuple(json.loads(row.cells))})
