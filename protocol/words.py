"""The closed lists of words that go over the wire, into rows and onto the screen. A word is never renamed or reused.

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
    """The caller is not on the list of those this node serves."""
    DOES_NOT_FIT = "does-not-fit"
    """A clause of the requirement is not met by this node."""
    BUSY = "busy"
    """All places are taken and the queue is full."""
    STALE_QUOTE = "stale-quote"
    """The ledger moved on since the quote; a fresh one comes with the answer."""
    NOT_SERVING = "not-serving"
    """The node is faulty, draining or leaving."""
    QUOTA = "quota"
    """All places that the caller's permission allows here are taken."""
    DISK_FULL = "disk-full"
    UNKNOWN = "unknown"
    """No such lease, task, ticket, blob or campaign here."""
    STALE_EPOCH = "stale-epoch"
    """A scheduler with a higher epoch has adopted the campaign."""
    OVERLOADED = "overloaded"
    """A per-peer limit was reached; try again after the time given."""
    BAD_REQUEST = "bad-request"
    NOT_A_HOLDER = "not-a-holder"
    """This node keeps no adverts of others."""
    # the end of a lease
    EXPIRED = "expired"
    PREEMPTED = "preempted"
    FENCED = "fenced"
    CANCELLED = "cancelled"
    LOST = "lost"
    """The worker restarted or vanished while it held the task."""
    ADOPTED = "adopted"
    """Another scheduler carries the campaign on."""
    # the end of a run
    BROKEN_MODEL = "broken-model"
    NO_SHAPE = "no-shape"
    """The task does not say how large the model's inputs are, or gives sizes with which the model does not run."""
    WRONG_UNIT = "wrong-unit"
    """The unit that was asked for did not run the model, or this device lacks something that it needs for it."""
    WRONG_HASH = "wrong-hash"
    FETCH_FAILED = "fetch-failed"
    CRASHED = "crashed"
    OUT_OF_MEMORY = "out-of-memory"
    TIMED_OUT = "timed-out"
    CHECK_FAILED = "check-failed"
    NOT_WITNESSED = "not-witnessed"
    """The record is not what its scheduler witnessed while it ran."""
    WRONG_OUTPUTS = "wrong-outputs"
    """The scheduler repeated an inference of the run and got other outputs."""
    NOTHING_FITS = "nothing-fits"
    GAVE_UP = "gave-up"
    """All attempts were used."""
    NOT_TRUSTED = "not-trusted"
    """The submitter does not trust the worker, or not any more."""


class WorkerState(StrEnum):
    """The state that a worker reports."""

    ACTIVE = "active"
    BUSY = "busy"
    CLEANUP = "cleanup"
    FAULTY = "faulty"
    DRAINING = "draining"


class Right(StrEnum):
    """What a permission lets its holder do at a worker."""

    SUBMIT = "submit"
    """Have tasks run, and look after them: probe, commit, renew, cancel, release, adopt, and the blobs that belong to them."""
    STATUS = "status"
    """Ask for quotes, leases and the status of the device."""
    CONTROL = "control"
    """Pause, resume, drain and reset."""


class Role(StrEnum):
    """What a member of a pool is there for."""

    WORKER = "worker"
    """Its device runs what the pool's submitters ask for."""
    SUBMIT = "submit"
    """It may have the pool's workers run its campaigns."""


class RunOutcome(StrEnum):
    """How a run ended, as the worker signs it."""

    COMPLETE = "complete"
    FAILED = "failed"
    CANCELLED = "cancelled"


class ProtocolId(StrEnum):
    """The protocol ids, one for each family of exchanges; each is versioned apart."""

    INDEX = "/sark/index/1"
    WORK = "/sark/work/1"
    BLOB = "/sark/blob/1"
    HEALTH = "/sark/health/1"
    POOL = "/sark/pool/1"
    REACH = "/sark/reach/1"
    GATE = "/sark/gate/1"


SIMULATED_UNIT: Final = "Fake (Simulation)"
"""The unit whose figures come from a script. Pretended devices offer no other."""


def asks_for_simulated_unit(spec: str) -> bool:
    """Whether a stored campaign asks for the simulated unit, be it for a part of its tasks only."""
    if SIMULATED_UNIT not in spec:
        return False
    try:
        document = json.loads(spec)
    except ValueError:
        return False
    jobs = document.get("jobs") or [{"unit": unit} for unit in document.get("units") or ()]
    return any(job.get("unit") == SIMULATED_UNIT for job in jobs)
