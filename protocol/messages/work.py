"""The work protocol, `/sark/work/1`: a scheduler and a worker agree on a task, run it and settle it.

    scheduler                                        worker
        │ ShowCredentials ───────────────────────────▶ │   a token by which a peer you serve delegates to the sender
        │ ManifestMessage ───────────────────────────▶ │   a newer one of your pool, which lists the sender
        │ ◀────────────────── CredentialsReply, Denied │
        │ Probe ─────────────────────────────────────▶ │   could you run this, when, is the model cached?
        │ ◀───────────────────────────── Quote, Denied │   reserves nothing
        │ Commit ────────────────────────────────────▶ │   compare-and-set on the worker's ledger
        │ ◀───────── Granted, Queued, Conflict, Denied │
        │ ◀───────────────────────────────────── Ready │   a queued lease has its slot
        │ Start, Skip ───────────────────────────────▶ │
        │ Renew ─────────────────────────────────────▶ │   every 5 s, all leases in one message
        │ ◀─────────────────────────────────── Renewed │
        │ ◀───────────────────────────── RevealRequest │   of a witnessed run, just before its first launch
        │ Reveal, Denied ────────────────────────────▶ │
        │ ◀─────────────────────────────── LaunchEnded │   a note for each launch of a witnessed run: what it put out
        │ ◀────────────────────────────────── Progress │   a note for each step
        │ ◀──────────────────────────────────── Result │   from the outbox, repeated until answered
        │ Accepted, Stale ───────────────────────────▶ │
        │ Cancel, Release ───────────────────────────▶ │
        │ ◀─────────────────────────────────── Stopped │   the child process is dead
        │ ◀─────────────────────────────────── Preempt │   a note: a higher priority needs the slot
        │ AdoptRequest ──────────────────────────────▶ │   after a restart, under a higher epoch
        │ ◀──────────────────────────────── AdoptReply │
        │ ListLeases ────────────────────────────────▶ │   the same, without taking over
        │ ◀──────────────────────────────── AdoptReply │
        │ Forget ────────────────────────────────────▶ │   of a campaign that was deleted
        │ ◀───────────────────────── Forgotten, Denied │
        │ Control, StatusRequest ────────────────────▶ │   the device's owner: pause, resume, drain, reset, status
        │ ◀────────────────────────────── WorkerStatus │

The scheduler opens one link and keeps it. Messages carry durations, never instants.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final, Literal

from pydantic import Field

from protocol.formats.phase import Phase
from protocol.messages.forget import Forget, Forgotten
from protocol.messages.pool import ManifestMessage
from protocol.values.lease import MAX_PREEMPTIONS, MAX_PROOF, Epoch, Fence
from protocol.values.reading import DeviceReading
from protocol.values.requirement import Requirement
from protocol.values.task import MAX_TASK
from protocol.wire.base import (
    MAX_INLINE,
    Brief,
    Count,
    Detail,
    Id,
    Key32,
    Line,
    Message,
    PeerName,
    Priority,
    Seconds,
    Sha256,
    Signature,
    Token,
)
from protocol.wire.codec import Vocabulary
from protocol.words import Reason, Right, WorkerState

MAX_BATCH: Final = 64
"""Most shapes in a probe, and leases in a renewal."""

WhyNot = Annotated[Reason, Field(strict=False)]
State = Annotated[WorkerState, Field(strict=False)]
Attempt = Annotated[int, Field(ge=1, le=1000)]
Proof = Annotated[bytes, Field(max_length=MAX_PROOF)]
"""A `TakeoverProof` that the sender may carry the campaign on under this epoch."""


May = Annotated[Right, Field(strict=False)]


class ShowCredentials(Message, type="show-credentials"):
    """Present a token. It counts for every link of this peer until it expires or its issuer's right ends."""

    issuer: PeerName
    """Who signed the token: an owner, an allowed scheduler or a pool's member."""
    token: Token


class CredentialsReply(Message, type="credentials-reply"):
    """What the token permits here."""

    principal: PeerName
    """On whose behalf the peer acts: itself, or a peer that delegated to it."""
    rights: Annotated[tuple[May, ...], Field(max_length=8)]
    priority: Priority
    """The highest effective priority."""
    slots: Annotated[int, Field(ge=1, le=100_000)] | None = None
    """Running and queued leases at a time on this worker; None: no limit."""
    left_s: Seconds | None = None
    """Time until the token expires; None: it does not expire."""


class Shape(Message):
    """Tasks with the same needs."""

    unit: Line
    requirement: Requirement
    model: Sha256
    size: Count
    """Bytes of the model."""
    count: Annotated[int, Field(ge=1, le=100_000)] = 1
    priority: Priority = 50


class Probe(Message, type="probe"):
    """Ask whether the worker could run these shapes, and when. Reserves nothing."""

    campaign: Id
    shapes: Annotated[tuple[Shape, ...], Field(min_length=1, max_length=16)]


class ShapeQuote(Message):
    """The answer for one shape, in the order of the probe."""

    fits: bool
    unmet: Annotated[tuple[Brief, ...], Field(max_length=8)] = ()
    """The first unmet clauses, in words."""
    warm: bool = False
    """The model is in the cache."""
    fetch: Count = 0
    """Bytes to fetch first."""
    ahead: Annotated[int, Field(ge=0, le=100_000)] = 0
    """Queued leases that would run before one of this priority."""
    start_s: Seconds | None = None
    """Expected wait at this priority; None: unknown."""
    preempts: Brief = ""
    """The run that would be preempted, in words; empty: none."""


class Quote(Message, type="quote"):
    """What the worker could do now. Not binding; `ledger` is the version to compare-and-set against."""

    incarnation: Count
    ledger: Count
    state: State
    free: Annotated[int, Field(ge=0, le=1024)]
    """Free slots."""
    queue: Annotated[int, Field(ge=0, le=100_000)]
    """Queued leases."""
    start_s: Seconds | None = None
    """Expected wait of a new queued lease; None: unknown."""
    run_s: Seconds | None = None
    """Duration of recent runs; None: none yet."""
    why: Detail = ""
    """Why the worker takes no work now; empty if it does."""
    shapes: Annotated[tuple[ShapeQuote, ...], Field(max_length=16)] = ()


class Denied(Message, type="denied"):
    """Refused. `retry_s` is absent where a retry cannot help."""

    reason: WhyNot
    detail: Detail = ""
    unmet: Annotated[tuple[Brief, ...], Field(max_length=32)] = ()
    retry_s: Seconds | None = None
    proof: Proof | None = None
    """With `stale-epoch`: the proof of the scheduler that adopted the campaign."""


class Commit(Message, type="commit"):
    """Take this attempt of this task. Repeating the same `key` gets the same answer."""

    key: Id
    """Idempotency key."""
    attempt: Attempt
    epoch: Epoch
    task: Annotated[bytes, Field(max_length=MAX_TASK)]
    """Canonical bytes of a `Task`."""
    signature: Signature
    priority: Priority = 50
    ledger: Count | None = None
    """Ledger version of the quote on which this commit is based; None: any."""
    queue: bool = False
    """Queue the lease if no slot is free."""
    preempted: Annotated[int, Field(ge=0, le=MAX_PREEMPTIONS)] = 0
    """How often the task was already preempted."""
    left_s: Seconds | None = None
    """Time until the campaign's time limit, when the worker ends the run by itself. None: no limit."""
    manifest: Sha256 | None = None
    """The campaign manifest, a blob at the scheduler. The worker stores it with the leases, so that the campaign can be adopted."""
    manifest_size: Count = 0
    proof: Proof | None = None
    """From the second epoch on; shown to schedulers that are refused because of this epoch."""
    witnessed: Literal[True] | None = None
    """The inputs follow from what is revealed when the run begins. None: from the task's own seed."""


class Granted(Message, type="granted"):
    """The slot is leased until `ttl_s` after the last renewal."""

    lease: Id
    fence: Fence
    ttl_s: Seconds
    renew_s: Seconds


class Queued(Message, type="queued"):
    """The lease waits in the queue and is renewed like any other; `Ready` follows when a slot is free."""

    lease: Id
    fence: Fence
    position: Annotated[int, Field(ge=1, le=100_000)]
    start_s: Seconds | None = None
    ttl_s: Seconds
    renew_s: Seconds


class Conflict(Message, type="conflict"):
    """The quote was out of date. Nothing is reserved; a fresh quote follows."""

    reason: WhyNot
    quote: Quote


class Ready(Message, type="ready"):
    """A slot is free for this queued lease and is held for a few seconds."""

    lease: Id
    fence: Fence


class Start(Message, type="start"):
    """Run it."""


class Skip(Message, type="skip"):
    """No longer needed: free the slot."""


class HeldLease(Message):
    """A lease, its fence, and the epoch of the scheduler that names it."""

    lease: Id
    fence: Fence
    epoch: Epoch | None = None


class Renew(Message, type="renew"):
    """Renew these leases."""

    held: Annotated[tuple[HeldLease, ...], Field(max_length=MAX_BATCH)]


class LeaseLost(Message):
    """A lease that ended, and why."""

    lease: Id
    reason: WhyNot


class QueuedLease(Message):
    """A queued lease's position."""

    lease: Id
    position: Annotated[int, Field(ge=1, le=100_000)]
    start_s: Seconds | None = None


class Renewed(Message, type="renewed"):
    """Which leases were renewed and which are lost."""

    incarnation: Count
    state: State
    why: Detail = ""
    """Why the worker takes no work now; empty if it does."""
    waiting: Annotated[tuple[QueuedLease, ...], Field(max_length=MAX_BATCH)] = ()
    """The renewed leases that are queued."""
    renewed: Annotated[tuple[Id, ...], Field(max_length=MAX_BATCH)] = ()
    lost: Annotated[tuple[LeaseLost, ...], Field(max_length=MAX_BATCH)] = ()


class Progress(Message, type="progress"):
    """A note: the run reached a phase or advanced in it. A higher `seq` supersedes lower ones."""

    lease: Id
    fence: Fence
    seq: Count
    phase: Annotated[Phase, Field(strict=False)]
    done: Count = 0
    total: Count | None = None
    median_ms: Annotated[float, Field(ge=0)] | None = None
    note: Detail = ""
    reading: DeviceReading | None = None
    """The device now, every few seconds; never sent to a stranger. None: nothing new."""


class RevealRequest(Message, type="reveal-request"):
    """The witnessed run of this lease is about to make its first launch. A repeated request gets the same answer."""

    lease: Id
    fence: Fence
    again: Literal[True] | None = None
    """The worker already has the answer. A scheduler that did not give it has not witnessed the time of the first launch."""


class Reveal(Message, type="reveal"):
    """Random bytes that nobody could have known before; `protocol.formats.chain` turns them into seeds."""

    opening: Key32
    """For the first launch; the same for all replicas of a task."""
    reveal: Key32
    """For the later launches."""


class LaunchEnded(Message, type="launch-ended"):
    """A note: a launch of a witnessed run has made its inferences."""

    lease: Id
    fence: Fence
    launch: Annotated[int, Field(ge=1, le=1000)]
    """Its number among the launches that time inferences, from 1."""
    digest: Sha256


class Result(Message, type="result"):
    """A signed record, repeated until answered. A large one is pulled by its hash over `/sark/blob/1`."""

    campaign: Id
    task: Id
    attempt: Attempt
    lease: Id
    fence: Fence
    sha256: Sha256
    """Over the record's bytes."""
    size: Count
    signature: Signature
    body: Annotated[bytes, Field(max_length=MAX_INLINE)] | None = None


class Accepted(Message, type="accepted"):
    """The result is recorded; the worker may forget it."""


class Stale(Message, type="stale"):
    """The result is not recorded: the task has ended or another attempt has a newer fence. The worker may forget it."""

    reason: WhyNot


class Cancel(Message, type="cancel"):
    """Stop these runs. Answered once their child processes are dead."""

    held: Annotated[tuple[HeldLease, ...], Field(max_length=MAX_BATCH)]
    reason: WhyNot = Reason.CANCELLED


class Release(Message, type="release"):
    """Give back these leases; nothing runs on them."""

    held: Annotated[tuple[HeldLease, ...], Field(max_length=MAX_BATCH)]


class Stopped(Message, type="stopped"):
    """None of these leases runs; unknown ones count as stopped."""

    leases: Annotated[tuple[Id, ...], Field(max_length=MAX_BATCH)]


class Preempt(Message, type="preempt"):
    """A note: a higher priority needs the slot; the run ends after the grace period."""

    lease: Id
    fence: Fence
    grace_s: Seconds
    priority: Priority
    """The priority of the preempting task."""


class AdoptRequest(Message, type="adopt-request"):
    """Take over this campaign: the worker refuses lower epochs from now on. `cursor`: where the reply continues."""

    campaign: Id
    epoch: Epoch
    cursor: Count = 0
    again: bool = False
    """Resend settled results too: another scheduler accepted them, but this one has not."""
    proof: Proof | None = None
    """Shown to schedulers that are refused because of this epoch."""


class ListLeases(Message, type="list-leases"):
    """List what the worker has of this campaign; changes nothing. `cursor`: where the reply continues."""

    campaign: Id
    cursor: Count = 0


class LiveLease(Message):
    """A running, queued or finished lease that the worker still has."""

    task: Id
    attempt: Attempt
    lease: Id
    fence: Fence
    queued: bool = False
    reporting: bool = False
    """The run has ended; its result follows."""
    settled: bool = False
    """A scheduler accepted its result before; the result is sent again to a scheduler that has not."""
    phase: Annotated[Phase, Field(strict=False)] | None = None
    done: Count = 0
    total: Count | None = None


class AdoptReply(Message, type="adopt-reply"):
    """One page of what the worker has of the campaign."""

    incarnation: Count
    leases: Annotated[tuple[LiveLease, ...], Field(max_length=MAX_BATCH)] = ()
    epoch: Epoch = 0
    """The highest epoch this worker knows for the campaign."""
    proof: Proof | None = None
    """The proof for that epoch, if there is one."""
    manifest: Sha256 | None = None
    """The campaign manifest, served over `/sark/blob/1`."""
    manifest_size: Count = 0
    cursor: Count | None = None
    """Where the next page starts; None: this is the last."""


class Action(StrEnum):
    """What an owner can order a device to do."""

    PAUSE = "pause"
    """Take no new work until resumed; runs in progress continue."""
    RESUME = "resume"
    DRAIN = "drain"
    """Finish running tasks, then leave the swarm."""
    RESET = "reset"
    """Test a faulty worker and let it work again if it passes."""


class Control(Message, type="control"):
    """An owner's order."""

    action: Annotated[Action, Field(strict=False)]
    now: bool = False
    """Pause, drain: end runs at once instead of letting them finish."""
    finish: bool = False
    """Drain: run the queued leases too."""


class StatusRequest(Message, type="status-request"):
    """Ask for the worker's state and jobs."""


class RunningJob(Message):
    """A running or queued lease, as the device's owner sees it."""

    task: Id
    model: Line
    principal: PeerName
    team: Line = ""
    priority: Priority
    state: Line
    """The lease's state."""
    phase: Annotated[Phase, Field(strict=False)] | None = None
    since_s: Seconds
    """Time since the commit."""


class WorkerStatus(Message, type="worker-status"):
    """The worker's state and jobs."""

    incarnation: Count
    state: State
    why: Detail = ""
    jobs: Annotated[tuple[RunningJob, ...], Field(max_length=MAX_BATCH)] = ()
    running: Count = 0
    queue: Count = 0
    reach: Line | None = None
    """How others reach the worker, in words; None: unknown."""
    reading: DeviceReading | None = None
    """The device's sensors while it runs something, for its owner."""


WORK: Final = Vocabulary(
    ShowCredentials, ManifestMessage, CredentialsReply, Probe, Quote, Denied, Commit, Granted, Queued, Conflict, Ready, Start, Skip,
    Renew, Renewed, RevealRequest, Reveal, LaunchEnded, Progress,
    Result, Accepted, Stale, Cancel, Release, Stopped, Preempt, AdoptRequest, ListLeases, AdoptReply, Control, StatusRequest, WorkerStatus,
    Forget, Forgotten,
    calls=(ShowCredentials, ManifestMessage, Probe, Commit, Ready, Renew, RevealRequest, Result, Cancel, Release,
        AdoptRequest, ListLeases, Control, StatusRequest, Forget),
    notes=(LaunchEnded, Progress, Preempt),
)  # fmt: skip
"""Every message of this protocol, in the order of use, and the pool protocol's `ManifestMessage`."""
