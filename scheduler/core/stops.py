"""Stops that are owed: a task ended while its run may go on, because the worker has not confirmed that it was stopped.

The worker is asked again as soon as it is back, until it confirms. Without that its lease lapses, since nobody renews it, and the run is
over `OWED_S` after the first stop at the latest.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from protocol.messages.work import HeldLease
from protocol.values.lease import GRACE_S, LEASE_TTL_S
from protocol.words import Reason
from scheduler.core.commands import CancelOn, Command, EndStop, Unconfirmed

ON_ITS_WAY_S: Final = 10.0
"""A renewal that was sent before the stop may arrive so much later."""
OWED_S: Final = ON_ITS_WAY_S + LEASE_TTL_S + GRACE_S


@dataclass(frozen=True, slots=True)
class OwedStop:
    """Of one attempt. `until`: the scheduler's monotonic seconds when its run is over at the latest."""

    task: str
    attempt: int
    worker: str
    held: HeldLease | None
    """None: its worker never answered the commit, so that it is not known under which lease it may run."""
    until: float


class OwedStops:
    """All of one scheduler."""

    def __init__(self) -> None:
        self._stops: dict[tuple[str, int], OwedStop] = {}

    def __bool__(self) -> bool:
        return bool(self._stops)

    def add(self, stop: OwedStop, since: float, now: float) -> Unconfirmed:
        """A task ends without the confirmation that its run was stopped; its worker was asked `since` then. Gives what to store of it."""
        self._stops[stop.task, stop.attempt] = stop
        return Unconfirmed(since_s=max(0.0, now - since), left_s=max(0.0, stop.until - now))

    def restore(self, stops: Iterable[OwedStop]) -> None:
        """As an earlier scheduler left them."""
        self._stops |= {(stop.task, stop.attempt): stop for stop in stops}

    def workers(self) -> tuple[str, ...]:
        """Those that owe a confirmation."""
        return tuple(dict.fromkeys(stop.worker for stop in self._stops.values()))

    def at(self, peer: str) -> tuple[HeldLease, ...]:
        """What this worker is to be asked again."""
        return tuple(
            stop.held for stop in self._stops.values() if stop.worker == peer and stop.held is not None
        )

    def tell(self, peer: str) -> list[CancelOn]:
        """Tell it again."""
        return [CancelOn(peer, held, Reason.CANCELLED)] if (held := self.at(peer)) else []

    def confirm(self, peer: str, leases: Iterable[str]) -> list[Command]:
        """The worker says that nothing runs under these leases."""
        gone = set(leases)
        stops = (stop for stop in self._stops.values() if stop.worker == peer and stop.held is not None)
        return self._end([stop for stop in stops if stop.held and stop.held.lease in gone], confirmed=True)

    def lapse(self, now: float) -> list[Command]:
        """End those whose runs are over by now, whatever their workers do."""
        return self._end([stop for stop in self._stops.values() if now >= stop.until], confirmed=False)

    def _end(self, stops: Iterable[OwedStop], *, confirmed: bool) -> list[Command]:
        commands: list[Command] = []
        for stop in stops:
            del self._stops[stop.task, stop.attempt]
            commands.append(EndStop(stop.task, stop.attempt, confirmed=confirmed))
        return commands
