"""The plan of a campaign over the swarm as it is now: what would run where, when, for how long, and why not. Pure.

Its hash is over the substance: the campaign, the models, the tasks, and for each cell the devices that fit and would serve us. Load is
not in it. A plan that was kept is compared with a later one before a campaign is submitted under it (`changes`).
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import median

from pydantic import BaseModel, ConfigDict

from protocol.values.advert import Advert
from protocol.values.match import match
from protocol.values.requirement import Requirement
from protocol.values.task import Measure, Task, task_body
from protocol.words import Reason
from results.row.simulated import shown_name
from scheduler.campaign.model import Campaign
from scheduler.core.explain import ADVICE, LACKS_SIBLING, explain
from scheduler.core.ranking import FETCH_RATE, RESTING
from scheduler.models.describe import Models, unseen
from scheduler.planning.tasks import PlannedCell
from scheduler.preview.survey import DeviceAnswer, Kind, SwarmVisit, kind_of
from swarm.base.text import count, safe_text

DIGITS = 12
"""Of the plan's hash."""


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class PlanCell(_Part):
    """One square of the matrix: a model on a unit with a number of threads and a batch."""

    model: str
    unit: str
    threads: int | None
    """None: as many as physical cores."""
    batch: int | None = None
    """None: as the model has it."""
    tasks: int
    """One for each device, class or replica where the campaign asks for that."""
    fit: tuple[str, ...]
    """Ids of the devices that fit."""
    serve: tuple[str, ...]
    """Of these, the ones that would take work from us now."""
    covered: bool
    """Each of its tasks has a device that would serve it."""
    start_s: float | None
    """Until one of them could begin, as they say; None: not known."""
    run_s: float | None
    """What one task takes; None: not known."""
    run_from: str
    """Where that is from: results of this home, or what the devices ran lately."""
    fetch: int
    """Bytes that would have to be fetched."""
    preempts: tuple[str, ...]
    """Ids of devices where a run of others would give way."""
    gives_way: tuple[str, ...]
    """Which runs, in words."""
    why: str
    """Why it is not covered: lines for people."""


class LivePlan(_Part):
    """The whole plan."""

    plan: str
    """Its hash, to be given to submit."""
    campaign: str
    content: str
    """Hash of the campaign file's content, comments left out."""
    models: dict[str, str]
    """Hash of each model."""
    tasks: int
    cells: tuple[PlanCell, ...]
    covered: int
    """Cells."""
    devices: dict[str, str]
    """Names of the devices that fit somewhere, by id."""
    seen: int
    """Devices that were seen at all."""
    complete: bool = True
    """No device that may fit was left out: else there are too many to look at all, and what is said here holds for those seen."""
    total_s: float | None
    """Until all tasks would have ended; None: not known."""
    fetch: int
    notes: tuple[str, ...] = ()
    """What cannot be known here of models that devices fetch themselves."""

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
) -> LivePlan:
    """The plan. `history`: tasks that succeeded here before and how long they took, the latest first."""
    fitting = _Fitting(visit)
    work = _Work(visit.told)
    made = tuple(_cell(cell, tasks, fitting, work, visit, history) for cell, tasks in cells)
    content = _digest(campaign.model_dump(mode="json"))
    hashes = {name: model.sha256 for name, (_, model) in models.items()}
    bodies = [hashlib.sha256(task_body(task)).hexdigest() for _, tasks in cells for task in tasks]
    serving = [sorted(cell.serve) if visit.complete else cell.covered for cell in made]
    substance = [content, sorted(hashes.items()), bodies, serving]
    used = {device for cell in made for device in cell.fit}
    whole = all(cell.covered and cell.run_s is not None for cell in made)
    return LivePlan(
        plan=_digest(substance)[:DIGITS],
        campaign=campaign.campaign,
        content=content,
        models=hashes,
        tasks=len(bodies),
        cells=made,
        covered=sum(cell.covered for cell in made),
        devices={a.device: safe_text(a.name, 40) for a in visit.adverts if a.device in used},
        seen=len({advert.device for advert in visit.adverts}),
        complete=visit.complete,
        total_s=work.ends_s if whole and work.known else None,
        fetch=work.fetch,
        notes=unseen(campaign),
    )


def _digest(value: object) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


class _Fitting:
    """Who fits a requirement: worked out once for each."""

    def __init__(self, visit: SwarmVisit) -> None:
        self._adverts = visit.adverts
        self._known: dict[Requirement, tuple[Advert, ...]] = {}

    def of(self, requirement: Requirement) -> tuple[Advert, ...]:
        if requirement not in self._known:
            self._known[requirement] = tuple(a for a in self._adverts if match(requirement, a).fits)
        return self._known[requirement]


def refusal(told: DeviceAnswer | None, kind: Kind) -> str:
    """Why this worker would not take such a task now, in words; empty: it would."""
    if told is None:
        return "was not asked"
    if told.quote is None:
        return told.why or "did not answer"
    if told.quote.why or told.quote.state in RESTING:
        return told.quote.why or f"is {told.quote.state}"
    quoted = told.shapes.get(kind)
    if quoted is not None and not quoted.fits:
        return "; ".join(quoted.unmet) or "says that it does not fit"
    return ""


def _cell(
    cell: PlannedCell,
    tasks: Sequence[Task],
    fitting: _Fitting,
    work: _Work,
    visit: SwarmVisit,
    history: Sequence[tuple[Task, float]],
) -> PlanCell:
    fits: dict[str, None] = {}
    serves: dict[str, None] = {}
    starts: list[float | None] = []
    lately: list[float] = []
    given: list[_Given] = []
    why = ""
    run_s, run_from = _seen_before(tasks[0], history), "results of this home"
    for task in tasks:
        near, kind = fitting.of(task.requirement), kind_of(task)
        fits |= {advert.device: None for advert in near}
        willing = [a for a in near if not refusal(visit.told.get(a.peer), kind)]
        serves |= {advert.device: None for advert in willing}
        for advert in willing:
            quote = visit.told[advert.peer].quote
            starts.append(work.start_s(advert.peer, kind))
            if quote is not None and quote.run_s is not None:
                lately.append(quote.run_s)
        if willing:
            guess = run_s if run_s is not None else median(lately) if lately else None
            given.append(work.give(task, kind, [advert.peer for advert in willing], guess))
        elif not why:
            why = _why_not(task, near, visit)
    if run_s is None:
        run_s, run_from = (median(lately), "what the devices ran lately") if lately else (None, "")
    known = [start for start in starts if start is not None]
    ways = {advert.peer: advert for advert in visit.adverts}
    victims = [item for item in given if item.preempts]
    return PlanCell(
        model=cell.model.label,
        unit=cell.unit,
        threads=cell.threads,
        batch=cell.batch,
        tasks=len(tasks),
        fit=tuple(fits),
        serve=tuple(serves),
        covered=not why,
        start_s=min(known) if known else None,
        run_s=run_s,
        run_from=run_from,
        fetch=sum(item.fetch for item in given),
        preempts=tuple(dict.fromkeys(ways[item.peer].device for item in victims)),
        gives_way=tuple(
            dict.fromkeys(safe_text(f"{ways[item.peer].name}: {item.preempts}") for item in victims)
        ),
        why=why,
    )


def _why_not(task: Task, near: Sequence[Advert], visit: SwarmVisit) -> str:
    note = f"{safe_text(task.note)}\n" if task.note else ""
    if (
        not near and task.replica is not None and note
    ):  # the clauses that keep replicas apart are ours: no advice is to be had of them
        return note + LACKS_SIBLING
    if not near:
        return note + explain(task.requirement, visit.adverts)
    words = {advert.peer: refusal(visit.told.get(advert.peer), kind_of(task)) for advert in near}
    said = [
        f"  {shown_name(advert, 40)}: {safe_text(words[advert.peer].partition(ADVICE)[0], 200)}"
        for advert in near[:5]
    ]
    more = [f"  and {len(near) - 5} more"] if len(near) > 5 else []
    advice = []
    if any(
        word.startswith(Reason.NOT_ALLOWED) for word in words.values()
    ):  # they were asked by a visitor: its id is of no use
        advice = [f"Their owners can: sark-node join --allow {task.scheduler}"]
    devices = len({advert.device for advert in near})
    head = f"{devices} device{' fits' if devices == 1 else 's fit'}, none takes it now:"
    return note + "\n".join([head, *said, *more, *advice])


def _seen_before(task: Task, history: Sequence[tuple[Task, float]]) -> float | None:
    """What the same model took on the same unit, measured as it would be now; the median of the latest five."""
    took = [
        seconds
        for before, seconds in history
        if (before.model.sha256, before.unit) == (task.model.sha256, task.unit)
        and _alike(before.measure, task.measure)
    ]
    return median(took[:5]) if took else None


def _alike(one: Measure, other: Measure) -> bool:
    return (one.runs, one.loads, one.precision, one.threads, one.batch) == (
        other.runs,
        other.loads,
        other.precision,
        other.threads,
        other.batch,
    )


# -- who would get what ---------------------------------------------------------------------------------------------------------------


class _Given(_Part):
    peer: str
    fetch: int
    preempts: str


class _Work:
    """Tasks dealt out one after the other, each to the worker that would be through with it first: a guess at what will happen."""

    def __init__(self, told: Mapping[str, DeviceAnswer]) -> None:
        self._told = told
        self._until: dict[str, float] = {}
        self._fetched: set[tuple[str, str]] = set()
        self.fetch = 0
        self.ends_s = 0.0
        self.known = True
        """Every wait and every run was."""

    def start_s(self, peer: str, kind: Kind) -> float | None:
        """How long that worker says such a task of our priority would wait."""
        told = self._told[peer]
        quoted = told.shapes.get(kind)
        if quoted is not None and quoted.start_s is not None:
            return quoted.start_s
        if told.quote is None:
            return None
        return 0.0 if told.quote.free else told.quote.start_s

    def give(self, task: Task, kind: Kind, peers: Sequence[str], run_s: float | None) -> _Given:
        """Deal out one task."""
        takes = 1.0 if run_s is None else run_s
        best = min(peers, key=lambda peer: (self._through(peer, task, kind, takes), peer))
        fetch = self._fetch(best, task, kind)
        waits = self._until.get(best, self.start_s(best, kind))
        first = best not in self._until
        self.known = self.known and waits is not None and run_s is not None
        self._until[best] = self._through(best, task, kind, takes)
        self.ends_s = max(self.ends_s, self._until[best])
        self._fetched.add((best, task.model.sha256))
        self.fetch += fetch
        quoted = self._told[best].shapes.get(kind)
        return _Given(
            peer=best, fetch=fetch, preempts=quoted.preempts if quoted is not None and first else ""
        )

    def _through(self, peer: str, task: Task, kind: Kind, takes: float) -> float:
        waits = self._until.get(peer)
        begins = waits if waits is not None else self.start_s(peer, kind) or 0.0
        return begins + self._fetch(peer, task, kind) / FETCH_RATE + takes

    def _fetch(self, peer: str, task: Task, kind: Kind) -> int:
        if (peer, task.model.sha256) in self._fetched:
            return 0
        quoted = self._told[peer].shapes.get(kind)
        if quoted is None:
            return task.model.size
        return 0 if quoted.warm else quoted.fetch or task.model.size


# -- what changed -----------------------------------------------------------------------------------------------------------------------


def changes(kept: LivePlan, now: LivePlan) -> list[str]:
    """What changed in substance since the plan was made, a line each; empty when only load did, or devices came on top.

    When not all devices could be seen, then or now, nothing is said of single ones: others were seen, which is no change.
    """
    told: list[str] = []
    if kept.content != now.content:
        told.append("the campaign file was edited")
    told += [
        f"the model {safe_text(name, 60)} is another file now"
        for name, sha256 in now.models.items()
        if kept.models.get(name, sha256) != sha256
    ]
    complete = kept.complete and now.complete
    before, after = _keyed(kept.cells), _keyed(now.cells)
    names = kept.devices | now.devices
    gone: dict[str, int] = {}
    for key, cell in before.items():
        other = after.get(key)
        if other is None:
            continue
        if cell.covered and not other.covered:
            told.append(f"{_named(cell)} is no longer covered: {other.why.splitlines()[0]}")
        if not complete:
            continue
        if cell.tasks != other.tasks:
            told.append(f"{_named(cell)} makes {count(other.tasks, 'task')} now, {cell.tasks} before")
        for device in set(cell.serve) - set(other.serve):
            gone[device] = gone.get(device, 0) + 1
    told += [
        f"{names.get(device, device)} ({device}) is gone or does not serve any more: {count} cell{'' if count == 1 else 's'}"
        for device, count in sorted(gone.items())
    ]
    expected = {device for cell in kept.cells for device in cell.preempts}
    ways = dict.fromkeys(way for cell in now.cells if set(cell.preempts) - expected for way in cell.gives_way)
    told += [f"somebody's run would have to give way now: {way}" for way in ways if complete]
    return told


def _keyed(cells: Sequence[PlanCell]) -> dict[tuple[str, str, int | None, int | None, int], PlanCell]:
    """By what a cell measures, and the how-manieth of those alike it is: the plain form may ask for one on several devices by name."""
    alike: Counter[tuple[str, str, int | None, int | None]] = Counter()
    keyed: dict[tuple[str, str, int | None, int | None, int], PlanCell] = {}
    for cell in cells:
        key = (cell.model, cell.unit, cell.threads, cell.batch)
        alike[key] += 1
        keyed[*key, alike[key]] = cell
    return keyed


def _named(cell: PlanCell) -> str:
    threads = f" ×{cell.threads}" if cell.threads is not None else ""
    batch = f", batch {cell.batch}" if cell.batch is not None else ""
    return f"{safe_text(cell.model, 60)} × {cell.unit}{threads}{batch}"
