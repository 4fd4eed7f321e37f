"""The work conversation, `/sark/work/1`: a scheduler and a worker agree on a task, run it and settle it.

    scheduler                                   worker
        │ Present ───────────────────────────────▶ │   this token says what I may do here; needed by neither owner nor allowed
        │ ◀───────────────────── Presented, Denied │
        │ Probe ─────────────────────────────────▶ │   could you, when, is the model there?
        │ ◀───────────────────────── Quote, Denied │   holds nothing
        │ Commit ────────────────────────────────▶ │   compare-and-set on the worker's ledger
        │ ◀──── Granted, Queued, Conflict, Denied  │
        │ ◀───────────────────────────────── Ready │   a ticket's place is up
        │ Start, Skip ───────────────────────────▶ │
        │ Renew ─────────────────────────────────▶ │   every 5 s, all leases in one
        │ ◀─────────────────────────────── Renewed │
        │ ◀────────────────────────────── Progress │   a note for each step
        │ ◀──────────────────────────────── Result │   from the outbox, again and again until
        │ Accepted, Stale ───────────────────────▶ │
        │ Cancel, Release ───────────────────────▶ │
        │ ◀─────────────────────────────── Stopped │   the child is dead
        │ ◀─────────────────────────────── Preempt │   a note: a higher priority needs the place
        │ Adopt ─────────────────────────────────▶ │   after a restart, with a higher epoch
        │ ◀─────────────────────────────── Adopted │
        │ Look ──────────────────────────────────▶ │   the same, without taking anything over
        │ ◀─────────────────────────────── Adopted │
        │ Control, Status ───────────────────────▶ │   the device's owner: pause, resume, drain, reset; how it stands
        │ ◀────────────────────────────── Standing │

Both sides speak over one kept link that the scheduler opened. Durations only, never instants.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final, Literal

from pydantic import Field

from protocol.formats.phase import Phase
from protocol.values.lease import MAX_PROOF, Epoch, Fence
from protocol.values.requirement import Requirement
from protocol.values.task import MAX_TASK
from protocol.wire.base import (
    MAX_INLINE,
    Brief,
    Count,
    Detail,
    Id,
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
"""Shapes in a probe, leases in a renewal."""

MAX_PREEMPTIONS: Final = 2
"""A task that was preempted so often is not preempted again."""

WhyNot = Annotated[Reason, Field(strict=False)]
State = Annotated[WorkerState, Field(strict=False)]
Attempt = Annotated[int, Field(ge=1, le=1000)]
Proof = Annotated[bytes, Field(max_length=MAX_PROOF)]
"""A `protocol.adoption.AdoptionProof`: that somebody carries a campaign on under an epoch."""


May = Annotated[Right, Field(strict=False)]


# -- may I? ------------------------------------------------------------------------------------------------------------------


class ShowCredentials(Message):
    """This token says what I may do here. It holds for every link of this peer until it expires or is revoked."""

    type: Literal["show-credentials"] = "show-credentials"
    issuer: PeerName
    """Whose key signed it: a pool's id, or an owner's scheduler id."""
    token: Token


class CredentialsReply(Message):
    """What it lets you do here."""

    type: Literal["credentials-reply"] = "credentials-reply"
    principal: PeerName
    """On whose behalf: the holder itself, or the one who delegated to it."""
    rights: Annotated[tuple[May, ...], Field(max_length=8)]
    priority: Priority
    """The highest that counts."""
    slots: Annotated[int, Field(ge=1, le=100_000)] | None = None
    """Places and tickets at a time at this worker; None: no limit of its own."""
    left_s: Seconds | None = None
    """Until it expires; None: it does not."""


# -- could you? --------------------------------------------------------------------------------------------------------------


class Shape(Message):
    """Tasks that are alike in what they need."""

    unit: Line
    requirement: Requirement
    model: Sha256
    size: Count
    """Bytes of the model."""
    count: Annotated[int, Field(ge=1, le=100_000)] = 1
    priority: Priority = 50


class Probe(Message):
    """Could you run these, and when? Asks only; nothing is held."""

    type: Literal["probe"] = "probe"
    campaign: Id
    shapes: Annotated[tuple[Shape, ...], Field(min_length=1, max_length=16)]


class ShapeQuote(Message):
    """The answer for one shape, in the probe's order."""

    fits: bool
    unmet: Annotated[tuple[Brief, ...], Field(max_length=8)] = ()
    """The first clauses that are not met, in words."""
    warm: bool = False
    """The model is in the cache."""
    fetch: Count = 0
    """Bytes that would have to be fetched."""
    ahead: Annotated[int, Field(ge=0, le=100_000)] = 0
    """Tickets that would go before one of this priority."""
    start_s: Seconds | None = None
    """Expected wait at this priority; None: not known yet."""
    preempts: Brief = ""
    """The run that would give way, in words; empty: none."""


class Quote(Message):
    """What the worker could do now. Binding to nobody; `ledger` tells whether the world has moved since."""

    type: Literal["quote"] = "quote"
    incarnation: Count
    ledger: Count
    state: State
    free: Annotated[int, Field(ge=0, le=1024)]
    """Places free now."""
    queue: Annotated[int, Field(ge=0, le=100_000)]
    """Tickets waiting."""
    start_s: Seconds | None = None
    """Expected wait for a new ticket; None: not known yet."""
    run_s: Seconds | None = None
    """What a run took here lately; None: none yet."""
    why: Detail = ""
    """Why it takes no work now, when it does not."""
    shapes: Annotated[tuple[ShapeQuote, ...], Field(max_length=16)] = ()


class Denied(Message):
    """No, with the reason; `retry_s` is absent where trying again is no use."""

    type: Literal["denied"] = "denied"
    reason: WhyNot
    detail: Detail = ""
    unmet: Annotated[tuple[Brief, ...], Field(max_length=32)] = ()
    retry_s: Seconds | None = None
    proof: Proof | None = None
    """With stale-epoch: what who adopted the campaign gave for it."""


# -- take it -----------------------------------------------------------------------------------------------------------------


class Commit(Message):
    """Take this attempt of this task. The same `key` again gets the same answer, whatever happened in between."""

    type: Literal["commit"] = "commit"
    key: Id
    """Idempotency key."""
    attempt: Attempt
    epoch: Epoch
    task: Annotated[bytes, Field(max_length=MAX_TASK)]
    """Canonical bytes of a `protocol.task.Task`."""
    signature: Signature
    priority: Priority = 50
    ledger: Count | None = None
    """Ledger version of the quote this rests on; None: whatever it is now."""
    queue: bool = False
    """A ticket is welcome when no place is free."""
    preempted: Annotated[int, Field(ge=0, le=MAX_PREEMPTIONS)] = 0
    """How often the task gave way to others already."""
    left_s: Seconds | None = None
    """Until the campaign's time is over: the worker ends the run then, whatever became of us. None: no limit."""
    manifest: Sha256 | None = None
    """What the campaign is, for whoever carries it on: a blob of ours that the worker keeps while it has the campaign's leases."""
    manifest_size: Count = 0
    proof: Proof | None = None
    """From the second epoch on: that the campaign is ours to carry on; for whoever is refused because of it."""


class Granted(Message):
    """The place is yours until `ttl_s` after your last renewal."""

    type: Literal["granted"] = "granted"
    lease: Id
    fence: Fence
    ttl_s: Seconds
    renew_s: Seconds


class Queued(Message):
    """A ticket; `Ready` will come with the lease `lease` under `fence`. To be renewed like a lease."""

    type: Literal["queued"] = "queued"
    lease: Id
    fence: Fence
    position: Annotated[int, Field(ge=1, le=100_000)]
    start_s: Seconds | None = None
    ttl_s: Seconds
    renew_s: Seconds


class Conflict(Message):
    """Somebody was faster, or the quote is old. Nothing is held; here is a fresh quote."""

    type: Literal["conflict"] = "conflict"
    reason: WhyNot
    quote: Quote


class Ready(Message):
    """The place of this ticket is free now and kept for you a few seconds."""

    type: Literal["ready"] = "ready"
    lease: Id
    fence: Fence


class Start(Message):
    """Go."""

    type: Literal["start"] = "start"


class Skip(Message):
    """Not needed any more."""

    type: Literal["skip"] = "skip"


# -- keep it -----------------------------------------------------------------------------------------------------------------


class HeldLease(Message):
    """A lease or ticket, the fence it was granted under, and the epoch under which its scheduler speaks of it."""

    lease: Id
    fence: Fence
    epoch: Epoch | None = None


class Renew(Message):
    """I still want these."""

    type: Literal["renew"] = "renew"
    held: Annotated[tuple[HeldLease, ...], Field(max_length=MAX_BATCH)]


class LeaseLost(Message):
    """A lease that is gone, and why."""

    lease: Id
    reason: WhyNot


class QueuedLease(Message):
    """Where a ticket stands now."""

    lease: Id
    position: Annotated[int, Field(ge=1, le=100_000)]
    start_s: Seconds | None = None


class Renewed(Message):
    """Those are renewed, these are lost."""

    type: Literal["renewed"] = "renewed"
    incarnation: Count
    state: State
    why: Detail = ""
    """Why it takes no work now, when it does not."""
    waiting: Annotated[tuple[QueuedLease, ...], Field(max_length=MAX_BATCH)] = ()
    """The renewed tickets."""
    renewed: Annotated[tuple[Id, ...], Field(max_length=MAX_BATCH)] = ()
    lost: Annotated[tuple[LeaseLost, ...], Field(max_length=MAX_BATCH)] = ()


# -- how it goes -------------------------------------------------------------------------------------------------------------


class Progress(Message):
    """A note: the run of this lease reached a phase, or moved on in it. Numbered; a later one makes earlier ones obsolete."""

    type: Literal["progress"] = "progress"
    lease: Id
    fence: Fence
    seq: Count
    phase: Annotated[Phase, Field(strict=False)]
    done: Count = 0
    total: Count | None = None
    median_ms: Annotated[float, Field(ge=0)] | None = None
    note: Detail = ""


class Result(Message):
    """A signed record, sent until it is answered. A large one is pulled by its hash over `/sark/blob/1`."""

    type: Literal["result"] = "result"
    campaign: Id
    task: Id
    attempt: Attempt
    lease: Id
    fence: Fence
    sha256: Sha256
    """Of the record's bytes."""
    size: Count
    signature: Signature
    body: Annotated[bytes, Field(max_length=MAX_INLINE)] | None = None


class Accepted(Message):
    """Recorded, once; you may forget it."""

    type: Literal["accepted"] = "accepted"


class Stale(Message):
    """Not recorded: the task has ended, or another attempt has a newer fence. You may forget it."""

    type: Literal["stale"] = "stale"
    reason: WhyNot


# -- stop it -----------------------------------------------------------------------------------------------------------------


class Cancel(Message):
    """Stop these runs. Answered when their children are dead."""

    type: Literal["cancel"] = "cancel"
    held: Annotated[tuple[HeldLease, ...], Field(max_length=MAX_BATCH)]
    reason: WhyNot = Reason.CANCELLED


class Release(Message):
    """I do not need these places any more; nothing runs on them."""

    type: Literal["release"] = "release"
    held: Annotated[tuple[HeldLease, ...], Field(max_length=MAX_BATCH)]


class Stopped(Message):
    """None of these runs any more; unknown ones count as stopped."""

    type: Literal["stopped"] = "stopped"
    leases: Annotated[tuple[Id, ...], Field(max_length=MAX_BATCH)]


class Preempt(Message):
    """A note: a higher priority needs the place; the run ends after the grace."""

    type: Literal["preempt"] = "preempt"
    lease: Id
    fence: Fence
    grace_s: Seconds
    priority: Priority
    """Of who needs it."""


# -- after a restart ---------------------------------------------------------------------------------------------------------


class AdoptRequest(Message):
    """I carry on this campaign; from now on refuse schedulers with a lower epoch. `cursor`: where the answer is to go on."""

    type: Literal["adopt-request"] = "adopt-request"
    campaign: Id
    epoch: Epoch
    cursor: Count = 0
    again: bool = False
    """Send me the settled results of this campaign too: another scheduler took them, I have not."""
    proof: Proof | None = None
    """That the campaign is ours to carry on; for whoever is refused because of it."""


class ListLeases(Message):
    """What have you of this campaign? Changes nothing. `cursor`: where the answer is to go on."""

    type: Literal["list-leases"] = "list-leases"
    campaign: Id
    cursor: Count = 0


class LiveLease(Message):
    """A lease, ticket or finished run of the campaign that the worker still holds."""

    task: Id
    attempt: Attempt
    lease: Id
    fence: Fence
    queued: bool = False
    reporting: bool = False
    """The run ended; its result will follow."""
    settled: bool = False
    """Its result was taken by a scheduler before; it will follow again when the asker is one that has not."""
    phase: Annotated[Phase, Field(strict=False)] | None = None
    done: Count = 0
    total: Count | None = None


class AdoptReply(Message):
    """What there is."""

    type: Literal["adopt-reply"] = "adopt-reply"
    incarnation: Count
    leases: Annotated[tuple[LiveLease, ...], Field(max_length=MAX_BATCH)] = ()
    epoch: Epoch = 0
    """The highest one this worker has heard of for the campaign."""
    proof: Proof | None = None
    """What was given for that epoch, if anything."""
    manifest: Sha256 | None = None
    """What the campaign is; to be had over `/sark/blob/1`."""
    manifest_size: Count = 0
    cursor: Count | None = None
    """There is more from here on; None: that was all."""


# -- the owner's hand --------------------------------------------------------------------------------------------------------


class Action(StrEnum):
    """What an owner can tell a device."""

    PAUSE = "pause"
    """Take no new work until told to resume; what runs goes on."""
    RESUME = "resume"
    DRAIN = "drain"
    """End what is here in good order, then leave the swarm."""
    RESET = "reset"
    """It was faulty: try whether it works again."""


class Control(Message):
    """Do that."""

    type: Literal["control"] = "control"
    action: Annotated[Action, Field(strict=False)]
    now: bool = False
    """Pause, drain: do not let what runs end by itself."""
    finish: bool = False
    """Drain: run the tickets that wait here too."""


class StatusRequest(Message):
    """How do you stand, and who has you do what?"""

    type: Literal["status-request"] = "status-request"


class RunningJob(Message):
    """A run or a ticket, for the device's owner."""

    task: Id
    model: Line
    principal: PeerName
    team: Line = ""
    priority: Priority
    state: Line
    """The lease's state, in its own word."""
    phase: Annotated[Phase, Field(strict=False)] | None = None
    since_s: Seconds
    """Since it was committed."""


class WorkerStatus(Message):
    """How it stands."""

    type: Literal["worker-status"] = "worker-status"
    incarnation: Count
    state: State
    why: Detail = ""
    jobs: Annotated[tuple[RunningJob, ...], Field(max_length=MAX_BATCH)] = ()
    running: Count = 0
    queue: Count = 0
    reach: Line | None = None
    """How others reach it, in words; None where that is not known."""


WORK: Final = Vocabulary(
    ShowCredentials, CredentialsReply, Probe, Quote, Denied, Commit, Granted, Queued, Conflict, Ready, Start, Skip, Renew, Renewed,
    Progress,
    Result, Accepted, Stale, Cancel, Release, Stopped, Preempt, AdoptRequest, ListLeases, AdoptReply, Control, StatusRequest, WorkerStatus,
)  # fmt: skip
"""All of the above, in the order of speech."""
