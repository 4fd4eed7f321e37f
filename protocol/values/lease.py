"""A lease, as the worker's ledger sees it: a slot on one device for one attempt of one task, under a fence. And the worker's own state.

Fence = (incarnation, number). Both only rise, so a result under an older one can be recognised and refused, whoever sends it.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Annotated, Final, Literal

from pydantic import Field

from protocol.wire.base import Id, Message, PeerName, Signature, Token
from protocol.wire.codec import pack, read_value
from protocol.wire.table import Table
from protocol.words import WorkerState

LEASE_TTL_S: Final = 15.0
"""After this long without a renewal the place may go to others."""
RENEW_EVERY_S: Final = 5.0
GRACE_S: Final = 600.0
"""A run goes on for this long after its lease lapsed, while nobody else needs the device."""
AGEING_S: Final = 60.0
"""A ticket's priority rises by one for each of these that it waited …"""
MAX_AGEING: Final = 9
"""… at most so often, so that waiting alone never jumps a gap that preempts."""
PREEMPT_GAP: Final = 10
"""So much higher a priority must be for a run to give way to it."""
PREEMPT_GRACE_S: Final = 1.0
"""From the warning to the end of a run that gives way."""
MAX_PREEMPTIONS: Final = 2
"""A task preempted this often is not preempted again."""


class Fence(Message):
    """Orders grants of one worker over its restarts."""

    incarnation: Annotated[int, Field(ge=0, le=2**32)]
    number: Annotated[int, Field(ge=0, le=2**53)]

    def key(self) -> tuple[int, int]:
        return (self.incarnation, self.number)

    def __eq__(self, other: object) -> bool:
        """As any message's, but in a fifth of the time: fences are compared two dozen times for a task."""
        return type(other) is Fence and self.number == other.number and self.incarnation == other.incarnation

    def __hash__(self) -> int:
        return hash(self.key())


class LeaseState(StrEnum):
    """Life of a place."""

    QUEUED = "queued"
    OFFERED = "offered"
    GRANTED = "granted"
    RUNNING = "running"
    LAPSED = "lapsed"
    """Not renewed in time: the run goes on in grace, the place may be taken."""
    STOPPING = "stopping"
    """No lease any more; the run's processes are being killed, and the device is theirs until they are dead."""
    REPORTING = "reporting"
    """The run ended; its result waits for the scheduler."""
    CLOSED = "closed"


class LeaseEvent(StrEnum):
    """What happens to a place."""

    READY = "ready"
    START = "start"
    SKIP = "skip"
    DEFER = "defer"
    """The scheduler could not be asked: the ticket waits on."""
    RUN = "run"
    EXPIRE = "expire"
    RENEW = "renew"
    FINISH = "finish"
    ACKNOWLEDGE = "acknowledge"
    STOP = "stop"


_S, _E = LeaseState, LeaseEvent

LEASE: Final[Table[LeaseState, LeaseEvent]] = {
    _S.QUEUED: {_E.READY: _S.OFFERED, _E.RENEW: _S.QUEUED, _E.EXPIRE: _S.CLOSED, _E.STOP: _S.CLOSED},
    _S.OFFERED: {
        _E.START: _S.GRANTED,
        _E.SKIP: _S.CLOSED,
        _E.DEFER: _S.QUEUED,
        _E.RENEW: _S.OFFERED,
        _E.EXPIRE: _S.CLOSED,
        _E.STOP: _S.CLOSED,
    },
    _S.GRANTED: {_E.RUN: _S.RUNNING, _E.RENEW: _S.GRANTED, _E.EXPIRE: _S.CLOSED, _E.STOP: _S.CLOSED},
    _S.RUNNING: {_E.RENEW: _S.RUNNING, _E.EXPIRE: _S.LAPSED, _E.FINISH: _S.REPORTING, _E.STOP: _S.STOPPING},
    _S.LAPSED: {_E.RENEW: _S.RUNNING, _E.FINISH: _S.REPORTING, _E.EXPIRE: _S.STOPPING, _E.STOP: _S.STOPPING},
    _S.STOPPING: {_E.FINISH: _S.REPORTING},
    _S.REPORTING: {_E.RENEW: _S.REPORTING, _E.ACKNOWLEDGE: _S.CLOSED},
    _S.CLOSED: {},
}


FAULTY_AFTER: Final = 3
"""Different models that crashed with no success in between, before a worker runs what is known to work; faulty if that fails."""


class WorkerEvent(StrEnum):
    """What moves a worker from state to state."""

    BEGIN = "begin"
    """A task was taken and is being prepared or run."""
    END = "end"
    """The child is gone; its files are being removed."""
    CLEAN = "clean"
    """Nothing of the task is left."""
    BREAK = "break"
    """Too many failures in a row, or the device does not work any more."""
    RESET = "reset"
    DRAIN = "drain"
    RESUME = "resume"


_W, _V = WorkerState, WorkerEvent

WORKER: Final[Table[WorkerState, WorkerEvent]] = {
    _W.ACTIVE: {_V.BEGIN: _W.BUSY, _V.BREAK: _W.FAULTY, _V.DRAIN: _W.DRAINING},
    _W.BUSY: {_V.END: _W.CLEANUP, _V.BREAK: _W.FAULTY, _V.DRAIN: _W.DRAINING},
    _W.CLEANUP: {_V.CLEAN: _W.ACTIVE, _V.BREAK: _W.FAULTY, _V.DRAIN: _W.DRAINING},
    _W.FAULTY: {_V.RESET: _W.ACTIVE},
    _W.DRAINING: {_V.END: _W.DRAINING, _V.CLEAN: _W.DRAINING, _V.BREAK: _W.FAULTY, _V.RESUME: _W.ACTIVE},
}


MAX_PROOF: Final = 4 * 1024
MAX_EPOCH: Final = 2**53
Epoch = Annotated[int, Field(ge=0, le=MAX_EPOCH)]
_CONTEXT: Final = b"sark adopt 1\n"


class TakeoverProof(Message):
    """That a campaign is carried on under an epoch: signed by who carries it on, with the token that permits it.

    An adopter sends the bytes with `AdoptRequest` and `Commit`; the worker stores them unread and shows them with `Denied` to the scheduler
    that led before, which verifies them.
    """

    v: Literal[1] = 1
    peer: PeerName
    """Who carries it on."""
    campaign: Id
    epoch: Epoch
    signature: Signature
    """Of `peer`, over campaign and epoch."""
    issuer: PeerName | None = None
    """Whose token lets it; None: the campaign is its own."""
    token: Token | None = None

    @property
    def message(self) -> bytes:
        """What the signature is made over."""
        return _proof_message(self.campaign, self.epoch)


def make_proof(
    peer: str,
    campaign: str,
    epoch: int,
    sign: Callable[[bytes], bytes],
    *,
    issuer: str | None = None,
    token: bytes | None = None,
) -> bytes | None:
    """The bytes; None when they would be more than a message takes."""
    proof = TakeoverProof(
        peer=peer,
        campaign=campaign,
        epoch=epoch,
        signature=sign(_proof_message(campaign, epoch)),
        issuer=issuer,
        token=token,
    )
    data = pack(proof.to_wire())
    return data if len(data) <= MAX_PROOF else None


def read_proof(data: bytes) -> TakeoverProof:
    """What is in the bytes; signature and token are for the caller to check. Raises `RemoteProtocolError`."""
    return read_value(TakeoverProof, data, max_bytes=MAX_PROOF)


def _proof_message(campaign: str, epoch: int) -> bytes:
    return _CONTEXT + campaign.encode() + b"\n" + str(epoch).encode()
