"""What must never happen, and what must happen in the end: each a function over a history, for the model and for real runs alike.

check(history) -> [Breach]     empty: all of them hold
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Final

from tests.simulation.history import Breach, Event, FenceKey, History, Kind

FINAL: Final = frozenset({"succeeded", "failed", "cancelled"})
EXCUSED_S: Final = 30.0
"""Trouble with a worker or an adopter so long before the adoption may still be felt after it."""
Invariant = Callable[[History], Iterator[Breach]]


def check(history: History) -> list[Breach]:
    """Every breach of every invariant, safety first."""
    return [breach for invariant in (*SAFETY, *LIVENESS) for breach in invariant(history)]


# -- what a scheduler writes -----------------------------------------------------------------------------------------------------


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
    """A record is taken only from the worker, attempt and fence that its scheduler has open at that moment."""
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
    """A scheduler wants at most one attempt of a task to run at a time."""
    expected: dict[tuple[str, str], dict[int, str]] = defaultdict(dict)
    for event in history.of(Kind.WANTED, Kind.ATTEMPT_ENDED, Kind.RECORDED, Kind.ENDED):
        runs = expected[event.who, event.task]
        if event.kind is Kind.ENDED:
            runs.clear()
        elif event.kind is not Kind.WANTED:
            runs.pop(event.attempt, None)
        else:
            runs[event.attempt] = event.worker
            if len(runs) > 1:
                yield Breach("one_start", f"{event.task} is wanted as attempts {sorted(runs)}", event.at)


def terminal_is_final(history: History) -> Iterator[Breach]:
    """Nothing happens to a task that has ended."""
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
    """A task is not tried oftener than its campaign allows."""
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
    """Another attempt goes to another worker while there is one."""
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
    """A campaign that was accepted is there at the end, with all its tasks."""
    if history.final is None:
        return
    for event in history.of(Kind.ACCEPTED):
        for task, campaign in history.tasks.items():
            if campaign == event.campaign and task not in history.final:
                yield Breach("accepted_is_durable", f"{task} was accepted and is gone", event.at)


def acknowledged_is_durable(history: History) -> Iterator[Breach]:
    """A result whose worker was told that it may forget it is in a store."""
    if history.stored is None:
        return
    for event in history.of(Kind.ACKNOWLEDGED):
        if event.sha256 not in history.stored:
            yield Breach(
                "acknowledged_is_durable", f"the record {event.sha256[:12]} of {event.task}", event.at
            )


def chains_are_whole(history: History) -> Iterator[Breach]:
    """The chain of events in a store has no gap and no change."""
    for words in history.broken_chains:
        yield Breach("chains_are_whole", words)


# -- what a worker does -------------------------------------------------------------------------------------------------------------


def slots_are_exclusive(history: History) -> Iterator[Breach]:
    """As many runs are alive on a worker as it has slots, never more; on one slot there is one at a time."""
    alive: dict[str, dict[str, int | None]] = defaultdict(dict)
    for event in history.of(Kind.BEGAN, Kind.DEAD, Kind.DIED):
        runs = alive[event.worker]
        if event.kind is Kind.DIED:
            runs.clear()
        elif event.kind is Kind.DEAD:
            runs.pop(event.lease, None)
        else:
            if event.slot is not None and event.slot in runs.values():
                yield Breach("slots_are_exclusive", f"slot {event.slot} of {event.worker}", event.at)
            runs[event.lease] = event.slot
            most = history.slots.get(event.worker)
            if most is not None and len(runs) > most:
                what = f"{len(runs)} runs on {event.worker}, which has {most} slots"
                yield Breach("slots_are_exclusive", what, event.at)


def capacity_holds(history: History) -> Iterator[Breach]:
    """What is reserved on a worker is never more than it has: places, and each dimension by itself."""
    held: dict[str, dict[str, str]] = defaultdict(dict)
    for event in history.of(Kind.TAKEN, Kind.LEFT, Kind.DIED):
        places = held[event.worker]
        if event.kind is Kind.DIED:
            places.clear()
        elif event.kind is Kind.LEFT:
            places.pop(event.lease, None)
        else:
            places[event.lease] = event.task
            most = history.slots.get(event.worker)
            if most is not None and len(places) > most:
                what = f"{len(places)} places given of {most} on {event.worker}"
                yield Breach("capacity_holds", what, event.at)
            for name, there in history.capacity.get(event.worker, {}).items():
                expected = sum(history.needs.get(task, {}).get(name, 0) for task in places.values())
                if expected > there:
                    yield Breach(
                        "capacity_holds", f"{name}: {expected} of {there} on {event.worker}", event.at
                    )


def one_answer(history: History) -> Iterator[Breach]:
    """The same request, however often it comes, gets one lease: in one life a worker grants an attempt once. And fences rise."""
    given: dict[tuple[str, int, str, str, int], str] = {}
    known: set[tuple[str, str]] = set()
    newest: dict[str, tuple[int, int]] = {}
    for event in history.of(Kind.QUEUED, Kind.TAKEN):
        if event.fence is None or (event.worker, event.lease) in known:
            continue  # a ticket comes up: perhaps for another peer, which adopted it
        known.add((event.worker, event.lease))
        name = (event.worker, event.fence[0], event.peer, event.task, event.attempt)
        if name not in given and event.fence <= newest.get(event.worker, (-1, 0)):
            yield Breach(
                "one_answer", f"{event.worker}: {event.fence} after {newest[event.worker]}", event.at
            )
        newest[event.worker] = max(event.fence, newest.get(event.worker, event.fence))
        if given.setdefault(name, event.lease) != event.lease:
            what = (
                f"{event.task} attempt {event.attempt} has {given[name]} and {event.lease} on {event.worker}"
            )
            yield Breach("one_answer", what, event.at)


def intents_come_first(history: History) -> Iterator[Breach]:
    """No worker takes an attempt before the intent is in its scheduler's store: whatever crashes then, no number is used twice."""
    stored: set[tuple[str, int, str]] = set()
    for event in history.of(Kind.COMMITTED, Kind.TAKEN, Kind.QUEUED):
        name = (event.task, event.attempt, event.worker)
        if event.kind is Kind.COMMITTED:
            stored.add(name)
        elif name not in stored:
            what = f"{event.worker} has attempt {event.attempt} of {event.task}, of which no store has the intent"
            yield Breach("intents_come_first", what, event.at)


def no_orphan_run(history: History) -> Iterator[Breach]:
    """No process lives on for more than two seconds after its lease was ended, or after a cancel reached its worker."""
    grace = history.limits.stop_s + history.limits.slack_s
    dead = {(e.worker, e.lease): e.at for e in history.of(Kind.DEAD)}
    died = list(history.of(Kind.DIED))
    alive: set[tuple[str, str]] = set()
    values: set[tuple[str, str]] = set()
    last = history.events[-1].at if history.events else 0.0
    pauses = _pauses(history, last)
    for event in history.of(
        Kind.BEGAN, Kind.DEAD, Kind.DIED, Kind.CANCEL_TOLD, Kind.STOP_ORDERED, Kind.CANCEL_CONFIRMED
    ):
        run = (event.worker, event.lease)
        if event.kind is Kind.DIED:
            alive = {one for one in alive if one[0] != event.worker}
            continue
        if event.kind is Kind.BEGAN:
            alive.add(run)
            continue
        if event.kind is Kind.DEAD:
            alive.discard(run)
            continue
        gone = min((e.at for e in died if e.worker == event.worker and e.at >= event.at), default=None)
        end = dead.get(run, gone)
        if run not in alive or (gone is not None and (end is None or gone < end)):
            continue
        if event.kind is Kind.CANCEL_CONFIRMED:
            if end is None or end > event.at + history.limits.slack_s:
                yield Breach("no_orphan_run", f"{event.lease} lives though its death was confirmed", event.at)
            continue
        until = last if end is None else end
        stood = sum(max(0.0, min(b, until) - max(a, event.at)) for a, b in pauses[event.worker])
        if run not in values and until - event.at - stood > grace:
            values.add(run)
            lived = "to the end" if end is None else f"for {end - event.at:.1f} s"
            yield Breach("no_orphan_run", f"{event.lease} lived on {lived} after {event.kind}", event.at)


def _pauses(history: History, last: float) -> dict[str, list[tuple[float, float]]]:
    """Worker → from, to: when its process could do nothing."""
    by_key: dict[str, list[tuple[float, float]]] = defaultdict(list)
    since: dict[str, list[float]] = defaultdict(list)
    for event in history.of(Kind.PAUSED):
        began = since[event.worker]
        if event.number:
            began.append(event.at)
        elif began:
            first = began[0]
            began.pop()
            if not began:
                by_key[event.worker].append((first, event.at))
    for worker, began in since.items():
        if began:
            by_key[worker].append((began[0], last))
    return by_key


def no_stop_while_timing(history: History) -> Iterator[Breach]:
    """Nobody gives way to a higher priority while being measured."""
    timing: set[tuple[str, str]] = set()
    for event in history.of(Kind.TIMING, Kind.STOP_ORDERED):
        run = (event.worker, event.lease)
        if event.kind is Kind.TIMING:
            (timing.add if event.number else timing.discard)(run)
        elif event.word == "preempted" and run in timing:
            yield Breach("no_stop_while_timing", f"{event.lease} was being timed", event.at)


def preempted_at_most_twice(history: History) -> Iterator[Breach]:
    """A task gives way to others twice at most."""
    times: dict[tuple[str, str], int] = defaultdict(int)
    for event in history.of(Kind.ATTEMPT_ENDED):
        if event.word == "preempted":
            times[event.who, event.task] += 1
            if times[event.who, event.task] > 2:
                yield Breach("preempted_at_most_twice", event.task, event.at)


def every_verb_was_authorised(history: History) -> Iterator[Breach]:
    """Nothing happens at a worker on the word of somebody who may not say it at that time."""
    may: dict[tuple[str, str], set[tuple[str, str]]] = defaultdict(set)
    outcome = False
    for event in history.of(Kind.PERMITTED, Kind.REVOKED, Kind.VERB):
        rights = may[event.worker, event.peer]
        if event.kind is Kind.PERMITTED:
            outcome = True
            rights.add((event.word, event.campaign))
        elif event.kind is Kind.REVOKED:
            rights.clear()
        elif outcome and not rights & {(word, c) for word in (event.word, "*") for c in (event.campaign, "")}:
            what = f"{event.peer} had {event.word} done at {event.worker}"
            yield Breach("every_verb_was_authorised", what, event.at)


def the_signed_model_ran(history: History) -> Iterator[Breach]:
    """The model that a run loads has the hash that its task was signed with."""
    for event in history.of(Kind.BEGAN):
        signed = history.models.get(event.task)
        if signed is not None and event.sha256 and event.sha256 != signed:
            yield Breach("the_signed_model_ran", f"{event.task} ran {event.sha256[:12]}", event.at)


def sent_is_stored(history: History) -> Iterator[Breach]:
    """A worker sends a result only once it is on its disk, or in memory because no disk took it."""
    stored: dict[str, dict[str, bool]] = defaultdict(dict)
    for event in history.of(Kind.BORN, Kind.STORED, Kind.SENT):
        records = stored[event.worker]
        match event.kind:
            case Kind.BORN:
                stored[event.worker] = {sha256: True for sha256, on_disk in records.items() if on_disk}
            case Kind.STORED:
                records[event.sha256] = bool(event.number)
            case _:
                if event.sha256 not in records:
                    yield Breach("sent_is_stored", f"{event.worker} sent {event.sha256[:12]}", event.at)


def let_go_was_answered(history: History) -> Iterator[Breach]:
    """A result waits for its scheduler until one has answered it."""
    answered: set[tuple[str, str]] = set()
    for event in history.of(Kind.ANSWERED, Kind.LET_GO):
        result = (event.worker, event.sha256)
        if event.kind is Kind.ANSWERED:
            answered.add(result)
        elif result not in answered:
            yield Breach("let_go_was_answered", f"{event.worker} let {event.sha256[:12]} go", event.at)


def stored_survives(history: History) -> Iterator[Breach]:
    """After a restart a worker has every record that was on its disk and that it did not remove."""
    stored: dict[str, set[str]] = defaultdict(set)
    restored: dict[str, set[str]] = defaultdict(set)
    for event in history.of(Kind.STORED, Kind.LET_GO, Kind.RESTORED, Kind.BORN):
        records = stored[event.worker]
        match event.kind:
            case Kind.STORED if event.number:
                records.add(event.sha256)
            case Kind.LET_GO if not event.number:
                records.discard(event.sha256)
            case Kind.RESTORED:
                restored[event.worker].add(event.sha256)
            case Kind.BORN:
                lost = records - restored.pop(event.worker, set())
                if lost:
                    yield Breach("stored_survives", f"{event.worker} forgot {len(lost)} results", event.at)
                records -= lost
            case _:
                pass


def the_old_one_has_no_say(history: History) -> Iterator[Breach]:
    """In one life of a worker nothing happens to a campaign under a lower epoch than one that was heard."""
    received: dict[tuple[str, str], tuple[int, str]] = {}
    for event in history.of(Kind.BORN, Kind.SPOKE):
        if event.kind is Kind.BORN:
            received = {key: newest for key, newest in received.items() if key[0] != event.worker}
            continue
        newest = received.get((event.worker, event.campaign), (0, ""))
        lines = (event.number or 0, event.who)
        if lines[0] < newest[0] or (lines[0] == newest[0] and newest[1] not in ("", event.who)):
            what = (
                f"{event.campaign} at {event.worker}: {event.word} by {lines[1]} under epoch {lines[0]},"
                f" {newest[1]} has {newest[0]}"
            )
            yield Breach("the_old_one_has_no_say", what, event.at)
        received[event.worker, event.campaign] = max(newest, lines)


def a_run_has_one_record(history: History) -> Iterator[Breach]:
    """Whoever takes the result of a run has the same one: the old scheduler, and who adopts after it."""
    known: dict[tuple[str, FenceKey | None, str, int], Event] = {}
    for event in history.of(Kind.RECORDED):
        first = known.setdefault((event.worker, event.fence, event.task, event.attempt), event)
        if event.worker not in history.liars and first.sha256 != event.sha256:
            what = f"{event.task} attempt {event.attempt}: {first.who} has another record than {event.who}"
            yield Breach("a_run_has_one_record", what, event.at)


def adoption_repeats_nothing(history: History) -> Iterator[Breach]:
    """Who adopts takes the run that a worker told of, or its result; another attempt comes only after that one failed.

    Excused: what went wrong with that worker, with the adopter or with the links since (and shortly before); and a run that its worker
    was told to stop, be it between its telling of it and the adoption: who had the campaign until then had its user cancel it; and one that
    another who adopts later found too: it is that one's then, and what the earlier may do is a matter of `the_old_one_has_no_say`.
    """
    by_key: dict[tuple[str, str], Event] = {}
    stopped: set[tuple[str, str]] = set()
    trouble: dict[str, float] = {}
    for event in history.of(
        Kind.TROUBLE,
        Kind.DIED,
        Kind.STOP_ORDERED,
        Kind.FOUND,
        Kind.RECORDED,
        Kind.COMMITTED,
        Kind.CANCEL_ASKED,
    ):
        name = (event.who, event.task)
        match event.kind:
            case Kind.TROUBLE if event.peer:  # between these two only
                trouble[event.worker + event.peer] = event.at
            case Kind.TROUBLE | Kind.DIED:
                trouble[event.worker] = event.at
            case Kind.STOP_ORDERED:
                stopped.add((event.worker, event.lease))
                by_key = {key: outcome for key, outcome in by_key.items() if outcome.lease != event.lease}
            case Kind.FOUND if event.word == "running" and (event.worker, event.lease) in stopped:
                pass  # it looked before
            case Kind.FOUND if event.word != "queued":
                by_key = {key: outcome for key, outcome in by_key.items() if key[1] != event.task}
                by_key[name] = event
            case Kind.RECORDED:
                by_key.pop(name, None)
            case Kind.COMMITTED if name in by_key and event.attempt != by_key[name].attempt:
                outcome = by_key.pop(name)
                places = (outcome.worker, event.who, outcome.worker + event.who)
                since = max(trouble.get(place, -1e9) for place in places)
                if since < outcome.at - EXCUSED_S:
                    what = (
                        f"{event.who} begins {event.task} anew, which was {outcome.word} at {outcome.worker}"
                    )
                    yield Breach("adoption_repeats_nothing", what, event.at)
            case _:
                pass


def the_owner_goes_first(history: History) -> Iterator[Breach]:
    """On a device whose owner said so, nobody's ticket comes before one of the owner's."""
    for event in history.of(Kind.TURN):
        if event.number:
            yield Breach("the_owner_goes_first", f"{event.lease} before {event.number} others", event.at)


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
                pass  # found there by who adopts
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


def sizes_are_bounded(history: History) -> Iterator[Breach]:
    """Queues, tables and buffers keep to their limits."""
    for event in history.of(Kind.SIZE):
        if event.number is not None and event.cap is not None and event.number > event.cap:
            yield Breach("sizes_are_bounded", f"{event.word} of {event.who}: {event.number}", event.at)


def no_secret_is_told(history: History) -> Iterator[Breach]:
    """No key and no token stands in a log, an event or a record."""
    for name, text in history.texts.items():
        for secret in history.secrets:
            if secret and secret in text:
                yield Breach("no_secret_is_told", f"{name} holds a secret of {len(secret)} characters")


# -- once faults have stopped -------------------------------------------------------------------------------------------------------


def everything_ends(history: History) -> Iterator[Breach]:
    """Every accepted task reaches a final state within the promised time."""
    if history.final is None:
        return
    accepted = {event.campaign for event in history.of(Kind.ACCEPTED)}
    for task, campaign in history.tasks.items():
        state = history.final.get(task)
        if campaign in accepted and state is not None and state not in FINAL:
            yield Breach("everything_ends", f"{task} is {state}")
    quiet = max((event.at for event in history.of(Kind.QUIET)), default=None)
    if quiet is None:
        return
    for event in history.of(Kind.ENDED):
        if event.at - quiet > history.limits.end_s:
            yield Breach("everything_ends", f"{event.task} took {event.at - quiet:.0f} s", event.at)


def reservations_are_released(history: History) -> Iterator[Breach]:
    """When all tasks have ended, no worker holds anything for them any more."""
    for event in history.of(Kind.RESERVED):
        if event.number:
            yield Breach("reservations_are_released", f"{event.worker} holds {event.number}", event.at)


def healed_workers_are_found(history: History) -> Iterator[Breach]:
    """A worker that is back is a candidate again within the promised time. Looked at where SEEN is told."""
    quiet = max((event.at for event in history.of(Kind.QUIET)), default=None)
    observed: dict[tuple[str, str], float] = {}
    for event in history.of(Kind.SEEN):
        if quiet is not None and event.at >= quiet:
            observed.setdefault((event.who, event.worker), event.at)
    if quiet is None:
        return
    for (who, worker), at in observed.items():
        if at - quiet > history.limits.seek_s + history.limits.slack_s:
            yield Breach("healed_workers_are_found", f"{who} saw {worker} after {at - quiet:.0f} s", at)


def views_agree(history: History) -> Iterator[Breach]:
    """Everybody says the same of a task in the end."""
    values: dict[str, dict[str, str]] = defaultdict(dict)
    for event in history.of(Kind.VIEW):
        values[event.task][event.who] = event.word
    for task, views in values.items():
        if len(set(views.values())) > 1:
            yield Breach("views_agree", f"{task}: {views}")


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
    slots_are_exclusive,
    capacity_holds,
    one_answer,
    intents_come_first,
    no_orphan_run,
    no_stop_while_timing,
    preempted_at_most_twice,
    every_verb_was_authorised,
    the_signed_model_ran,
    sent_is_stored,
    let_go_was_answered,
    stored_survives,
    the_old_one_has_no_say,
    a_run_has_one_record,
    adoption_repeats_nothing,
    the_owner_goes_first,
    replicas_are_apart,
    sizes_are_bounded,
    no_secret_is_told,
)
"""Hold at every moment."""
LIVENESS: Final[tuple[Invariant, ...]] = (
    everything_ends,
    reservations_are_released,
    healed_workers_are_found,
    views_agree,
)
"""Hold once faults have stopped."""
