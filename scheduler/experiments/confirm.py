"""Cells that seem slower, or are doubtful because of the host, are measured again before they are reported.

    slower, doubtful ──▶ the run's own task once more, on the same device: in turns with the last good model, or alone where that is the
    same model ──▶ slower: a regression, whose webhook is due; else it was the host

A claim in the store lets one process begin. The campaign's id is derived from the run's, so that any later process finds it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final

from protocol.formats.spread import with_gaps
from protocol.values.requirement import Clause, Op
from protocol.values.task import Model, Task, read_task
from protocol.values.trust import TrustKind
from results.analysis.regression import (
    KnownGood,
    RegressionCell,
    RegressionFinding,
    confirmed,
    finding_of,
)
from results.row.record import SERVED
from results.row.row import Row
from scheduler.core.run_times import longest_run_s
from scheduler.experiments.judge import LOOK_BACK, entries_of, good_cells, read_cells, stored
from scheduler.store.rows import CampaignStatus, NewCampaign, NewModel, RunRow
from scheduler.store.store import Store
from scheduler.submit.submit import new_campaign_id
from swarm.base.home import Home
from swarm.net.identity import load_or_create

BACK_S: Final = 3600.0
"""Seconds to wait for a device to come back, or to be free."""
WAIT_S: Final = 60.0


@dataclass(slots=True)
class Confirmations:
    """The result of one look at the runs."""

    started: list[str] = field(default_factory=list)
    """Ids of the started campaigns."""
    settled: list[RunRow] = field(default_factory=list)
    """Runs of which nothing could be measured again: their findings stand."""


def confirmation_of(campaign: str) -> str:
    """Id of the campaign that measures a run's unsettled cells again."""
    numbers = iter(hashlib.sha256(b"confirms " + campaign.encode()).digest())
    return new_campaign_id(lambda letters: letters[next(numbers) % len(letters)])


def begin_confirmations(home: Home, store: Store) -> Confirmations:
    """Store a campaign for each run that waits for one. Blocking."""
    done = Confirmations()
    for run in store.experiments.confirming():
        again = confirmation_of(run.campaign)
        if store.campaigns.get(again) is not None or not store.experiments.claim_confirmation(run.campaign):
            continue
        scheduler = load_or_create(home.key("scheduler")).peer_id
        rows = {entry.row.job_id: entry.row for entry in entries_of(store, run.campaign)}
        bodies = {name: read_task(body) for name, body in store.tasks.bodies(run.campaign).items()}
        tasks = confirming_tasks(read_cells(run), rows, bodies, home.spool, again, scheduler)
        row = store.campaigns.get(run.campaign)
        if not tasks or row is None:
            done.settled += _settle(store, run, "")
            continue
        values: dict[str, Any] = {each.name: getattr(row, each.name) for each in fields(NewCampaign)}
        values.update(
            id=again,
            name=f"{run.experiment[:58]} again",
            scheduler=scheduler,
            limit_s=limit_s(tasks),
            wait_s=WAIT_S,
        )
        models = {model.name: model for task in tasks for model in task.models()}
        new = [NewModel(model.name, model.sha256, model.size) for model in models.values()]
        store.campaigns.create(NewCampaign(**values), new, tasks)
        done.started.append(again)
    return done


def confirming_tasks(
    cells: Sequence[RegressionCell],
    rows: Mapping[str, Row],
    tasks: Mapping[str, Task],
    spool: Path,
    campaign: str,
    scheduler: str,
) -> list[Task]:
    """A task of `campaign` for each unsettled cell that can be measured again. `rows`, `tasks`: the run's, by task id."""
    made: list[Task] = []
    for cell in cells:
        row, task = rows.get(cell.job), tasks.get(cell.job)
        if not cell.unsettled or row is None or task is None:
            continue
        if row.trust == TrustKind.STRANGER or not row.device_id:  # its runs are witnessed, and never in turns
            continue
        task = _in_turns(cell, task, spool)
        if not cell.against_sha256 or not all((spool / model.sha256).is_file() for model in task.models()):
            continue
        if task.beside and (task.measure.sustain_s is not None or task.unit.startswith(SERVED)):
            continue  # models cannot take turns there
        here = Clause(attribute="device", op=Op.EQ, value=row.device_id)
        clauses = tuple(dict.fromkeys((*task.requirement.clauses, here)))
        changes = {
            "campaign": campaign,
            "task": f"{campaign}/{len(made) + 1}",
            "scheduler": scheduler,
            "requirement": task.requirement.model_copy(update={"clauses": clauses}),
            "note": note_of(cell),
            "replica": None,
            "sitting": None,
            "examples": None,
        }
        made.append(task.model_copy(update=changes))
    return made


def _in_turns(cell: RegressionCell, task: Task, spool: Path) -> Task:
    """The task, in turns with the last good model; unchanged where its model is that one."""
    if cell.sha256 == cell.against_sha256:
        return task
    good = spool / cell.against_sha256
    last = Model(
        name=f"{cell.model[:120]} of {cell.against}",
        sha256=cell.against_sha256,
        size=good.stat().st_size if good.is_file() else 0,
    )
    measure, limits = task.measure, task.timeouts  # turns need no gaps
    gaps_s = with_gaps(0.0, measure.over_s, precise=measure.precision is not None)
    changes = {
        "measure": measure.model_copy(update={"over_s": None}),
        "timeouts": limits.model_copy(update={"run_s": max(1.0, limits.run_s - gaps_s)}),
        "beside": (last,),
        "beside_urls": None,
        "beside_units": None,
    }
    return task.model_copy(update=changes)


def limit_s(tasks: Sequence[Task]) -> float:
    """Seconds for the campaign with these tasks: the wait until it begins, then the runs of the busiest device one after the other."""
    by_device: dict[object, float] = {}
    for task in tasks:
        device = next(
            each.value for each in task.requirement.clauses if (each.attribute, each.op) == ("device", Op.EQ)
        )
        by_device[device] = by_device.get(device, 0.0) + longest_run_s(task)
    return BACK_S + max(by_device.values())


def note_of(cell: RegressionCell) -> str:
    """The note of the task that measures the cell again."""
    return f"measures {cell.job} again"


def settle_confirmations(store: Store) -> list[RunRow]:
    """The runs whose results have been measured again by now, with their findings. Blocking."""
    settled = []
    for run in store.experiments.confirming():
        again = store.campaigns.get(confirmation_of(run.campaign))
        if again is not None and again.ended is not None:
            settled += _settle(store, run, again.id)
    return settled


def _settle(store: Store, run: RunRow, again: str) -> list[RunRow]:
    """Store the run's finding, from what the campaign `again` measured; empty: there is none. Returns the run unless another process was
    first.
    """
    experiment = store.experiments.get(run.experiment)
    alarm = 0.0 if experiment is None else experiment.alarm
    entries = {entry.row.job_id: entry for entry in (entries_of(store, again) if again else ())}
    bodies = store.tasks.bodies(again) if again else {}
    tasks = {read_task(body).note: entries[name] for name, body in bodies.items() if name in entries}
    own = {entry.row.job_id: entry for entry in (entries_of(store, run.campaign) if again else ())}
    cells = []
    for cell in read_cells(run):
        if cell.unsettled:
            entry = tasks.get(note_of(cell))
            good = None if entry is None else _good_of(store, cell, entry.row)
            first = own.get(cell.job)
            cell = confirmed(cell, entry, good, alarm, () if first is None else first.peaks)
        cells.append(cell)
    finding, campaign = finding_of(cells), store.campaigns.get(run.campaign)
    if finding is RegressionFinding.FINE and (
        campaign is None or campaign.outcome is not CampaignStatus.SUCCEEDED
    ):
        finding = RegressionFinding.INCOMPLETE
    values = [cell.model_dump(mode="json") for cell in cells]
    notify = finding is RegressionFinding.REGRESSION
    if not store.experiments.settle(run.campaign, str(finding), values, notify=notify):
        return []
    now = store.experiments.run(run.campaign)
    return [] if now is None else [now]


def _good_of(store: Store, cell: RegressionCell, row: Row) -> KnownGood | None:
    """The last good result with which the cell was compared."""
    run = store.experiments.run(cell.against or "")
    good = None if run is None else next((one for one in read_cells(run) if one.key == cell.key), None)
    if run is None or good is None:
        return None
    return KnownGood(run.campaign, stored(good, row, entries_of(store, run.campaign)))


def good_models(store: Store) -> frozenset[str]:
    """Hashes of the models behind the last good results of all experiments: regressions are confirmed in turns with them."""
    return frozenset(sha256 for row in store.experiments.all() for sha256 in _last_good(store, row.name))


def _last_good(store: Store, experiment: str) -> Iterator[str]:
    seen: set[str] = set()
    for run in store.experiments.runs(experiment)[:LOOK_BACK]:
        for cell in good_cells(run):
            if cell.key not in seen:
                seen.add(cell.key)
                yield cell.sha256
