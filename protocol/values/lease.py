"""A lease as the worker's ledger sees it: a slot on one device for one attempt of one task, under a fence. And the worker's own state.

Fence = (incarnation, number). Both only rise, so a result under an older fence can be recognised and refused, whoever sends it.
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
"""After this long without a renewal, the slot may go to others."""
RENEW_EVERY_S: Final = 5.0
GRACE_S: Final = 600.0
"""A run continues for this long after its lease lapsed, while nobody else needs the device."""
AGEING_S: Final = 60.0
"""A queued lease's priority rises by one for each such period of waiting …"""
MAX_AGEING: Final = 9
"""… at most this many times, so that waiting alone never bridges the gap for a preemption."""
PREEMPT_GAP: Final = 10
"""How much higher a priority must be for a run to give way to it."""
PREEMPT_GRACE_S: Final = 1.0
"""From the warning to the end of the preempted run."""
MAX_PREEMPTIONS: Final = 2
"""A task that was preempted this often is not preempted again."""


class Fence(Message):
    """Orders the grants of one worker across its restarts."""

    incarnation: Annotated[int, Field(ge=0, le=2**32)]
    number: Annotated[int, Field(ge=0, le=2**53)]

    def key(self) -> tuple[int, int]:
        return (self.incarnation, self.number)

    def __eq__(self, other: object) -> bool:
        """Like any message's comparison, but five times as fast: fences are compared two dozen times for a task."""
        return type(other) is Fence and self.number == other.number and self.incarnation == other.incarnation

    def __hash__(self) -> int:
        return hash(self.key())


class LeaseState(StrEnum):
    """The life of a lease."""

    QUEUED = "queued"
    OFFERED = "offered"
    GRANTED = "granted"
    RUNNING = "running"
    LAPSED = "lapsed"
    """Not renewed in time: the run continues in grace, and the slot may be taken."""
    STOPPING = "stopping"
    """The lease has ended; the run's processes are being killed, and occupy the device until they are dead."""
    REPORTING = "reporting"
    """The run ended; its result waits for the scheduler."""
    CLOSED = "closed"


class LeaseEvent(StrEnum):
    """What happens to a lease."""

    READY = "ready"
    START = "start"
    SKIP = "skip"
    DEFER = "defer"
    """The scheduler could not be asked: the queued lease keeps waiting."""
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
"""After this many different models crashed without a success in between, a worker runs one known to work; faulty if that fails."""


class WorkerEvent(StrEnum):
    """What moves a worker from one state to another."""

    BEGIN = "begin"
    """A task was accepted and is being prepared or run."""
    END = "end"
    """The child is gone; its files are being removed."""
    CLEAN = "clean"
    """Nothing of the task is left."""
    BREAK = "break"
    """Too many failures in a row, or the device no longer works."""
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
    """Proof that a campaign is carried on under an epoch: signed by the peer that does so, with the token that permits it.

    An adopter sends the bytes with `AdoptRequest` and `Commit`. The worker stores them unread, and shows them with `Denied` to the
    scheduler that led the campaign before, which verifies them.
    """

    v: Literal[1] = 1
    peer: PeerName
    """The peer that carries the campaign on."""
    campaign: Id
    epoch: Epoch
    signature: Signature
    """By `peer`, over campaign and epoch."""
    issuer: PeerName | None = None
    """The issuer of the token that permits it; None: the campaign is the peer's own."""
    token: Token | None = None

    @property
    def message(self) -> bytes:
        """The bytes to sign."""
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
    """The bytes; None if they are too many for a message."""
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
    """The proof in the bytes; the caller must check signature and token. Raises `RemoteProtocolError`."""
    return read_value(TakeoverProof, data, max_bytes=MAX_PROOF)


def _proof_message(campaign: str, epoch: int) -> bytes:
    return _CONTEXT + campaign.encode() + b"\n" + str(epoch).encode()
