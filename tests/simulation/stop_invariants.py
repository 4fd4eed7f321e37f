"""Invariants over runs that are no longer wanted: they are told to stop, and end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

from tests.simulation.history import Breach, FenceKey, History, Invariant, Kind

SILENCE_S: Final = 12.0
"""No scheduler gives a worker up sooner than this after it sent a renewal that was answered, however fast its clock runs."""
STOP_S: Final = 25.0
"""No scheduler gives up sooner than this after it asked for a stop, if the worker answers and does not confirm the stop."""
FELT_S: Final = 60.0
"""A process that was paused, or had its links cut, may miss messages for this long afterwards."""
CANCEL_S: Final = 10.0
"""A cancel arrives within this time over a link that works. A lease that is not renewed lapses later."""
TOLD_S: Final = 30.0
"""This long after the last trouble an owed stop has reached its worker: by then a loss was noticed, the link was tried again and unanswered
messages were repeated."""


def the_overtaken_are_stopped(history: History) -> Iterator[Breach]:
    """When one of two attempts is over, its worker is told to cancel it, unless something is wrong with that worker or the link, or another
    scheduler leads the campaign there.
    """
    leases: dict[tuple[str, str, int], tuple[str, str]] = {}
    due: dict[tuple[str, str], tuple[float, str, str]] = {}
    trouble: dict[str, float] = {}
    leads: dict[tuple[str, str], str] = {}
    last = history.events[-1].at if history.events else 0.0
    for event in history.of(
        Kind.TAKEN, Kind.BEGAN, Kind.ATTEMPT_ENDED, Kind.CANCEL_RECEIVED, Kind.DEAD, Kind.DIED, Kind.TROUBLE, Kind.SPOKE
    ):  # fmt: skip
        run = (event.worker, event.lease)
        match event.kind:
            case Kind.TAKEN | Kind.BEGAN:
                leases[event.worker, event.task, event.attempt] = run
            case Kind.ATTEMPT_ENDED if event.word == "overtaken":
                held = leases.get((event.worker, event.task, event.attempt))
                places = (event.worker, event.who, event.worker + event.who)
                struck_at = max(trouble.get(place, -1e9) for place in places)
                led = leads.get((event.worker, history.tasks.get(event.task, "")), event.who) == event.who
                if held is not None and led and struck_at < event.at - FELT_S:
                    due[held] = (event.at, event.task, event.who)
            case Kind.SPOKE:
                leads[event.worker, event.campaign] = event.who
                due = {  # the campaign is that scheduler's from now on
                    held: (at, task, who)
                    for held, (at, task, who) in due.items()
                    if who == event.who
                    or (held[0], history.tasks.get(task)) != (event.worker, event.campaign)
                }
            case Kind.CANCEL_RECEIVED | Kind.DEAD:
                due.pop(run, None)
                leases = {name: held for name, held in leases.items() if held != run}
            case Kind.DIED | Kind.TROUBLE:
                struck = event.worker + event.peer  # with a peer: between these two only
                trouble[struck] = event.at
                due = {
                    held: what
                    for held, what in due.items()
                    if struck not in (held[0], what[2], held[0] + what[2])
                }
            case _:
                pass
        for held, (at, task, _) in tuple(due.items()):
            if event.at > at + CANCEL_S:
                del due[held]
                yield Breach("the_overtaken_are_stopped", f"{task} at {held[0]}", at)
    for held, (at, task, _) in due.items():
        if last > at + CANCEL_S:
            yield Breach("the_overtaken_are_stopped", f"{task} at {held[0]}", at)


def cancelled_is_dead(history: History) -> Iterator[Breach]:
    """A cancelled attempt ends when its worker says that nothing runs. If the worker is silent, or does not stop the run in time, the
    scheduler records that it owes the stop.

    Excused: campaigns that are led elsewhere; workers that no longer serve this scheduler; runs whose grant was never heard, where the stop
    is recorded as owed; and runs that a copy of the scheduler started under another fence, which it learns of and cancels when it adopts.
    """
    alive: dict[tuple[str, str], tuple[str, int, FenceKey | None]] = {}
    asked: dict[str, float] = {}
    heard: dict[tuple[str, str], float] = {}
    owed = {(event.who, event.task, event.attempt) for event in history.of(Kind.OWED)}
    leads: dict[tuple[str, str], str] = {}
    excused: set[str] = set()
    for event in history.of(
        Kind.BEGAN,
        Kind.DEAD,
        Kind.DIED,
        Kind.LEFT,
        Kind.HEARD,
        Kind.CANCEL_ASKED,
        Kind.STEPPED_DOWN,
        Kind.REVOKED,
        Kind.SPOKE,
        Kind.ATTEMPT_ENDED,
    ):
        match event.kind:
            case Kind.BEGAN:
                alive[event.worker, event.lease] = (event.task, event.attempt, event.fence)
            case Kind.DEAD | Kind.LEFT:
                alive.pop((event.worker, event.lease), None)
            case Kind.DIED:
                alive = {run: what for run, what in alive.items() if run[0] != event.worker}
            case Kind.HEARD if event.word == "renewed":
                heard[event.who, event.worker] = event.at - (event.number or 0)
            case Kind.SPOKE:
                leads[event.worker, event.campaign] = event.who
            case Kind.CANCEL_ASKED:
                asked.setdefault(event.task, event.at)
            case Kind.STEPPED_DOWN | Kind.REVOKED:
                excused |= {event.campaign, event.worker}
            case Kind.ATTEMPT_ENDED if event.word == "cancelled" and not excused & {
                event.worker,
                history.tasks.get(event.task),
            }:
                silent_s = event.at - heard.get((event.who, event.worker), -1e9)
                waited_s = event.at - asked.get(event.task, event.at)
                runs = {
                    what[:2]
                    for run, what in alive.items()
                    if run[0] == event.worker and event.fence in (None, what[2])
                }
                # without a fence the answer to the commit was lost, and the stop is owed
                known = event.fence is not None
                soon = known and silent_s < SILENCE_S and waited_s < STOP_S
                unsaid = (event.who, event.task, event.attempt) not in owed
                led = leads.get((event.worker, history.tasks.get(event.task, "")), event.who) == event.who
                if (event.task, event.attempt) in runs and led and (soon or unsaid):
                    what = f"{event.task} is cancelled while {event.worker} runs it"
                    yield Breach("cancelled_is_dead", what, event.at)
            case _:
                pass


def owed_stops_are_sent(history: History) -> Iterator[Breach]:
    """A run that continues after its task has ended is told to stop as soon as its worker can be reached again, by a later process too.

    Excused: campaigns that another scheduler leads there, and workers that no longer serve this scheduler.
    """
    alive: set[tuple[str, str]] = set()
    leads: dict[tuple[str, str], str] = {}
    owed: dict[tuple[str, str, str], tuple[float, str]] = {}
    trouble: dict[str, float] = {}
    dead: set[str] = set()
    paused: Counter[str] = Counter()
    excused: set[str] = set()
    for event in history.of(
        Kind.BEGAN, Kind.DEAD, Kind.DIED, Kind.STOP_ORDERED, Kind.OWED, Kind.PAID, Kind.CANCEL_RECEIVED, Kind.UP,
        Kind.PAUSED, Kind.TROUBLE, Kind.SPOKE, Kind.STEPPED_DOWN, Kind.REVOKED, Kind.QUIET, Kind.RESERVED,
    ):  # fmt: skip
        for (who, worker, lease), (at, task) in tuple(owed.items()):
            since = max(at, *(trouble.get(place, at) for place in (who, worker, worker + who)))
            awake = not (paused[who] or paused[worker] or who in dead)
            campaign = history.tasks.get(task, "")
            led = leads.get((worker, campaign), who) == who
            if awake and led and event.at > since + TOLD_S and not excused & {worker, campaign}:
                del owed[who, worker, lease]
                what = f"{who} did not tell {worker} for {event.at - since:.0f} s that {task} has ended"
                yield Breach("owed_stops_are_sent", what, event.at)
        run = (event.worker, event.lease)
        match event.kind:
            case Kind.BEGAN:
                alive.add(run)
            case Kind.OWED if run in alive:
                owed[event.who, event.worker, event.lease] = (event.at, event.task)
            case Kind.DEAD | Kind.STOP_ORDERED | Kind.CANCEL_RECEIVED | Kind.PAID:
                alive.discard(run)
                owed = {each: what for each, what in owed.items() if each[1:] != run}
            case Kind.DIED:
                alive = {each for each in alive if each[0] != event.worker}
                owed = {each: what for each, what in owed.items() if each[1] != event.worker}
                dead.add(event.worker)
            case Kind.UP:
                dead.discard(event.worker)
                trouble[event.worker] = event.at
            case Kind.PAUSED:
                paused[event.worker] += 1 if event.number else -1
                trouble[event.worker] = event.at
            case Kind.TROUBLE:  # with a peer: between these two only
                trouble[event.worker + event.peer] = event.at
            case Kind.SPOKE:
                leads[event.worker, event.campaign] = event.who
            case Kind.STEPPED_DOWN:
                excused.add(event.campaign)
            case Kind.REVOKED:
                excused.add(event.worker)
            case Kind.QUIET:
                owed = {each: (event.at, task) for each, (_, task) in owed.items()}
            case _:
                pass


LASTING: Final[tuple[Invariant, ...]] = (the_overtaken_are_stopped, owed_stops_are_sent)
"""See `scheduler_invariants.LASTING`."""
SAFETY: Final[tuple[Invariant, ...]] = (the_overtaken_are_stopped, cancelled_is_dead, owed_stops_are_sent)
"""Must hold at every moment."""
