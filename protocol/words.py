"""The closed lists of words used on the wire, in rows and on the screen. A word is never renamed or reused.

Retired words stay listed in SPEC.md.
"""

from __future__ import annotations

import json
from enum import StrEnum
from typing import Final


class Reason(StrEnum):
    """Why a request was refused, or why a task ended as it did."""

    # a refusal of a request
    NOT_ALLOWED = "not-allowed"
    """The caller is not among those that this node serves."""
    DOES_NOT_FIT = "does-not-fit"
    """This node does not meet a clause of the requirement."""
    BUSY = "busy"
    """All slots are taken and the queue is full."""
    STALE_QUOTE = "stale-quote"
    """The ledger has changed since the quote; a fresh quote comes with the answer."""
    NOT_SERVING = "not-serving"
    """The node is faulty, draining or leaving."""
    QUOTA = "quota"
    """All slots that the caller's permission allows here are taken."""
    DISK_FULL = "disk-full"
    UNKNOWN = "unknown"
    """No such lease, task, ticket, blob or campaign here."""
    STALE_EPOCH = "stale-epoch"
    """A scheduler with a higher epoch has adopted the campaign."""
    OVERLOADED = "overloaded"
    """A limit for each peer was reached; retry after the given time."""
    BAD_REQUEST = "bad-request"
    NOT_A_HOLDER = "not-a-holder"
    """This node stores no adverts for others."""
    # the end of a lease
    EXPIRED = "expired"
    PREEMPTED = "preempted"
    FENCED = "fenced"
    CANCELLED = "cancelled"
    LOST = "lost"
    """The worker restarted or vanished while it held the task."""
    ADOPTED = "adopted"
    """Another scheduler has taken over the campaign."""
    # the end of a run
    BROKEN_MODEL = "broken-model"
    NO_SHAPE = "no-shape"
    """The task does not give the sizes of the model's inputs, or gives sizes with which the model does not run."""
    WRONG_UNIT = "wrong-unit"
    """The requested unit did not run the model, or this device lacks something that the unit needs for it."""
    WRONG_HASH = "wrong-hash"
    FETCH_FAILED = "fetch-failed"
    CRASHED = "crashed"
    OUT_OF_MEMORY = "out-of-memory"
    TIMED_OUT = "timed-out"
    CHECK_FAILED = "check-failed"
    NOT_WITNESSED = "not-witnessed"
    """The record differs from what its scheduler witnessed during the run."""
    WRONG_OUTPUTS = "wrong-outputs"
    """The scheduler repeated an inference of the run and got different outputs."""
    NOTHING_FITS = "nothing-fits"
    GAVE_UP = "gave-up"
    """All attempts were used up."""
    NOT_TRUSTED = "not-trusted"
    """The submitter does not trust the worker, or no longer does."""


class WorkerState(StrEnum):
    """The state that a worker reports."""

    ACTIVE = "active"
    BUSY = "busy"
    CLEANUP = "cleanup"
    FAULTY = "faulty"
    DRAINING = "draining"


class Right(StrEnum):
    """What a permission allows its holder at a worker."""

    SUBMIT = "submit"
    """Have tasks run, and manage them: probe, commit, renew, cancel, release, adopt, and the blobs that belong to them."""
    STATUS = "status"
    """Ask for quotes, leases and the status of the device."""
    CONTROL = "control"
    """Pause, resume, drain and reset."""


class Role(StrEnum):
    """What a member of a pool does."""

    WORKER = "worker"
    """Its device runs tasks for the pool's submitters."""
    SUBMIT = "submit"
    """It may have the pool's workers run its campaigns."""


class RunOutcome(StrEnum):
    """How a run ended, as signed by the worker."""

    COMPLETE = "complete"
    FAILED = "failed"
    CANCELLED = "cancelled"


class ProtocolId(StrEnum):
    """The protocol ids, one for each family of exchanges, each with its own version."""

    INDEX = "/sark/index/1"
    WORK = "/sark/work/1"
    BLOB = "/sark/blob/1"
    HEALTH = "/sark/health/1"
    POOL = "/sark/pool/1"
    REACH = "/sark/reach/1"
    GATE = "/sark/gate/1"


SIMULATED_UNIT: Final = "Fake (Simulation)"
"""The unit whose figures come from a script; simulated devices offer no other."""


def asks_for_simulated_unit(spec: str) -> bool:
    """Whether a stored campaign asks for the simulated unit, at least for some of its tasks."""
    if SIMULATED_UNIT not in spec:
        return False
    try:
        document = json.loads(spec)
    except ValueError:
        return False
    jobs = document.get("jobs") or [{"unit": unit} for unit in document.get("units") or ()]
    return any(job.get("unit") == SIMULATED_UNIT for job in jobs)
