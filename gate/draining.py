"""How a gate ends: told once, it lends nothing new and waits a while for the connections that go through it; told again, it ends at once.

    up ── told to stop ──▶ draining ── no circuit left, or the grace is over, or told again ──▶ over

Those that hold places here lose nothing but the place: they take one at another gate, or here again once it is back. Whoever speaks
through a circuit speaks on until the grace is over, and then by another way.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Final, Protocol

import trio

from swarm.join.enter import END_OF_INPUT

LOOK_S: Final = 0.25
"""How often it is looked whether circuits are left."""


class DrainEnd(StrEnum):
    """What ended the draining."""

    IDLE = "nothing went through this gate any more"
    GRACE = "its grace was over"
    AGAIN = "told to stop again"


class Draining(Protocol):
    """What lends: `swarm.relay_desk.RelayDesk` is one."""

    def drain(self) -> None: ...


async def drain(relay: Draining, circuits: Callable[[], int], grace_s: float, again: trio.Event) -> DrainEnd:
    """Lend nothing new and wait for what runs; gives why it waits no longer."""
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
    """Requests to stop: signals, and the end of standard input where that counts. The first names itself, the second is `again`."""

    def __init__(self) -> None:
        self.first = trio.Event()
        self.again = trio.Event()
        self.name = ""

    def asked(self, name: str) -> None:
        """One more request. The end of input is final: whoever started this has gone."""
        if self.first.is_set() or name == END_OF_INPUT:
            self.again.set()
        if not self.first.is_set():
            self.name = name
            self.first.set()
