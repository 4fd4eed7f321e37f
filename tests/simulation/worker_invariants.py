"""Invariants over what happens at a worker."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Final

from tests.simulation.history import Breach, History, Invariant, Kind


def slots_are_exclusive(history: History) -> Iterator[Breach]:
    """A worker never has more live runs than slots, and no two of them on one slot."""
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
    """Reservations on a worker never exceed its capacity, in slots and in each dimension."""
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
    """A repeated request always gets the same lease: in one life a worker grants an attempt once. And fences rise."""
    given: dict[tuple[str, int, str, str, int], str] = {}
    known: set[tuple[str, str]] = set()
    newest: dict[str, tuple[int, int]] = {}
    for event in history.of(Kind.QUEUED, Kind.TAKEN, Kind.ROLLED_BACK):
        if (
            event.kind is Kind.ROLLED_BACK
        ):  # the counter of its lives is set back too, so this is another life
            given = {name: lease for name, lease in given.items() if name[0] != event.worker}
            newest.pop(event.worker, None)
            known = {one for one in known if one[0] != event.worker}
            continue
        if event.fence is None or (event.worker, event.lease) in known:
            continue  # a queued lease gets its turn, perhaps for another peer that adopted it
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


def no_orphan_run(history: History) -> Iterator[Breach]:
    """No process lives for more than two seconds after its lease ended, or after a cancel reached its worker.

    A worker that is set back uses lease names again. A cancel may then mean either run of that name, so such names are left out.
    """
    grace = history.limits.stop_s + history.limits.slack_s
    dead = {(e.worker, e.lease): e.at for e in history.of(Kind.DEAD)}
    died = list(history.of(Kind.DIED))
    tasks: dict[tuple[str, str], set[str]] = defaultdict(set)
    for event in history.of(Kind.BEGAN):
        tasks[event.worker, event.lease].add(event.task)
    alive: set[tuple[str, str]] = set()
    values: set[tuple[str, str]] = set()
    last = history.events[-1].at if history.events else 0.0
    pauses = _pauses(history, last)
    for event in history.of(
        Kind.BEGAN, Kind.DEAD, Kind.DIED, Kind.CANCEL_RECEIVED, Kind.STOP_ORDERED, Kind.CANCEL_CONFIRMED
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
        if run not in alive or len(tasks[run]) > 1 or (gone is not None and (end is None or gone < end)):
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
    """Worker → (from, to) of the times when its process was paused."""
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
    """No run is preempted while it is timed."""
    timing: set[tuple[str, str]] = set()
    for event in history.of(Kind.TIMING, Kind.STOP_ORDERED, Kind.DIED):
        run = (event.worker, event.lease)
        if event.kind is Kind.DIED:
            timing = {one for one in timing if one[0] != event.worker}
        elif event.kind is Kind.TIMING:
            (timing.add if event.number else timing.discard)(run)
        elif event.word == "preempted" and run in timing:
            yield Breach("no_stop_while_timing", f"{event.lease} was being timed", event.at)


def every_verb_was_authorised(history: History) -> Iterator[Breach]:
    """Nothing happens at a worker on a request that its sender may not make at that time."""
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
    """The model that a run loads has the hash in its signed task."""
    for event in history.of(Kind.BEGAN):
        signed = history.models.get(event.task)
        if signed is not None and event.sha256 and event.sha256 != signed:
            yield Breach("the_signed_model_ran", f"{event.task} ran {event.sha256[:12]}", event.at)


def sent_is_stored(history: History) -> Iterator[Breach]:
    """A worker sends a result only once the result is on its disk, or in memory because the disk did not take it."""
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
    """A result waits for its scheduler until one scheduler has answered it."""
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
    """In one life of a worker nothing happens to a campaign under a lower epoch than one under which somebody led it there. A scheduler
    that ends a run of its own under a newer epoch does not lead yet.
    """
    received: dict[tuple[str, str], tuple[int, str]] = {}
    for event in history.of(Kind.BORN, Kind.SPOKE):
        if event.kind is Kind.BORN:
            received = {key: newest for key, newest in received.items() if key[0] != event.worker}
            continue
        newest = received.get((event.worker, event.campaign), (0, ""))
        lines = (event.number or 0, event.who)
        if event.word == "cancel" and lines[0] == newest[0]:
            continue  # the campaign has ended, and a copy of its home owes the same stop
        if lines[0] < newest[0] or (lines[0] == newest[0] and newest[1] not in ("", event.who)):
            what = (
                f"{event.campaign} at {event.worker}: {event.word} by {lines[1]} under epoch {lines[0]},"
                f" {newest[1]} has {newest[0]}"
            )
            yield Breach("the_old_one_has_no_say", what, event.at)
        if event.word not in ("cancel", "release"):
            received[event.worker, event.campaign] = max(newest, lines)


def the_owner_goes_first(history: History) -> Iterator[Breach]:
    """On a device that puts its owner first, no other queued lease comes before one of the owner's."""
    for event in history.of(Kind.TURN):
        if event.number:
            yield Breach("the_owner_goes_first", f"{event.lease} before {event.number} others", event.at)


LASTING: Final[tuple[Invariant, ...]] = (stored_survives,)
"""Invariants over a worker's disk: they ignore what was undone there because the disk was set back to an earlier moment."""
SAFETY: Final[tuple[Invariant, ...]] = (
    slots_are_exclusive,
    capacity_holds,
    one_answer,
    no_orphan_run,
    no_stop_while_timing,
    every_verb_was_authorised,
    the_signed_model_ran,
    sent_is_stored,
    let_go_was_answered,
    stored_survives,
    the_old_one_has_no_say,
    the_owner_goes_first,
)
"""Must hold at every moment."""
