"""A lease, as the worker's ledger sees it: a place on one device for one attempt of one task, under a fence.

Fence = (incarnation, number). Both only rise, so a result under an older one can be recognised and refused, whoever sends it.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final

from pydantic import Field

from protocol.wire.base import Message
from protocol.wire.table import Table

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


class Fence(Message):
    """Orders grants of one worker over its restarts."""

    incarnation: Annotated[int, Field(ge=0, le=2**32)]
    number: Annotated[int, Field(ge=0, le=2**53)]

    def key(self) -> tuple[int, int]:
        return (self.incarnation, self.number)


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


MAX_PROOF: Final = 4 * 1024


MAX_EPOCH: Final = 2**53
Epoch = Annotated[int, Field(ge=0, le=MAX_EPOCH)]
