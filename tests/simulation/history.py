"""What happened in a swarm, as one list of events on one clock. The model, the in-memory swarm and real processes all use this form.

    model.py, swarm_run.py ──▶ History ──▶ invariants.check ──▶ [Breach]
    stores and logs ─ store_history.py ──▶

The builder of a history reports what it observed; an invariant that has no events holds. Instants are seconds on the observer's clock.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from typing import Final

FINAL: Final = frozenset({"succeeded", "failed", "cancelled"})
"""Names of the final states of a task."""
FenceKey = tuple[int, int]
"""(incarnation, number)."""


class Kind(StrEnum):
    """What can happen. Each docstring says who reports the event and which fields it needs beside `at`."""

    # -- a scheduler
    ACCEPTED = "accepted"
    """`who` has the campaign on disk and has confirmed it to its user: campaign."""
    COMMITTED = "committed"
    """`who` put the intent of an attempt on disk: task, attempt, worker; number: other untried workers that could have taken it; word:
    "beside" for the hedge of a task whose run is past its deadline."""
    WANTED = "wanted"
    """`who` wants this attempt to run, because it accepted a grant or sent Start: task, attempt, worker, fence; number: with Start, how
    many other attempts of the task are open on its disk."""
    REPORTED = "reported"
    """`who` heard that a run took a step: task, attempt, worker."""
    ATTEMPT_ENDED = "attempt-ended"
    """`who` gave an attempt up without a record: task, attempt; word: lost, refused, preempted, cancelled or failed. Of one of two
    attempts: overtaken, which has to be stopped, or dropped; the task continues with the other."""
    RECORDED = "recorded"
    """`who` has a record on disk: task, attempt, worker, fence, sha256;
    word: the task's state after it; number: 1 if it counts as a try."""
    ENDED = "ended"
    """A task reached a final state at `who`: task, word; number: in a home from which `who` was copied, this many milliseconds ago."""
    ACKNOWLEDGED = "acknowledged"
    """A worker received the acknowledgement that `who` has recorded its result: task, worker, sha256."""
    CANCEL_ASKED = "cancel-asked"
    """A user wants the task cancelled: task."""
    CANCEL_CONFIRMED = "cancel-confirmed"
    """`who` received the confirmation that nothing runs under a lease any more: worker, lease."""
    STEPPED_DOWN = "stepped-down"
    """`who` heard that another scheduler leads the campaign: campaign."""
    HEARD = "heard"
    """`worker` answered `who`: word (the kind of answer), number: how many seconds ago the request was sent, rounded up."""
    SILENT = "silent"
    """`who` counts on what `worker` holds, and has had no answer from it for this long: number, in seconds."""
    UP = "up"
    """A scheduler process starts: worker."""
    OWED = "stop-owed"
    """`who` ended a task whose worker has not confirmed that the run was stopped: task, attempt, worker, lease."""
    PAID = "stop-paid"
    """A stop is not owed any more: task, attempt, worker, lease; word: confirmed, or lapsed."""
    HELD = "held"
    """`who` has had a task at `worker` for longer than any run may take there, and asks no other worker although one is free: task; number:
    for how long, in seconds."""
    IMAGED = "imaged"
    """The present disk of `who`, a scheduler, or of `worker` is copied, by a backup or a snapshot of its machine: number."""
    ROLLED_BACK = "rolled-back"
    """The disk of `who` or `worker` is set back to an image: number (of the image). Later writes are undone."""
    FOUND = "found"
    """`who` adopts the campaign and received a report of a task: task, attempt, worker, lease, campaign; word: queued, running or over."""

    # -- a worker
    BORN = "born"
    """A life of `worker` begins: fence (incarnation, 0)."""
    DIED = "died"
    """A process is gone, with everything it ran: worker (or scheduler)."""
    PAUSED = "paused"
    """A process stops doing anything (number 1), or continues (0): worker."""
    QUEUED = "queued"
    """A lease was queued: worker, lease, fence, task, attempt, peer."""
    TAKEN = "taken"
    """A lease holds a slot: worker, lease, fence, task, attempt, peer."""
    LEFT = "left"
    """A lease no longer holds its slot: worker, lease; word: why."""
    BEGAN = "began"
    """The processes of a run exist from now on: worker, lease, fence, task, attempt, sha256 (of the model), slot."""
    TIMING = "timing"
    """The timed window of a run opens (number 1) or closes (0): worker, lease."""
    STOP_ORDERED = "stop-ordered"
    """The worker wants a run to end: worker, lease; word: why."""
    DEAD = "dead"
    """No process of a run exists any more: worker, lease."""
    CANCEL_RECEIVED = "cancel-received"
    """A cancel reached the worker: worker, lease, peer."""
    VERB = "verb"
    """A verb took effect at the worker: worker, peer, word (its name), campaign."""
    SPOKE = "spoke"
    """A scheduler's verb changed or kept something at the worker: who (the machine), worker, campaign, word (the verb), number (its epoch).
    """
    STORED = "stored"
    """The worker has a record: sha256; number: 1 on disk, 0 in memory, because the disk did not take it."""
    SENT = "sent"
    """A result goes to a scheduler: worker, sha256."""
    ANSWERED = "answered"
    """A scheduler answered a result: worker, sha256."""
    LET_GO = "let-go"
    """A result no longer waits for its scheduler: worker, sha256; number: 1 kept for an adopter, 0 removed."""
    RESTORED = "restored"
    """Before a life of `worker` begins: a record that is still on its disk: sha256."""
    TURN = "turn"
    """A queued lease that is not the owner's was offered a slot: worker, lease; number: leases of the owner that could have had the slot.
    """
    PERMITTED = "permitted"
    """From now on `peer` has the permission `word` at `worker`; campaign: for that campaign only, empty: for all."""
    REVOKED = "revoked"
    """From now on `peer` may do nothing at `worker`."""

    # -- anybody
    SIZE = "size"
    """A size that must stay within a limit: who, word (of what), number, cap."""
    TROUBLE = "trouble"
    """A fault struck a process or its links: worker (or scheduler)."""
    DELAYED = "delayed"
    """A message between these two arrives seconds late: worker (or scheduler), peer."""
    QUIET = "quiet"
    """Faults have stopped."""
    SEEN = "seen"
    """`who` counts `worker` among its candidates."""
    VIEW = "view"
    """The state of a task at the very end, according to `who`: task, word."""
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
"""Kinds of events that a scheduler's disk knows."""
ON_WORKERS_DISK: Final = frozenset({Kind.STORED, Kind.LET_GO, Kind.RESTORED, Kind.BORN})


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened. Fields that its kind does not name are empty."""

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
    """Seconds from the decision until it was on disk, and thus happened."""

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
    """Promised times in seconds, plus the error that the observer's own clock may have."""

    stop_s: float = 2.0
    """From a stop order that the worker knows to the death of the run's last process."""
    release_s: float = 10.0
    seek_s: float = 30.0
    """Until a healed worker is a candidate again."""
    end_s: float = 600.0
    """Until all tasks end, once faults have stopped."""
    slack_s: float = 0.0


@dataclass(slots=True)
class History:
    """Events, and the expectations they are checked against. A field that is None was not observed."""

    events: list[Event] = field(default_factory=list)
    slots: dict[str, int] = field(default_factory=dict)
    """Worker → slots it advertises."""
    capacity: dict[str, dict[str, int]] = field(default_factory=dict)
    """Worker → dimension → its capacity (bytes of memory, for example)."""
    needs: dict[str, dict[str, int]] = field(default_factory=dict)
    """Task → dimension → how much a run reserves."""
    models: dict[str, str] = field(default_factory=dict)
    """Task → hash of the model in the signed task."""
    tasks: dict[str, str] = field(default_factory=dict)
    """Task → campaign, for all submitted tasks."""
    liars: frozenset[str] = frozenset()
    """Workers that send false results."""
    siblings: dict[str, str] = field(default_factory=dict)
    """Task → what it shares with its replicas."""
    sittings: dict[str, str] = field(default_factory=dict)
    """Task → the sitting before it."""
    attempts: dict[str, int] = field(default_factory=dict)
    """Campaign → allowed tries of a task."""
    afterwards: tuple[str, ...] = ()
    """Tasks submitted once all faults were over, each for one worker alone."""
    final: dict[str, str] | None = None
    """Task → state in its owner's store at the end."""
    stored: frozenset[str] | None = None
    """Hashes of all records in the stores at the end."""
    broken_chains: tuple[str, ...] = ()
    """Faults in a store's own chain of events, in words."""
    texts: dict[str, str] = field(default_factory=dict)
    """Logs and similar texts, by name."""
    secrets: tuple[str, ...] = ()
    """Secrets that must appear in none of the texts."""
    limits: Limits = field(default_factory=Limits)

    def add(self, at: float, kind: Kind, **what: object) -> None:
        """Add an event."""
        self.events.append(Event(at, kind, **what))  # type: ignore[arg-type]

    def of(self, *kinds: Kind) -> Iterator[Event]:
        """The events of these kinds, in order."""
        expected = frozenset(kinds)
        return (event for event in self.events if event.kind in expected)

    def kept(self) -> History:
        """This history without the events that were undone on disks that were set back to an earlier moment."""
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
        """This history with its events sorted by time; simultaneous events keep their order."""
        self.events.sort(key=lambda event: event.at)
        return self

    def digest(self) -> str:
        """A hash of this history. Two runs of one seed have the same."""
        whole = hashlib.sha256()
        for event in self.events:
            whole.update(repr(event).encode())
        return whole.hexdigest()


@dataclass(frozen=True, slots=True)
class Breach:
    """An observed violation of an invariant."""

    invariant: str
    what: str
    at: float | None = None

    def __str__(self) -> str:
        when = "" if self.at is None else f" at {self.at:.3f} s"
        return f"{self.invariant}{when}: {self.what}"


Invariant = Callable[[History], Iterator[Breach]]


def merged(parts: Iterable[Iterable[Event]], base: Mapping[str, int]) -> History:
    """Merge the reports of several observers on the same clock into one history. `base`: worker → slots."""
    history = History(slots=dict(base))
    for part in parts:
        history.events += part
    return history.sorted()
