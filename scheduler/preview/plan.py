"""The plan of a campaign on the current swarm: what would run where, when, for how long, and why not. Pure.

Its hash covers the campaign, the models, the tasks, and for each cell the devices that fit and would serve this scheduler, but not their
load. A stored plan is compared with a new one before a campaign is submitted under it (`plan_changes`).
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Final

from protocol.values.advert import Advert
from protocol.values.campaign_manifest import fits_manifest
from protocol.values.match import match
from protocol.values.requirement import Requirement
from protocol.values.task import Task, task_body
from protocol.words import Reason
from results.row.form import JsonModel
from results.row.simulated import shown_name
from scheduler.campaign.model import Campaign
from scheduler.core.explain import ADVICE, LACKS_SIBLING, explain
from scheduler.core.ranking import UNAVAILABLE_STATES
from scheduler.core.run_times import FETCH_RATE, asked_run_s, past_run_s
from scheduler.models.describe import evaluation_notes, model_notes
from scheduler.models.files import Models
from scheduler.models.inspect import ModelShapes
from scheduler.planning.tasks import PlannedCell, requirements
from scheduler.preview.left_out import left_out
from scheduler.preview.survey import DeviceAnswer, Kind, SwarmVisit, kind_of
from swarm.base.names import disambiguate_names
from swarm.base.text import count, safe_text

HASH_DIGITS: Final = 12


class PlanCell(JsonModel):
    """One cell of the matrix: a model on a unit with a number of threads and a batch."""

    model: str
    unit: str
    threads: int | None
    """Number of threads for one inference. Null: one for each physical core."""
    batch: int | None = None
    """Batch size. Null: the model's own."""
    tasks: int
    """Number of tasks: one for each device, class or replica if the campaign requests that."""
    fit: tuple[str, ...]
    """Ids of the devices that fit."""
    serve: tuple[str, ...]
    """Ids of those that fit and would take work from this scheduler now."""
    covered: bool
    """Whether each of the cell's tasks has a device that would take it."""
    start_s: float | None
    """Seconds until the first of these devices could begin, as they report. Null if not known."""
    run_s: float | None
    """Expected duration of one task, in seconds. Null if not known."""
    run_from: str
    """Source of `run_s`: results of this home, or what the devices ran lately."""
    fetch: int
    """Bytes that the devices would have to download."""
    preempts: tuple[str, ...]
    """Ids of the devices on which another run would be preempted."""
    gives_way: tuple[str, ...]
    """Descriptions of the runs that would be preempted."""
    why: str
    """Why the cell is not covered, as lines of text. Empty if it is covered."""
    against: str | None = None
    """Base that takes turns with the model on the same device: a model, a compute unit, or a model on a unit. Null if the model is measured
    alone."""
    shape: str = ""
    """Shape of the model's inputs, such as `1×3×48×320`. Empty if only the model's driver can tell."""


class PlanUntrusted(JsonModel):
    """A device that fits and is not trusted."""

    peer: str
    device: str
    name: str
    """Name that the device gives itself."""
    serves: bool
    """Whether the device allows this submitter, so that only `sark-node trust PEER_ID` is missing."""


class LivePlan(JsonModel):
    """The plan of a whole campaign."""

    plan: str
    """Hash of the plan, to pass to submit."""
    campaign: str
    content: str
    """Hash of the campaign file's content without comments."""
    models: dict[str, str]
    """Hash of each model."""
    tasks: int
    adoptable: bool = True
    """Whether the campaign is small enough for another machine to adopt it."""
    cells: tuple[PlanCell, ...]
    covered: int
    """Number of cells that are covered."""
    devices: dict[str, str]
    """Names of the devices that fit at least one cell, by id."""
    seen: int
    """Number of devices in the swarm."""
    complete: bool = True
    """Whether all devices that may fit were looked up. If not, there are too many, and the plan holds only for those that were."""
    total_s: float | None
    """Expected seconds until all tasks have ended, including the time between sittings. Null if not known."""
    sittings: int = 1
    """Number of times that each task is measured, at different times."""
    lasts_s: float = 0.0
    """Seconds between the sittings of a task in total. The campaign lasts longer than that."""
    fetch: int
    open: bool = False
    """Whether strangers may take the tasks and get the model."""
    untrusted: tuple[PlanUntrusted, ...] = ()
    """Devices that fit but are not trusted, those that serve this submitter first."""
    notes: tuple[str, ...] = ()
    """Facts that are not known yet about models that the devices download themselves."""

    @property
    def whole(self) -> bool:
        """Whether every cell is covered."""
        return self.covered == len(self.cells)


def make_plan(
    campaign: Campaign,
    models: Models,
    cells: Sequence[tuple[PlannedCell, Sequence[Task]]],
    visit: SwarmVisit,
    history: Sequence[tuple[Task, float]] = (),
    shapes: Sequence[ModelShapes] = (),
) -> LivePlan:
    """The plan. `history`: tasks that succeeded here before and how long they took, latest first."""
    planner = _Planner(visit, history)
    texts = {(one.model, one.batch): one.text for one in shapes}
    planned = tuple(
        planner.cell(cell, tasks, texts.get((cell.model.key, cell.batch), "")) for cell, tasks in cells
    )
    content = _digest(campaign.model_dump(mode="json"))
    hashes = {name: file.model.sha256 for name, file in models.items()}
    bodies = [task_body(task) for _, tasks in cells for task in tasks]
    serving = [sorted(cell.serve) if visit.complete else cell.covered for cell in planned]
    substance = [
        content,
        sorted(hashes.items()),
        [hashlib.sha256(body).hexdigest() for body in bodies],
        serving,
    ]
    fit = {device for cell in planned for device in cell.fit}
    needs = requirements(campaign)  # of several workers of a device, those that fit give its name
    shown = [
        advert
        for advert in visit.adverts
        if advert.device in fit and any(visit.may_have(need, advert) for need in needs)
    ]
    known = {advert.peer: advert.name for advert in shown} | {
        each.peer: each.name for each in visit.untrusted
    }
    labels = disambiguate_names({peer: safe_text(name, 40) for peer, name in known.items()})
    whole = all(cell.covered and cell.run_s is not None for cell in planned)
    return LivePlan(
        plan=_digest(substance)[:HASH_DIGITS],
        campaign=campaign.campaign,
        content=content,
        models=hashes,
        tasks=len(bodies),
        adoptable=fits_manifest(campaign.spec(), bodies),
        cells=planned,
        covered=sum(cell.covered for cell in planned),
        devices={
            a.device: labels[a.peer] for a in sorted(shown, key=lambda a: (a.name, a.peer), reverse=True)
        },
        seen=len({advert.device for advert in (*visit.adverts, *visit.others)}),
        open=campaign.trust.anyone,
        untrusted=tuple(
            PlanUntrusted(peer=each.peer, device=each.device, name=labels[each.peer], serves=each.serves)
            for each in visit.untrusted
        ),
        complete=visit.complete,
        total_s=planner.ends_s + campaign.measure.gaps_s if whole and planner.complete else None,
        sittings=campaign.measure.sittings,
        lasts_s=campaign.measure.gaps_s,
        fetch=planner.fetch,
        notes=(
            *model_notes(campaign),
            *evaluation_notes(campaign, models),
            *(f"Left out: {line}" for line in left_out([cell for cell, _ in cells], visit.adverts)),
            *visit.clashes,
        ),
    )


def _digest(value: object) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def refusal(answer: DeviceAnswer | None, kind: Kind) -> str:
    """Why this worker would not take such a task now, in words; empty: it would."""
    if answer is None:
        return "was not asked"
    if answer.quote is None:
        return answer.why or "did not answer"
    if answer.quote.why or answer.quote.state in UNAVAILABLE_STATES:
        return answer.quote.why or f"is {answer.quote.state}"
    quoted = answer.shapes.get(kind)
    if quoted is not None and not quoted.fits:
        return "; ".join(quoted.unmet) or "reports that the task does not fit"
    return ""


@dataclass(slots=True)
class _Planner:
    """Assigns tasks one after the other, each to the worker that would finish it first: an estimate of what will happen."""

    visit: SwarmVisit
    history: Sequence[tuple[Task, float]]
    fetch: int = 0
    ends_s: float = 0.0
    complete: bool = True
    """Whether every wait and every run is known."""
    _until: dict[str, float] = field(default_factory=dict)
    _fetched: set[tuple[str, str]] = field(default_factory=set)
    _fits: dict[Requirement, tuple[Advert, ...]] = field(default_factory=dict)
    _cached: frozenset[tuple[str, str]] = field(init=False)
    """Peers, with the models that their adverts name."""

    def __post_init__(self) -> None:
        self._cached = frozenset(
            (advert.peer, sha256) for advert in self.visit.adverts for sha256 in advert.models
        )

    def cell(self, cell: PlannedCell, tasks: Sequence[Task], shape: str) -> PlanCell:
        fits: dict[str, None] = {}
        serves: dict[str, None] = {}
        starts: list[float | None] = []
        reported: list[float] = []
        victims: list[tuple[Advert, str]] = []
        fetch, why = 0, ""
        run_s, run_from = past_run_s(tasks[0], self.history), "results of this home"
        for task in tasks:
            fit, kind = self._fitting(task.requirement), kind_of(task)
            fits |= {advert.device: None for advert in fit}
            willing = [a for a in fit if not refusal(self.visit.answers.get(a.peer), kind)]
            serves |= {advert.device: None for advert in willing}
            for advert in willing:
                quote = self.visit.answers[advert.peer].quote
                starts.append(self._start_s(advert.peer, kind))
                if quote is not None and quote.run_s is not None:
                    reported.append(asked_run_s(task) + quote.run_s)
            if willing:
                guess = run_s if run_s is not None else median(reported) if reported else None
                chosen, size, preempts = self._assign(task, kind, willing, guess)
                fetch += size
                if preempts:
                    victims.append((chosen, preempts))
            elif not why:
                why = _why_not(task, fit, self.visit)
        if run_s is None:
            run_s, run_from = (median(reported), "what the devices ran lately") if reported else (None, "")
        return PlanCell(
            model=cell.model.label,
            unit=cell.unit,
            threads=cell.threads,
            batch=cell.batch,
            tasks=len(tasks),
            fit=tuple(fits),
            serve=tuple(serves),
            covered=not why,
            start_s=min((start for start in starts if start is not None), default=None),
            run_s=run_s,
            run_from=run_from,
            fetch=fetch,
            preempts=tuple(dict.fromkeys(advert.device for advert, _ in victims)),
            gives_way=tuple(safe_text(f"{advert.name}: {what}") for advert, what in victims),
            why=why,
            against=cell.against,
            shape=shape,
        )

    def _fitting(self, requirement: Requirement) -> tuple[Advert, ...]:
        if requirement not in self._fits:
            self._fits[requirement] = tuple(
                a for a in self.visit.adverts if self.visit.may_have(requirement, a)
            )
        return self._fits[requirement]

    def _start_s(self, peer: str, kind: Kind) -> float | None:
        """Seconds that such a task would wait, as reported by the worker."""
        answer = self.visit.answers[peer]
        quoted = answer.shapes.get(kind)
        if quoted is not None and quoted.start_s is not None:
            return quoted.start_s
        if answer.quote is None:
            return None
        return 0.0 if answer.quote.free else answer.quote.start_s

    def _assign(
        self, task: Task, kind: Kind, willing: Sequence[Advert], run_s: float | None
    ) -> tuple[Advert, int, str]:
        """The device, the bytes that it would fetch, and what it would preempt."""

        def end_s(peer: str) -> float:
            begun_s = self._until[peer] if peer in self._until else self._start_s(peer, kind) or 0.0
            return begun_s + self._fetch(peer, task, kind) / FETCH_RATE + (1.0 if run_s is None else run_s)

        best = min(willing, key=lambda advert: (end_s(advert.peer), advert.peer))
        peer, fetch, ends_s = best.peer, self._fetch(best.peer, task, kind), end_s(best.peer)
        first = peer not in self._until
        quoted = self.visit.answers[peer].shapes.get(kind)
        self.complete = (
            self.complete and run_s is not None and not (first and self._start_s(peer, kind) is None)
        )
        self._until[peer] = ends_s
        self.ends_s = max(self.ends_s, ends_s)
        self._fetched.update((peer, model.sha256) for model in task.files())
        self.fetch += fetch
        return best, fetch, quoted.preempts if quoted is not None and first else ""

    def _fetch(self, peer: str, task: Task, kind: Kind) -> int:
        """Bytes to fetch. The worker says whether it has the task's own model; for the other models only its advert tells."""
        quoted = self.visit.answers[peer].shapes.get(kind)
        others = sum(
            model.size
            for model in task.beside or ()
            if model.sha256 != task.model.sha256  # on another unit
            and (peer, model.sha256) not in self._fetched
            and (peer, model.sha256) not in self._cached
        )
        if (peer, task.model.sha256) in self._fetched or (quoted is not None and quoted.warm):
            return others
        return others + (task.model.size if quoted is None else quoted.fetch or task.model.size)


def _why_not(task: Task, fit: Sequence[Advert], visit: SwarmVisit) -> str:
    note = f"{safe_text(task.note)}\n" if task.note else ""
    if not fit:  # the clauses that keep replicas apart are the scheduler's own
        of_replica = task.replica is not None and note
        everybody = (*visit.adverts, *visit.others)
        if any(match(task.requirement, advert).fits for advert in visit.others):
            return f"{note}none of the devices that fit is trusted"
        return note + (LACKS_SIBLING if of_replica else explain(task.requirement, everybody))
    refusals = [refusal(visit.answers.get(advert.peer), kind_of(task)) for advert in fit]
    lines = [
        f"  {shown_name(advert, 40)}: {safe_text(why.partition(ADVICE)[0], 200)}"
        for advert, why in zip(fit[:5], refusals, strict=False)
    ]
    if len(fit) > 5:
        lines.append(f"  and {len(fit) - 5} more")
    if any(why.startswith(Reason.NOT_ALLOWED) for why in refusals):  # a visitor asked, so its id is of no use
        lines.append(f"Their owners can: sark-node join --allow {task.scheduler}")
    devices = len({advert.device for advert in fit})
    head = f"{devices} device{' fits' if devices == 1 else 's fit'}, none takes it now:"
    return note + "\n".join([head, *lines])


# -- what changed -----------------------------------------------------------------------------------------------------------------------


def plan_changes(before: LivePlan, now: LivePlan) -> list[str]:
    """Changes of substance since the plan was made, a line each; empty if only the load changed, or devices were added.

    If not all devices were looked up, then or now, changes of single devices are left out, since they may only reflect the selection.
    """
    lines: list[str] = []
    if before.content != now.content:
        lines.append("the campaign file was edited")
    lines += [
        f"the model {safe_text(name, 60)} is another file now"
        for name, sha256 in now.models.items()
        if before.models.get(name, sha256) != sha256
    ]
    complete = before.complete and now.complete
    cells = _keyed(now.cells)
    names = before.devices | now.devices
    gone: dict[str, int] = {}
    for key, cell in _keyed(before.cells).items():
        other = cells.get(key)
        if other is None:
            continue
        if cell.covered and not other.covered:
            lines.append(f"{_named(cell)} is no longer covered: {other.why.splitlines()[0]}")
        if not complete:
            continue
        if cell.tasks != other.tasks:
            lines.append(f"{_named(cell)} makes {count(other.tasks, 'task')} now, {cell.tasks} before")
        for device in set(cell.serve) - set(other.serve):
            gone[device] = gone.get(device, 0) + 1
    lines += [
        f"{names.get(device, device)} ({device}) is gone or does not serve any more: {count(number, 'cell')}"
        for device, number in sorted(gone.items())
    ]
    expected = {device for cell in before.cells for device in cell.preempts}
    runs = dict.fromkeys(run for cell in now.cells if set(cell.preempts) - expected for run in cell.gives_way)
    lines += [f"somebody's run would have to give way now: {run}" for run in runs if complete]
    return lines


def _keyed(cells: Sequence[PlanCell]) -> dict[tuple[Any, ...], PlanCell]:
    """The cells by what they measure, and by number among equal ones."""
    alike: Counter[tuple[Any, ...]] = Counter()
    keyed = {}
    for cell in cells:
        key = (cell.model, cell.unit, cell.threads, cell.batch)
        alike[key] += 1
        keyed[*key, alike[key]] = cell
    return keyed


def _named(cell: PlanCell) -> str:
    threads = f" ×{cell.threads}" if cell.threads is not None else ""
    batch = f", batch {cell.batch}" if cell.batch is not None else ""
    return f"{safe_text(cell.model, 60)} × {cell.unit}{threads}{batch}"
