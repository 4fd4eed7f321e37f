"""What must never happen, and what must happen in the end. Each invariant is a function over a history, of the model or of real processes.

check(history) -> [Breach]     empty: every invariant holds
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Final

from tests.simulation import scheduler_invariants, stop_invariants, worker_invariants
from tests.simulation.history import FINAL, Breach, History, Invariant, Kind


def check(history: History) -> list[Breach]:
    """Every breach of every invariant, safety first."""
    kept = history.kept()
    lasting = {
        part for room in (scheduler_invariants, stop_invariants, worker_invariants) for part in room.LASTING
    }
    each = (invariant(kept if invariant in lasting else history) for invariant in (*SAFETY, *LIVENESS))
    return [breach for breaches in each for breach in breaches]


def sizes_are_bounded(history: History) -> Iterator[Breach]:
    """Queues, tables and buffers stay within their limits."""
    for event in history.of(Kind.SIZE):
        if event.number is not None and event.cap is not None and event.number > event.cap:
            yield Breach("sizes_are_bounded", f"{event.word} of {event.who}: {event.number}", event.at)


def no_secret_is_exposed(history: History) -> Iterator[Breach]:
    """No key and no token appears in a log, an event or a record."""
    for name, text in history.texts.items():
        for secret in history.secrets:
            if secret and secret in text:
                yield Breach("no_secret_is_exposed", f"{name} holds a secret of {len(secret)} characters")


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
    """When all tasks have ended, no worker holds anything for them."""
    for event in history.of(Kind.RESERVED):
        if event.number:
            yield Breach("reservations_are_released", f"{event.worker} holds {event.number}", event.at)


def healed_workers_are_found(history: History) -> Iterator[Breach]:
    """A worker that is back is a candidate again within the promised time. Checked where SEEN is reported."""
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


def cancelled_was_asked(history: History) -> Iterator[Breach]:
    """In the end no task is cancelled unless somebody asked for it: the leader of its campaign, restored or not, carries it on. A sitting
    is cancelled together with the one before it.
    """
    asked = {event.task for event in history.of(Kind.CANCEL_ASKED)}
    for task, before in history.sittings.items():  # in the order of the sittings
        asked |= {task} if before in asked else set()
    for task, state in (history.final or {}).items():
        if state == "cancelled" and task not in asked:
            yield Breach("cancelled_was_asked", task)


def views_agree(history: History) -> Iterator[Breach]:
    """In the end everybody reports the same state of a task."""
    values: dict[str, dict[str, str]] = defaultdict(dict)
    for event in history.of(Kind.VIEW):
        values[event.task][event.who] = event.word
    for task, views in values.items():
        if len(set(views.values())) > 1:
            yield Breach("views_agree", f"{task}: {views}")


def every_worker_serves_again(history: History) -> Iterator[Breach]:
    """A task that is submitted for one worker alone, after all faults are over, is done there."""
    for task in history.afterwards:
        state = (history.final or {}).get(task)
        if state != "succeeded":
            yield Breach("every_worker_serves_again", f"{task} is {state}")


SAFETY: Final[tuple[Invariant, ...]] = (
    *scheduler_invariants.SAFETY,
    *stop_invariants.SAFETY,
    *worker_invariants.SAFETY,
    sizes_are_bounded,
    no_secret_is_exposed,
)
"""Must hold at every moment."""
LIVENESS: Final[tuple[Invariant, ...]] = (
    everything_ends,
    reservations_are_released,
    healed_workers_are_found,
    cancelled_was_asked,
    views_agree,
    every_worker_serves_again,
)
"""Must hold once faults have stopped."""
