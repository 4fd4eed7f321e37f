"""What a storm left behind: its history from the store and the logs, for the invariants, and its figures."""

from __future__ import annotations

import json
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any, Final

from protocol.values.record import read_record
from scheduler.store.events import check_chain
from scheduler.store.store import Store
from tests.real.chaos import Storm
from tests.real.lab import launches, marked, until
from tests.real.strikes import ON_WORKER, Fault, Kind
from tests.simulation.history import History, Limits
from tests.simulation.history import Kind as Happened

LEAVES_S: Final = 15.0
"""The scheduler process ends within this time when no campaign is left."""
QUIET_S: Final = 3.0
"""Within this time after a campaign's end nothing of it runs anywhere."""
_GIVEN_UP: Final = {
    "task.lost": "lost", "task.refused": "refused", "task.preempted": "preempted",
    "task.cancelled": "cancelled", "task.failed": "failed", "task.retried": "failed",
}  # fmt: skip
_SCHEDULERS: Final = (Kind.SCHEDULER, Kind.FROZEN_SCHEDULER)
_FINAL: Final = {"task.succeeded": "succeeded", "task.failed": "failed", "task.cancelled": "cancelled"}


@dataclass(frozen=True)
class Line:
    """One line of a process's log."""

    at: float
    event: str
    fields: dict[str, Any]


@dataclass(frozen=True)
class Event:
    """An event of a campaign, or of a worker's log. `at`: wall-clock seconds; `device`: the worker's name; `home`: the campaign's home."""

    at: float
    name: str
    task: str | None
    attempt: int | None
    device: str | None
    home: str = ""


@dataclass
class Figures:
    """The figures of a storm. Times in seconds."""

    wall: float
    tasks: int
    attempts: list[int]
    """Number of attempts of each task."""
    begun: int
    """Runs that workers began."""
    recorded: int
    """Records that the schedulers kept."""
    twice: int
    """Tasks that ended more than once, or have more than one record of one attempt."""
    faults: Counter[Kind] = field(default_factory=Counter)
    recovery: dict[Kind, list[float]] = field(default_factory=lambda: defaultdict(list))
    """From the strike until each struck task runs again or has its result. For a scheduler: until its successor's first event. For the gate
    and the server: from their start until they listen."""
    again: dict[Kind, list[float]] = field(default_factory=lambda: defaultdict(list))
    """Like `recovery`, for tasks that another strike delayed meanwhile: their times say nothing about the first strike."""

    @property
    def wasted(self) -> int:
        """Number of runs without a stored record."""
        return self.begun - self.recorded


def lines(storm: Storm, name: str) -> Iterator[Line]:
    """The log of a process, oldest line first, without the lines for people."""
    for text in storm.lab.log(name).splitlines():
        if text.startswith("{"):
            try:
                document = json.loads(text)
                at = datetime.fromisoformat(document["timestamp"]).timestamp()
            except (ValueError, KeyError):  # cut in two by kill -9
                continue
            yield Line(at, str(document["event"]), document)


def wait_until_quiet(storm: Storm) -> list[str]:
    """In words, the processes of the campaign that are still there after its end, once they are no longer excused."""
    lab = storm.lab
    texts: list[str] = []

    def runs() -> list[int]:
        return launches(lab, *(name for name in lab.workers if name in lab.running))

    try:
        until(lambda: not runs(), "no run is left", within=QUIET_S * storm.plan.slow)
    except AssertionError:
        texts.append(f"processes of runs are left although the campaign has ended: {runs()}")
    for home in lab.schedulers:
        gone = partial(_gone, lab.mark_of(home))
        try:
            until(gone, "the scheduler process has ended", within=LEAVES_S * storm.plan.slow)
        except AssertionError:
            texts.append(f"the scheduler process of {home} is left: {marked(lab.mark_of(home))}")
    return texts


def _gone(mark: str) -> bool:
    return not marked(mark)


def history(storm: Storm) -> History:
    """The storm as a history for the invariants; its clock starts with the campaign."""
    result = History(
        limits=Limits(slack_s=1.0 * storm.plan.slow), slots=dict.fromkeys(storm.lab.workers, storm.plan.slots)
    )
    result.final = {}
    names: dict[str, str] = {}
    for name in storm.lab.workers:
        _worker(storm, name, result, names)
    for home in storm.lab.schedulers:
        _scheduler(storm, home, result, names)
    result.add(storm.ended - storm.began, Happened.QUIET)
    result.texts = {name: storm.lab.log(name) for name in ("gate", *storm.lab.workers)}
    return result.sorted()


def _worker(storm: Storm, name: str, found: History, names: dict[str, str]) -> None:
    frozen = [
        (f.at, f.at + f.lasts) for f in storm.faults if (f.kind, f.victim) == (Kind.FROZEN_WORKER, name)
    ]
    for fault in storm.faults:
        if (fault.kind, fault.victim) == (Kind.WORKER, name):
            found.add(fault.over - storm.began, Happened.DIED, worker=name)
    alone = storm.plan.slots == 1
    in_turn = alone and len(storm.lab.schedulers) == 1  # then runs begin in the order of their grants
    for line in lines(storm, name):
        at, result = line.at - storm.began, line.fields
        run = {"worker": name, "lease": result.get("lease", "")}
        match line.event:
            case "worker.up":
                names[result["peer"]] = name
                found.add(at, Happened.BORN, worker=name)
            case "run.began":
                fence = tuple(result["fence"])
                found.add(
                    at,
                    Happened.BEGAN,
                    **run,
                    task=result["task"],
                    attempt=result["attempt"],
                    fence=fence,
                    slot=0 if alone else None,
                )
                found.add(
                    at,
                    Happened.TAKEN,
                    **run,
                    task=result["task"],
                    attempt=result["attempt"],
                    fence=fence if in_turn else None,
                )
            case "run.ended":
                found.add(at, Happened.LEFT, **run)
                found.add(at, Happened.DEAD, **run)
            case "run.stopping" if not any(begun - 3 <= line.at <= over for begun, over in frozen):
                found.add(at, Happened.STOP_ORDERED, **run, word=result["reason"])
            case "result.settled" if result["answer"] == "accepted":
                record = f"{result['task']}/{result['attempt']}/{name}"
                found.add(at, Happened.ACKNOWLEDGED, worker=name, task=result["task"], sha256=record)
            case _:
                pass


def _scheduler(storm: Storm, home: str, found: History, names: dict[str, str]) -> None:
    stored = {
        (task, attempt): (names.get(worker, str(worker)), read_record(body).fence.key())
        for task, attempt, worker, body in storm.lab.ask(
            home, "SELECT task, attempt, worker, body FROM records"
        )
    }
    found.stored = (found.stored or frozenset()) | {
        f"{task}/{attempt}/{worker}" for (task, attempt), (worker, _) in stored.items()
    }
    with Store(storm.lab.home(home).store) as store:
        for campaign in [campaign for whose, campaign in storm.campaigns if whose == home]:
            _campaign(storm, home, campaign, store, stored, found, names)


def _campaign(
    storm: Storm,
    home: str,
    campaign: str,
    store: Store,
    stored: Mapping[tuple[str, int], tuple[str, tuple[int, int]]],
    found: History,
    names: Mapping[str, str],
) -> None:
    row = store.campaigns.get(campaign)
    assert row is not None, f"{campaign} is gone from the store"
    found.attempts[campaign] = row.attempts
    final = {task.id: str(task.state) for task in store.tasks.all(campaign)}
    found.final = (found.final or {}) | final
    found.tasks |= dict.fromkeys(final, campaign)
    broken = check_chain(store.events.all(campaign), store.events.count(campaign))
    found.broken_chains += () if broken is None else (f"{campaign}: {broken.why}",)
    for event in store.events.all(campaign):
        at, task, result = event.at - storm.began, event.task or "", event.fields
        about = {"who": home, "task": task, "attempt": result.get("attempt", 0)}
        if event.name == "campaign.created":
            found.add(at, Happened.ACCEPTED, who=home, campaign=campaign)
        if event.name == "task.committing":
            found.add(at, Happened.COMMITTED, **about, worker=names.get(result["worker"], result["worker"]))
        record = stored.get((task, result.get("attempt", 0)))
        if event.name in ("task.succeeded", "task.failed", "task.retried") and record is not None:
            worker, fence = record
            word = _FINAL.get(event.name, "pending")
            tried = int(event.name == "task.retried")
            found.add(at, Happened.RECORDED, **about, worker=worker, fence=fence, word=word, number=tried)
        elif event.name in _GIVEN_UP and result.get("attempt"):
            found.add(at, Happened.ATTEMPT_ENDED, **about, word=_GIVEN_UP[event.name])
        if event.name in _FINAL:
            found.add(at, Happened.ENDED, who=home, task=task, word=_FINAL[event.name])


def figures(storm: Storm) -> Figures:
    """Counts and times. A strike that hit nothing running counts only among the faults."""
    lab = storm.lab
    begun = sum(line.event == "run.began" for name in lab.workers for line in lines(storm, name))
    events = tuple(event for home in lab.schedulers for event in _events(storm, home))
    attempts = [row[0] for home in lab.schedulers for row in lab.ask(home, "SELECT attempt FROM tasks")]
    records = [row for home in lab.schedulers for row in lab.ask(home, "SELECT task, attempt FROM records")]
    ends = Counter(event.task for event in events if event.name in _FINAL)
    twice = {task for (task, _), count in Counter(records).items() if count > 1}
    twice |= {task for task, count in ends.items() if task is not None and count > 1}
    result = Figures(
        storm.ended - storm.began, len(attempts), attempts, begun, len(records), len(twice),
        Counter(fault.kind for fault in storm.faults),
    )  # fmt: skip
    for kind, seconds in storm.back.items():
        result.recovery[kind] += seconds
    begins = tuple(
        Event(line.at, line.event, line.fields["task"], line.fields["attempt"], name)
        for name in lab.workers
        for line in lines(storm, name)
        if line.event == "run.began"
    )
    for fault in storm.faults:
        if fault.kind in ON_WORKER:
            for task in fault.timed:
                back = runs_again(fault, task, events, begins)
                lists = result.again if hindered(fault, task, back, storm.faults, events) else result.recovery
                lists[fault.kind].append(back - fault.at)
        elif fault.kind is Kind.SCHEDULER:
            own = [event for event in events if event.home == fault.victim]
            result.recovery[fault.kind] += succeeded_after(fault, own)
    return result


def _events(storm: Storm, home: str) -> Iterator[Event]:
    words = "SELECT at, name, task, json_extract(fields, '$.attempt'), json_extract(fields, '$.device') FROM events"
    for row in storm.lab.ask(home, f"{words} ORDER BY at, seq"):
        yield Event(*row, home=home)


def runs_again(fault: Fault, task: str, events: Sequence[Event], begins: Sequence[Event]) -> float:
    """When a run of the task began under a later attempt than the struck one, or its result was there (wall-clock seconds)."""
    held = fault.held[task]
    ends = (event.at for event in events if event.task == task and event.name in _FINAL)
    later = (begin.at for begin in begins if begin.task == task and (begin.attempt or 0) > held)
    return min((at for at in (*ends, *later) if at > fault.at), default=float("inf"))


def hindered(fault: Fault, task: str, back: float, faults: Sequence[Fault], events: Sequence[Event]) -> bool:
    """Whether another strike was felt before the task ran again: at the scheduler, at a worker that had the task, or at one that was to get
    it.
    """
    request = {event.device for event in events if event.task == task and event.at < back}
    there = request | {fault.victim}
    return any(
        other is not fault
        and (other.kind in _SCHEDULERS or (other.kind in ON_WORKER and other.victim in there))
        and other.at < back
        and over_at(other, events) > fault.at
        for other in faults
    )


def over_at(fault: Fault, events: Sequence[Event]) -> float:
    """When the fault stopped having effects. A killed scheduler is missed until its successor has taken up the campaign."""
    if fault.kind is not Kind.SCHEDULER:
        return fault.at + fault.lasts
    return next((e.at for e in events if e.name == "campaign.adopted" and e.at > fault.at), float("inf"))


def succeeded_after(fault: Fault, events: Sequence[Event]) -> list[float]:
    """Seconds until the successor of a killed scheduler had its first grant or result; empty: nothing was left to do."""
    since, words = over_at(fault, events), ("task.granted", "task.queued", *_FINAL)
    first = next((event.at for event in events if event.at > since and event.name in words), None)
    return [] if first is None else [first - fault.at]


def percentiles(values: Sequence[float]) -> str:
    """`p50   p90   max   n`, in seconds."""
    if not values:
        return f"{'–':>8} {'–':>8} {'–':>8} {0:5d}"
    ordered = sorted(values)
    p90 = ordered[round(0.9 * (len(ordered) - 1))]
    return f"{statistics.median(ordered):8.2f} {p90:8.2f} {ordered[-1]:8.2f} {len(ordered):5d}"
