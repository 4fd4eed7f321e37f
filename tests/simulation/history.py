"""What happened in a swarm, as one list of events on one clock: the same form for the model, the in-memory swarm and real processes.

    model.py, swarm_run.py ──▶ History ──▶ invariants.check ──▶ [Breach]
    stores and logs ─ store_history.py ──▶

Whoever builds a history reports what it observed; an invariant without events holds. Instants are seconds on the observer's clock.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from typing import Final

FINAL: Final = frozenset({"succeeded", "failed", "cancelled"})
"""Words for states of a task that has ended."""
FenceKey = tuple[int, int]
"""(incarnation, number)."""


class Kind(StrEnum):
    """What can happen. After each: who tells it, and the fields that it needs beside `at`."""

    # -- a scheduler
    ACCEPTED = "accepted"
    """`who` has the campaign on disk and has confirmed it to its user: campaign."""
    COMMITTED = "committed"
    """`who` put the intent of an attempt on disk: task, attempt, worker; number: other untried workers that could have had it;
    word: "beside" for the hedge of a task whose run is past its deadline."""
    WANTED = "wanted"
    """`who` wants this attempt to run: it took a grant, or said Start: task, attempt, worker, fence;
    number: with Start, other attempts of the task that its disk has as open."""
    REPORTED = "reported"
    """`who` heard of a step of a run: task, attempt, worker."""
    ATTEMPT_ENDED = "attempt-ended"
    """`who` gave an attempt up without a record: task, attempt; word: lost, refused, preempted, cancelled or failed; of one
    of two attempts: overtaken, it is to be stopped, or dropped, and the task goes on with the other."""
    RECORDED = "recorded"
    """`who` has a record on disk: task, attempt, worker, fence, sha256;
    word: the task's state after it; number: 1 if it counts as a try."""
    ENDED = "ended"
    """A task reached a final state at `who`: task, word; number: in a home from which `who` was copied, so many milliseconds ago."""
    ACKNOWLEDGED = "acknowledged"
    """A worker got the acknowledgement that `who` has recorded its result: task, worker, sha256."""
    CANCEL_ASKED = "cancel-asked"
    """A person wants it cancelled: task."""
    CANCEL_CONFIRMED = "cancel-confirmed"
    """`who` got the confirmation that nothing runs under it any more: worker, lease."""
    STEPPED_DOWN = "stepped-down"
    """`who` heard that another scheduler carries the campaign on: campaign."""
    HEARD = "heard"
    """`worker` answered `who`: word (its answer), number: how many seconds ago that was sent, rounded up."""
    SILENT = "silent"
    """`who` counts on what `worker` holds, and has had no answer from it for so long: number, in seconds."""
    UP = "up"
    """A process of a scheduler begins: worker."""
    OWED = "stop-owed"
    """`who` ended a task whose worker has not confirmed that its run was stopped: task, attempt, worker, lease."""
    PAID = "stop-paid"
    """That stop is not owed any more: task, attempt, worker, lease; word: confirmed, or lapsed."""
    HELD = "held"
    """`who` has a task at `worker` for longer than any run may take there, asks nobody else, and somebody could be asked: task;
    number: for how long, in seconds."""
    IMAGED = "imaged"
    """What `who`, a scheduler, or `worker` has on disk now is copied, by a backup or a snapshot of its machine: number."""
    ROLLED_BACK = "rolled-back"
    """`who` or `worker` has on disk again what it had then: number (of the image). What it wrote since is undone."""
    FOUND = "found"
    """`who` adopts the campaign and got a report of a task: task, attempt, worker, lease, campaign; word: queued, running or over."""

    # -- a worker
    BORN = "born"
    """A life of `worker` begins: fence (incarnation, 0)."""
    DIED = "died"
    """Its process is gone, and with it all it ran: worker (or scheduler)."""
    PAUSED = "paused"
    """Its process does nothing from now on (number 1), or goes on (0): worker."""
    QUEUED = "queued"
    """A lease was queued: worker, lease, fence, task, attempt, peer."""
    TAKEN = "taken"
    """A lease holds a place: worker, lease, fence, task, attempt, peer."""
    LEFT = "left"
    """It holds the place no more: worker, lease; word: why."""
    BEGAN = "began"
    """Processes of a run exist from now on: worker, lease, fence, task, attempt, sha256 (of the model), slot."""
    TIMING = "timing"
    """The timed window of a run opens (number 1) or closes (0): worker, lease."""
    STOP_ORDERED = "stop-ordered"
    """The worker wants the run dead: worker, lease; word: why."""
    DEAD = "dead"
    """None of them exists any more: worker, lease."""
    CANCEL_RECEIVED = "cancel-received"
    """A cancel reached the worker: worker, lease, peer."""
    VERB = "verb"
    """A verb had its effect here: worker, peer, word (its name), campaign."""
    SPOKE = "spoke"
    """A scheduler's verb changed or kept something here: who (the machine), worker, campaign, word (the verb), number (its epoch)."""
    STORED = "stored"
    """The worker has a record: sha256; number: 1 on disk, 0 in memory, because no disk took it."""
    SENT = "sent"
    """A result goes to a scheduler: worker, sha256."""
    ANSWERED = "answered"
    """A scheduler answered a result: worker, sha256."""
    LET_GO = "let-go"
    """A result does not wait for its scheduler any more: worker, sha256; number: 1 kept for an adopter, 0 removed."""
    RESTORED = "restored"
    """Before a life of `worker` begins: a record that its disk still has: sha256."""
    TURN = "turn"
    """A queued lease of another than the owner was offered a slot: worker, lease; number: leases of the owner that could have had it."""
    PERMITTED = "permitted"
    """From now on `peer` may do at `worker` what `word` names; campaign: only of that one, empty: of all."""
    REVOKED = "revoked"
    """From now on `peer` may do nothing at `worker`."""

    # -- anybody
    SIZE = "size"
    """Something that must stay small: who, word (what), number, cap."""
    TROUBLE = "trouble"
    """Something was done to a process or its links: worker (or scheduler)."""
    DELAYED = "delayed"
    """A message between these two comes seconds late: worker (or scheduler), peer."""
    QUIET = "quiet"
    """Faults have stopped."""
    SEEN = "seen"
    """`who` counts `worker` among those it could ask."""
    VIEW = "view"
    """How `who` says, at the very end, that a task stands: task, word."""
    RESERVED = "reserved"
    """What a worker still holds at the very end: worker, number."""


ON_DISK: Final = frozenset(
    {
        Kind.COMMITTED,
        Kind.WANTED,
        Kind.ATTEMPT_ENDED,
        Kind.RECORDED,
        Kind.ENDED,
        Kind.ACKNOWLEDGED,
        Kind.OWED,
        Kind.PAID,
    }
)
"""What a scheduler's disk knows of."""
ON_WORKERS_DISK: Final = frozenset({Kind.STORED, Kind.LET_GO, Kind.RESTORED, Kind.BORN})


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened. Fields that a kind does not name are empty."""

    at: float
    kind: Kind
    who: str = ""
    worker: str = ""
    peer: str = ""
    campaign: str = ""
    task: str = ""
    attempt: int = 0
    lease: str = ""
    fence: FenceKey | None = None
    slot: int | None = None
    sha256: str = ""
    word: str = ""
    number: int | None = None
    cap: int | None = None
    ago: float = 0.0
    """Seconds from its decision until it was on disk, and thus happened."""

    @property
    def decided_at(self) -> float:
        return self.at - self.ago

    def __str__(self) -> str:
        lines = [f"{self.at:10.3f} {self.kind}"]
        for item in fields(self)[2:]:
            value = getattr(self, item.name)
            if value is not None and value not in ("", 0):
                lines.append(f"{item.name}={value[-12:] if isinstance(value, str) else value}")
        return " ".join(lines)


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds that are promised, plus what the observer's own clock may be wrong by."""

    stop_s: float = 2.0
    """From a stop that the worker knows of to the death of its last process."""
    release_s: float = 10.0
    seek_s: float = 30.0
    """A healed worker is a candidate again."""
    end_s: float = 600.0
    """All tasks end, once faults have stopped."""
    slack_s: float = 0.0


@dataclass(slots=True)
class History:
    """Events, and what they are held against. What is None was not looked at."""

    events: list[Event] = field(default_factory=list)
    slots: dict[str, int] = field(default_factory=dict)
    """Worker → places it advertises."""
    capacity: dict[str, dict[str, int]] = field(default_factory=dict)
    """Worker → dimension → how much of it there is (bytes of memory, say)."""
    needs: dict[str, dict[str, int]] = field(default_factory=dict)
    """Task → dimension → how much of it a run reserves."""
    models: dict[str, str] = field(default_factory=dict)
    """Task → hash of the model in its signed words."""
    tasks: dict[str, str] = field(default_factory=dict)
    """Task → campaign, of all that were submitted."""
    liars: frozenset[str] = frozenset()
    """Workers that send results that are not so."""
    siblings: dict[str, str] = field(default_factory=dict)
    """Task → what it has in common with its replicas."""
    sittings: dict[str, str] = field(default_factory=dict)
    """Task → the sitting before it."""
    attempts: dict[str, int] = field(default_factory=dict)
    """Campaign → tries that a task may have."""
    afterwards: tuple[str, ...] = ()
    """Tasks that were asked for once all faults were over, each of one worker alone."""
    final: dict[str, str] | None = None
    """Task → state in its owner's store at the end."""
    stored: frozenset[str] | None = None
    """Hashes of all records that the stores give back at the end."""
    broken_chains: tuple[str, ...] = ()
    """What is wrong with a store's own chain of events, in words."""
    texts: dict[str, str] = field(default_factory=dict)
    """Logs and the like, by name."""
    secrets: tuple[str, ...] = ()
    """What must stand in none of them."""
    limits: Limits = field(default_factory=Limits)

    def add(self, at: float, kind: Kind, **what: object) -> None:
        """One more event."""
        self.events.append(Event(at, kind, **what))  # type: ignore[arg-type]

    def of(self, *kinds: Kind) -> Iterator[Event]:
        """Those of these kinds, in order."""
        expected = frozenset(kinds)
        return (event for event in self.events if event.kind in expected)

    def kept(self) -> History:
        """The same without what was undone on the disks of those that were put back to an earlier moment."""
        written: dict[str, list[int]] = defaultdict(list)
        images: dict[tuple[str, int | None], list[int]] = {}
        every: set[int] = set()
        for number, event in enumerate(self.events):
            owner = event.who or event.worker
            if event.kind is Kind.IMAGED:
                images[owner, event.number] = list(written[owner])
            elif event.kind is Kind.ROLLED_BACK:  # perhaps to a moment that was itself undone before
                written[owner] = list(images[owner, event.number])
            elif event.kind in ON_DISK or event.kind in ON_WORKERS_DISK:
                written[event.who if event.kind in ON_DISK else event.worker].append(number)
                every.add(number)
        undone = every.difference(*written.values())
        if not undone:
            return self
        return replace(self, events=[event for n, event in enumerate(self.events) if n not in undone])

    def sorted(self) -> History:
        """The same with its events in order of time; those of one instant keep their order."""
        self.events.sort(key=lambda event: event.at)
        return self

    def digest(self) -> str:
        """Names this very history: two runs of one seed have the same."""
        whole = hashlib.sha256()
        for event in self.events:
            whole.update(repr(event).encode())
        return whole.hexdigest()


@dataclass(frozen=True, slots=True)
class Breach:
    """Something that must never happen, and did."""

    invariant: str
    what: str
    at: float | None = None

    def __str__(self) -> str:
        when = "" if self.at is None else f" at {self.at:.3f} s"
        return f"{self.invariant}{when}: {self.what}"


Invariant = Callable[[History], Iterator[Breach]]


def merged(parts: Iterable[Iterable[Event]], base: Mapping[str, int]) -> History:
    """One history of what several observers reported on the same clock. `base`: worker → places."""
    history = History(slots=dict(base))
    for part in parts:
        history.events += part
    return history.sorted()
