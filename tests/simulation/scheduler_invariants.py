"""Invariants over what a scheduler writes and decides."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from typing import Final

from tests.simulation.history import FINAL, Breach, Event, FenceKey, History, Invariant, Kind
from tests.simulation.sittings import sittings_are_apart

EXCUSED_S: Final = 30.0
"""Trouble with a worker or an adopter may still have effects for this long, at an adoption."""
UNSTORED_S: Final = 1.2
"""Within this time a start is stored, with the next beat."""
DEADLINE_S: Final = 8.5
"""No run is past its deadline sooner than this after its grant, however fast its scheduler's clock runs."""
FIRST_WORD_S: Final = 5.1
"""The same for a run that its scheduler has heard nothing of."""
ROUNDED_S: Final = 0.001
"""Decision times are reported in milliseconds."""


def one_record(history: History) -> Iterator[Breach]:
    """At most one record decides a task."""
    decided: dict[tuple[str, str], Event] = {}
    for event in history.of(Kind.RECORDED):
        if event.word not in FINAL:
            continue
        before = decided.setdefault((event.who, event.task), event)
        if before is not event:
            yield Breach(
                "one_record",
                f"{event.task} is {before.word} by attempt {before.attempt}, "
                f"then {event.word} by attempt {event.attempt}",
                event.at,
            )


def no_stale_record(history: History) -> Iterator[Breach]:
    """A scheduler takes a record only from the worker, attempt and fence that it has open at that moment."""
    open_: dict[tuple[str, str, int], str] = {}
    granted: dict[tuple[str, str, int], set[tuple[int, int] | None]] = defaultdict(set)
    for event in history.of(
        Kind.COMMITTED, Kind.ATTEMPT_ENDED, Kind.RECORDED, Kind.ENDED, Kind.TAKEN, Kind.QUEUED, Kind.WANTED
    ):
        name = (event.who, event.task, event.attempt)
        match event.kind:
            case Kind.COMMITTED:
                open_[name] = event.worker
            case Kind.ATTEMPT_ENDED:
                open_.pop(name, None)
            case Kind.TAKEN | Kind.QUEUED | Kind.WANTED:
                if event.fence is not None:
                    granted[event.worker, event.task, event.attempt].add(event.fence)
            case Kind.ENDED:
                for other in [key for key in open_ if key[:2] == name[:2]]:
                    del open_[other]
            case _:
                worker = open_.pop(name, None)
                if worker is None:
                    yield Breach(
                        "no_stale_record", f"{event.task} attempt {event.attempt} was over", event.at
                    )
                elif worker != event.worker:
                    yield Breach("no_stale_record", f"{event.task} was given to {worker}", event.at)
                elif event.fence not in granted.get((event.worker, event.task, event.attempt), {event.fence}):
                    yield Breach("no_stale_record", f"{event.task}: nobody granted {event.fence}", event.at)


def one_start(history: History) -> Iterator[Breach]:
    """A scheduler wants at most one attempt of a task to run at a time, and a second one beside a run that is past its deadline.

    Excused: a start that was sent just before the scheduler was killed, or before the moment to which it is set back, and that is not on
    its disk. The next process may ask elsewhere while that worker is out of reach. A grant is on disk at once.
    """
    expected: dict[tuple[str, str], dict[int, float]] = defaultdict(dict)
    beside: set[tuple[str, str]] = set()
    images: dict[tuple[str, int | None], float] = {}

    def forget(who: str, moment: float) -> None:
        for name, wanted in expected.items():
            if name[0] == who:
                expected[name] = {one: at for one, at in wanted.items() if at < moment - UNSTORED_S}

    for event in history.of(
        Kind.COMMITTED, Kind.WANTED, Kind.ATTEMPT_ENDED, Kind.RECORDED, Kind.ENDED, Kind.DIED, Kind.IMAGED, Kind.ROLLED_BACK
    ):  # fmt: skip
        runs = expected[event.who, event.task]
        match event.kind:
            case Kind.DIED:
                forget(event.worker, event.at)
            case Kind.IMAGED:
                images[event.who, event.number] = event.at
            case Kind.ROLLED_BACK if event.who:
                forget(event.who, images[event.who, event.number])
            case Kind.COMMITTED:
                if event.word == "beside":
                    beside.add((event.who, event.task))
            case Kind.ENDED:
                runs.clear()
            case Kind.WANTED:
                on_disk = event.number is None  # not sent, but stored
                runs[event.attempt] = min(runs.get(event.attempt, event.at), -1e9 if on_disk else event.at)
                second = (event.who, event.task) in beside
                if event.number and not second:
                    what = f"{event.task} is started, and asked for elsewhere on disk"
                    yield Breach("one_start", what, event.at)
                if len(runs) > (2 if second else 1):
                    yield Breach("one_start", f"{event.task} is wanted as attempts {sorted(runs)}", event.at)
            case _:
                runs.pop(event.attempt, None)


def deadlines_pass_first(history: History) -> Iterator[Breach]:
    """No run gets a hedge beside it before its scheduler could know that the run takes too long."""
    wanted: dict[tuple[str, str], dict[int, float]] = defaultdict(dict)
    reported: dict[tuple[str, str, int], float] = {}
    for event in history.of(
        Kind.UP, Kind.COMMITTED, Kind.WANTED, Kind.REPORTED, Kind.ATTEMPT_ENDED, Kind.RECORDED
    ):
        if event.kind is Kind.UP:  # a new process knows nothing of what earlier ones heard
            reported = {key: at for key, at in reported.items() if key[0] != event.worker}
            continue
        runs = wanted[event.who, event.task]
        match event.kind:
            case Kind.COMMITTED if event.word == "beside":
                for attempt, granted_at in runs.items():
                    heard = (
                        reported.get((event.who, event.task, attempt), math.inf)
                        < event.decided_at - ROUNDED_S
                    )
                    age_s = event.decided_at - granted_at
                    if age_s < (DEADLINE_S if heard else FIRST_WORD_S):
                        what = f"{event.task} is hedged {age_s:.1f} s after it was granted"
                        yield Breach("deadlines_pass_first", what, event.at)
            case Kind.COMMITTED:
                pass
            case Kind.REPORTED:
                reported.setdefault((event.who, event.task, event.attempt), event.at)
            case Kind.WANTED:
                runs.setdefault(event.attempt, event.decided_at)
            case _:
                runs.pop(event.attempt, None)


def what_is_held_is_hedged(history: History) -> Iterator[Breach]:
    """No worker keeps a task longer than its scheduler allows any run, while another suitable worker is idle."""
    for event in history.of(Kind.HELD):
        what = f"{event.task} is at {event.worker} for {event.number} s, and nobody else was asked"
        yield Breach("what_is_held_is_hedged", what, event.at)


def terminal_is_final(history: History) -> Iterator[Breach]:
    """Nothing happens to a task after its end."""
    ended: dict[tuple[str, str], str] = {}
    for event in history.of(Kind.ENDED, Kind.COMMITTED, Kind.WANTED, Kind.RECORDED, Kind.VIEW):
        before = ended.get((event.who, event.task))
        if event.kind is Kind.ENDED:
            ended.setdefault((event.who, event.task), event.word)
        if before is None or (event.kind is Kind.VIEW and event.word == before):
            continue
        what = f"{event.task} was {before}, then came {event.kind} {event.word}".rstrip()
        yield Breach("terminal_is_final", what, event.at)


def attempts_are_bounded(history: History) -> Iterator[Breach]:
    """A task is not tried more often than its campaign allows."""
    tries: dict[tuple[str, str], int] = defaultdict(int)
    for event in history.of(Kind.ATTEMPT_ENDED, Kind.RECORDED):
        counts = event.word == "lost" if event.kind is Kind.ATTEMPT_ENDED else bool(event.number)
        if not counts:
            continue
        tries[event.who, event.task] += 1
        most = history.attempts.get(history.tasks.get(event.task, ""))
        if most is not None and tries[event.who, event.task] > most:
            what = f"{event.task} had {tries[event.who, event.task]} tries of {most}"
            yield Breach("attempts_are_bounded", what, event.at)


def attempts_go_elsewhere(history: History) -> Iterator[Breach]:
    """The next attempt goes to another worker while there is one."""
    tried: dict[tuple[str, str], set[str]] = defaultdict(set)
    at: dict[tuple[str, str, int], str] = {}
    for event in history.of(Kind.COMMITTED, Kind.ATTEMPT_ENDED, Kind.RECORDED):
        task = (event.who, event.task)
        if event.kind is Kind.COMMITTED:
            at[*task, event.attempt] = event.worker
            if event.worker in tried[task] and event.number:
                what = f"{event.task} went to {event.worker} again, {event.number} others could have had it"
                yield Breach("attempts_go_elsewhere", what, event.at)
        elif (event.kind is Kind.ATTEMPT_ENDED and event.word == "lost") or event.number:
            tried[task].add(at.get((*task, event.attempt), ""))


def accepted_is_durable(history: History) -> Iterator[Breach]:
    """An accepted campaign is there at the end, with all its tasks."""
    if history.final is None:
        return
    for event in history.of(Kind.ACCEPTED):
        for task, campaign in history.tasks.items():
            if campaign == event.campaign and task not in history.final:
                yield Breach("accepted_is_durable", f"{task} was accepted and is gone", event.at)


def acknowledged_is_durable(history: History) -> Iterator[Breach]:
    """A result whose worker received an acknowledgement is in a store."""
    if history.stored is None:
        return
    for event in history.of(Kind.ACKNOWLEDGED):
        if event.sha256 not in history.stored:
            yield Breach(
                "acknowledged_is_durable", f"the record {event.sha256[:12]} of {event.task}", event.at
            )


def chains_are_whole(history: History) -> Iterator[Breach]:
    """The chain of events in a store has no gap and no alteration."""
    for words in history.broken_chains:
        yield Breach("chains_are_whole", words)


def intents_come_first(history: History) -> Iterator[Breach]:
    """No worker takes an attempt before its intent is in the scheduler's store. So no crash makes a scheduler use a number twice."""
    stored: set[tuple[str, int, str]] = set()
    for event in history.of(Kind.COMMITTED, Kind.TAKEN, Kind.QUEUED):
        name = (event.task, event.attempt, event.worker)
        if event.kind is Kind.COMMITTED:
            stored.add(name)
        elif name not in stored:
            what = f"{event.worker} has attempt {event.attempt} of {event.task}, of which no store has the intent"
            yield Breach("intents_come_first", what, event.at)


def preempted_at_most_twice(history: History) -> Iterator[Breach]:
    """A task is preempted at most twice."""
    times: dict[tuple[str, str], int] = defaultdict(int)
    for event in history.of(Kind.ATTEMPT_ENDED):
        if event.word == "preempted":
            times[event.who, event.task] += 1
            if times[event.who, event.task] > 2:
                yield Breach("preempted_at_most_twice", event.task, event.at)


def a_run_has_one_record(history: History) -> Iterator[Breach]:
    """All schedulers that take the result of a run take the same one: the former leader and each adopter. A worker that is set back counts
    its lives from there again, and may use the name of a run twice; records that it stored since then may still be on their way.
    """
    known: dict[tuple[str, FenceKey | None, str, int], Event] = {}
    stored: set[tuple[str, str]] = set()
    undone: set[tuple[str, str]] = set()
    for event in history.of(Kind.STORED, Kind.RESTORED, Kind.RECORDED, Kind.ROLLED_BACK):
        record = (event.worker, event.sha256)
        match event.kind:
            case Kind.STORED:
                stored.add(record)
            case Kind.RESTORED:
                undone.discard(record)
            case Kind.ROLLED_BACK:
                undone |= {(worker, sha256) for worker, sha256 in stored if worker == event.worker}
                known = {key: first for key, first in known.items() if key[0] != event.worker}
            case _:
                pass
        if event.kind is not Kind.RECORDED or record in undone:
            continue
        first = known.setdefault((event.worker, event.fence, event.task, event.attempt), event)
        if event.worker not in history.liars and first.sha256 != event.sha256:
            what = f"{event.task} attempt {event.attempt}: {first.who} has another record than {event.who}"
            yield Breach("a_run_has_one_record", what, event.at)


def adoption_repeats_nothing(history: History) -> Iterator[Breach]:
    """An adopter takes over the run that a worker reported, or its result. Another attempt comes only after that run failed.

    Excused: trouble with that worker, with the adopter or with the links since then (and shortly before); a run whose renewals were not
    heard since a message between the two was delayed, so that it counted as lost in the end; a run that its worker was ordered to stop,
    also between its report and the adoption; a run that a user of the former leader cancelled; and a run that a later adopter, or a copy of
    the adopter's home, has too, or whose result another adopter took that leads the campaign at that worker. Such a run belongs to that
    other scheduler, and what the rest may do is a matter of `the_old_one_has_no_say`.
    """
    by_key: dict[tuple[str, str], Event] = {}
    stopped: set[tuple[str, str]] = set()
    found: set[tuple[str, str]] = set()
    leads: dict[tuple[str, str], str] = {}
    cancelled: set[str] = set()
    trouble: dict[str, float] = {}
    delayed: dict[str, float] = {}
    for event in history.of(
        Kind.SPOKE,
        Kind.DELAYED,
        Kind.HEARD,
        Kind.PAUSED,
        Kind.TROUBLE,
        Kind.DIED,
        Kind.STOP_ORDERED,
        Kind.CANCEL_RECEIVED,
        Kind.FOUND,
        Kind.RECORDED,
        Kind.COMMITTED,
        Kind.CANCEL_ASKED,
    ):
        name = (event.who, event.task)
        led = leads.get((event.worker, history.tasks.get(event.task, ""))) == event.who
        match event.kind:
            case Kind.SPOKE:
                leads[event.worker, event.campaign] = event.who
            case Kind.DELAYED:
                delayed[event.worker + event.peer] = event.at
            case Kind.HEARD if event.word == "renewed":
                delayed.pop(event.worker + event.who, None)
            case Kind.HEARD:
                pass
            case Kind.TROUBLE if event.peer:  # between these two only
                trouble[event.worker + event.peer] = event.at
            case Kind.TROUBLE | Kind.DIED | Kind.PAUSED:  # a paused process continues from what it saw before
                trouble[event.worker] = event.at
            case Kind.STOP_ORDERED | Kind.CANCEL_RECEIVED:  # the latter of a run whose result no disk took
                stopped.add((event.worker, event.lease))
                by_key = {key: outcome for key, outcome in by_key.items() if outcome.lease != event.lease}
            case Kind.CANCEL_ASKED:
                cancelled.add(event.task)
                by_key = {key: outcome for key, outcome in by_key.items() if key[1] != event.task}
            case Kind.FOUND if event.word == "running" and (event.worker, event.lease) in stopped:
                pass  # the adopter looked before
            case Kind.FOUND if event.task in cancelled and event.word == "over":
                pass  # the former leader may take its result before the adoption, which leaves none
            case Kind.FOUND if event.word != "queued":
                by_key = {key: outcome for key, outcome in by_key.items() if key[1] != event.task}
                by_key[name] = event
                found.add(name)
            case Kind.RECORDED if name in found and led:
                by_key = {key: outcome for key, outcome in by_key.items() if key[1] != event.task}
            case Kind.RECORDED:
                by_key.pop(name, None)
            case Kind.COMMITTED if event.word == "beside":
                by_key.pop(name, None)  # the run takes too long
            case Kind.COMMITTED if event.number is None and event.word != "beside" and name not in by_key:
                by_key = {  # a copy of this home has it too and may lead it
                    key: outcome
                    for key, outcome in by_key.items()
                    if (key[1], outcome.attempt) != (event.task, event.attempt)
                }
            case Kind.COMMITTED if name in by_key and event.attempt != by_key[name].attempt:
                outcome = by_key.pop(name)
                places = (outcome.worker, event.who, outcome.worker + event.who)
                since = max(delayed.get(places[-1], -1e9), *(trouble.get(place, -1e9) for place in places))
                if since < outcome.at - EXCUSED_S:
                    what = (
                        f"{event.who} begins {event.task} anew, which was {outcome.word} at {outcome.worker}"
                    )
                    yield Breach("adoption_repeats_nothing", what, event.at)
            case _:
                pass


def replicas_are_apart(history: History) -> Iterator[Breach]:
    """No two replicas of one task are wanted on the same device."""
    at: dict[tuple[str, str], dict[str, str]] = defaultdict(dict)
    tickets: dict[tuple[str, str, int], str] = {}
    for event in history.of(Kind.COMMITTED, Kind.ATTEMPT_ENDED, Kind.RECORDED, Kind.ENDED):
        cell = history.siblings.get(event.task)
        if cell is None:
            continue
        name = (event.who, event.task, event.attempt)
        match event.kind:
            case Kind.COMMITTED if event.number is None:
                pass  # found there by the adopter
            case Kind.COMMITTED:
                tickets[name] = event.worker
                others = [
                    task
                    for (who, task, _), worker in tickets.items()
                    if who == event.who and worker == event.worker and history.siblings[task] == cell
                ]
                others += [task for task, worker in at[event.who, cell].items() if worker == event.worker]
                if set(others) - {event.task}:
                    what = f"{event.task} and {others[0]} at {event.worker}"
                    yield Breach("replicas_are_apart", what, event.at)
            case Kind.ATTEMPT_ENDED:
                tickets.pop(name, None)
            case Kind.RECORDED:
                tickets.pop(name, None)
                if event.word == "succeeded":
                    at[event.who, cell][event.task] = event.worker
            case _:
                tickets = {key: worker for key, worker in tickets.items() if key[:2] != name[:2]}


def who_was_superseded_stops(history: History) -> Iterator[Breach]:
    """A scheduler that was shown the proof that another one leads a campaign asks nobody about that campaign any more, and fails none of
    its tasks.
    """
    over: set[tuple[str, str]] = set()
    for event in history.of(Kind.STEPPED_DOWN, Kind.FOUND, Kind.DIED, Kind.COMMITTED, Kind.ENDED):
        campaign = event.campaign or history.tasks.get(event.task, "")
        match event.kind:
            case Kind.STEPPED_DOWN:
                over.add((event.who, campaign))
            case Kind.FOUND:
                over.discard((event.who, campaign))  # it adopts the campaign back
            case Kind.DIED:  # perhaps before that was on disk
                over = {each for each in over if each[0] != event.worker}
            case _ if (event.who, campaign) in over and event.word != "cancelled":
                what = f"{event.who} has {event.task} {event.word or event.kind}, which is led elsewhere"
                yield Breach("who_was_superseded_stops", what, event.at)


def silence_is_noticed(history: History) -> Iterator[Breach]:
    """What a worker holds counts as lost once the worker was silent for the time of a lease."""
    for event in history.of(Kind.SILENT):
        what = f"{event.who} counts on {event.worker}, which it has not heard for {event.number} s"
        yield Breach("silence_is_noticed", what, event.at)


LASTING: Final[tuple[Invariant, ...]] = (
    one_record,
    no_stale_record,
    one_start,
    terminal_is_final,
    attempts_are_bounded,
    attempts_go_elsewhere,
    acknowledged_is_durable,
    preempted_at_most_twice,
    replicas_are_apart,
    sittings_are_apart,
    deadlines_pass_first,
)
"""Invariants over a scheduler's disk: they ignore what was undone there because the disk was set back to an earlier moment."""
SAFETY: Final[tuple[Invariant, ...]] = (
    one_record,
    no_stale_record,
    one_start,
    terminal_is_final,
    attempts_are_bounded,
    attempts_go_elsewhere,
    accepted_is_durable,
    acknowledged_is_durable,
    chains_are_whole,
    intents_come_first,
    preempted_at_most_twice,
    a_run_has_one_record,
    adoption_repeats_nothing,
    replicas_are_apart,
    sittings_are_apart,
    who_was_superseded_stops,
    silence_is_noticed,
    deadlines_pass_first,
    what_is_held_is_hedged,
)
"""Must hold at every moment."""
