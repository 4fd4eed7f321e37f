"""Owed stops: a task ended while its run may go on, because the worker has not confirmed that it stopped the run.

The scheduler asks the worker again as soon as it is back, until it confirms. Otherwise the lease lapses, since nobody renews it, and the
run is over at most `OWED_S` after the first stop. This also holds for runs for which no task waits, except that nothing of these is
stored.
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
"""Longest time, in seconds after a stop, for which a renewal sent before it may still arrive."""
OWED_S: Final = ON_ITS_WAY_S + LEASE_TTL_S + GRACE_S


@dataclass(frozen=True, slots=True)
class OwedStop:
    """A stop owed for one attempt. `until`: the latest end of its run, in the scheduler's monotonic seconds."""

    task: str
    attempt: int
    worker: str
    held: HeldLease | None
    """None: its worker never answered the commit, so the lease under which it may run is unknown."""
    until: float


class OwedStops:
    """All stops owed to one scheduler."""

    def __init__(self) -> None:
        self._stops: dict[tuple[str, int], OwedStop] = {}
        self._in_vain: dict[tuple[str, str], tuple[HeldLease, float]] = {}
        """By worker and lease: the lease to name in the stop, and the instant until which to repeat it."""

    def __bool__(self) -> bool:
        """Whether any belong to ended tasks: a scheduler waits for these confirmations before it exits."""
        return bool(self._stops)

    def add(self, stop: OwedStop, since: float, now: float) -> Unconfirmed:
        """A task ends without confirmation that its run stopped; its worker was asked at `since`. Returns what to store."""
        self._stops[stop.task, stop.attempt] = stop
        return Unconfirmed(since_s=max(0.0, now - since), left_s=max(0.0, stop.until - now))

    def restore(self, stops: Iterable[OwedStop]) -> None:
        """Take up the owed stops that an earlier scheduler left."""
        self._stops |= {(stop.task, stop.attempt): stop for stop in stops}

    def add_unwaited_stops(self, peer: str, held: Iterable[HeldLease], now: float) -> None:
        """A worker did not confirm the stop of runs for which no task waits: an attempt that was given up, or one of two."""
        owed = {item.lease for item in self._owed(peer)}
        for item in held:
            if item.lease not in owed:
                self._in_vain.setdefault((peer, item.lease), (item, now + OWED_S))

    def disown(self, peer: str, leases: Iterable[str]) -> None:
        """The worker says that such runs are not ours to stop, since another scheduler leads their campaign."""
        for lease in leases:
            self._in_vain.pop((peer, lease), None)

    def tasks(self, peer: str, leases: Iterable[str]) -> list[str]:
        """The ended tasks to which these runs belong."""
        named = set(leases)
        return [
            stop.task
            for stop in self._stops.values()
            if stop.worker == peer and stop.held is not None and stop.held.lease in named
        ]

    def workers(self) -> tuple[str, ...]:
        """Peer ids of the workers that owe a confirmation."""
        return tuple(dict.fromkeys(stop.worker for stop in self._stops.values()))

    def at(self, peer: str) -> tuple[HeldLease, ...]:
        """Leases that this worker is to be asked again to stop."""
        return self._owed(peer) + self._of_no_task(peer)

    def _owed(self, peer: str) -> tuple[HeldLease, ...]:
        return tuple(
            stop.held for stop in self._stops.values() if stop.worker == peer and stop.held is not None
        )

    def _of_no_task(self, peer: str) -> tuple[HeldLease, ...]:
        return tuple(held for (worker, _), (held, _) in self._in_vain.items() if worker == peer)

    def tell(self, peer: str) -> list[CancelOn]:
        """Commands that ask a worker again to stop everything it has not confirmed."""
        kinds = ((self._owed(peer), Reason.CANCELLED), (self._of_no_task(peer), Reason.FENCED))
        return [CancelOn(peer, held, reason) for held, reason in kinds if held]

    def confirm(self, peer: str, leases: Iterable[str]) -> list[Command]:
        """The worker confirms that nothing runs under these leases."""
        gone = set(leases)
        self.disown(peer, gone)
        stops = (stop for stop in self._stops.values() if stop.worker == peer and stop.held is not None)
        return self._end([stop for stop in stops if stop.held and stop.held.lease in gone], confirmed=True)

    def lapse(self, now: float) -> list[Command]:
        """End the owed stops whose runs must be over by now, whatever their workers do."""
        self._in_vain = {run: known for run, known in self._in_vain.items() if now < known[1]}
        return self._end([stop for stop in self._stops.values() if now >= stop.until], confirmed=False)

    def _end(self, stops: Iterable[OwedStop], *, confirmed: bool) -> list[Command]:
        commands: list[Command] = []
        for stop in stops:
            del self._stops[stop.task, stop.attempt]
            commands.append(EndStop(stop.task, stop.attempt, confirmed=confirmed))
        return commands
