"""How a gate stops: on the first signal it accepts nothing new and waits a while for live circuits; on the second it stops at once.

    up ── signal ──▶ draining ── no circuit left, or the grace period over, or another signal ──▶ stopped

Peers with a reservation make one at another gate, or here once the gate is back. Circuits last until the grace period ends; their
peers then connect by another path.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Final, Protocol

import trio

from swarm.join.node import END_OF_INPUT

LOOK_S: Final = 0.25
"""How often the circuits are counted."""


class DrainEnd(StrEnum):
    """Why draining ended."""

    IDLE = "no circuit was left"
    GRACE = "the grace period ended"
    AGAIN = "another signal"


class Draining(Protocol):
    """The relay: `swarm.net.reservations.RelayReservations`."""

    def drain(self) -> None: ...


async def drain(relay: Draining, circuits: Callable[[], int], grace_s: float, again: trio.Event) -> DrainEnd:
    """Accept nothing new and wait for live circuits; returns why it stopped waiting."""
    relay.drain()
    until = trio.current_time() + grace_s
    while circuits():
        left = until - trio.current_time()
        if left <= 0:
            return DrainEnd.GRACE
        with trio.move_on_after(min(LOOK_S, left)):
            await again.wait()
            return DrainEnd.AGAIN
    return DrainEnd.IDLE


class DrainSignals:
    """Requests to stop: signals, and the end of standard input if that counts. The first has a name, the second sets `again`."""

    def __init__(self) -> None:
        self.first = trio.Event()
        self.again = trio.Event()
        self.name = ""

    def asked(self, name: str) -> None:
        """One more request. The end of input is final: the parent process is gone."""
        if self.first.is_set() or name == END_OF_INPUT:
            self.again.set()
        if not self.first.is_set():
            self.name = name
            self.first.set()
