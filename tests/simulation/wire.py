"""Links between the processes of the model, and what can happen to a message on its way.

A scheduler opens a link, which carries calls both ways. A message may arrive late, out of order, twice or not at all. Across a cut nothing
arrives, and both ends notice after some seconds. The links of a killed process break at once, those of a machine that lost power in
silence.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeVar

from protocol.errors import RemoteProtocolError, Unreachable
from protocol.wire.base import Message
from tests.simulation.kernel import Flag, Process

M = TypeVar("M", bound=Message)
NOTICE_S = 8.0
"""How long a silent link seems alive."""
TOO_LONG_S = 3.0

Serve = Callable[["End", Message], Awaitable[Message | None]]


@dataclass
class Weather:
    """The probability of each fault of a message, and its delay."""

    drop: float = 0.0
    twice: float = 0.0
    slow: float = 0.0
    """Arrives up to TOO_LONG_S late, behind many later messages."""
    latency_s: float = 0.005


@dataclass(eq=False)
class Station:
    """A process as the network sees it: the function that serves requests, and the state of its links."""

    process: Process
    serve: Serve
    opened: Callable[[End], None] = lambda end: None
    closed: Callable[[End], None] = lambda end: None
    ends: dict[End, None] = field(default_factory=dict)
    peer: str = ""
    """Its peer id, which a copy of its key shares; empty: the process's name."""
    speaks: dict[str, int] = field(default_factory=dict)
    """Campaign → epoch of the present life. For the history only, not for the other side."""


class End:
    """One side of a link."""

    def __init__(self, air: Air, me: Station, other: Station) -> None:
        self._air = air
        self.me = me
        self.station = other
        self.peer = other.peer or other.process.name
        self.speaks = me.speaks
        self.closed = Flag()
        self.epochs: dict[str, int] = {}
        """For the worker's desk: campaign → the epoch under which this link has spoken."""
        self.far: End

    async def call(self, message: Message, max_wait_s: float = 5.0) -> Message:
        """Send a request and return the answer. Raises `Unreachable` on silence or when the link breaks first."""
        if self.closed.is_set:
            raise Unreachable("the link is closed")
        box: list[Message] = []
        done = Flag()
        closed = self.closed

        def answered(answer: Message) -> None:
            if not done.is_set:
                box.append(answer)
                done.set()

        self._air.carry(self, message, answered)
        closed.then(done.set)
        await done.wait(self.me.process, max_wait_s)
        closed.forget(done.set)
        if box:
            return box[0]
        raise Unreachable("the link broke" if closed.is_set else "no answer")

    async def ask(self, message: Message, expected: type[M], *, max_wait_s: float = 5.0) -> M:
        """`call`, with the answer's type checked."""
        answer = await self.call(message, max_wait_s)
        if isinstance(answer, expected):
            return answer
        await self.reset()
        raise RemoteProtocolError(f"{self.peer} answered with {type(answer).__name__}")

    async def reset(self) -> None:
        """Like `swarm.net.link.Link.reset`."""
        self.drop()

    def tell(self, message: Message) -> None:
        """Send a note. Nobody learns whether it arrives."""
        if not self.closed.is_set:
            self._air.carry(self, message, None)

    def drop(self) -> None:
        """Give the link up on this side. The other side hears of it, if it can."""
        self._air.break_link(self, 0.0, self._air.notice(self.me, self.station))

    def end(self) -> None:
        """Close the link on this side."""
        if not self.closed.is_set:
            self.closed.set()
            self.me.ends.pop(self, None)
            if self.me.process.alive:
                self.me.closed(self)


class Air:
    """The network: who reaches whom, and the weather."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self.weather = Weather()
        self.cuts: set[tuple[str, str]] = set()
        """(from, to): nothing arrives in this direction."""
        self.stations: dict[str, Station] = {}
        self.injected: Counter[str] = Counter()
        self.lies: set[str] = set()
        """Hashes of records that are false."""
        self.dropped: Callable[[str, str], None] = lambda one, other: None
        """Called with both ends of a link that lost a message, once for each direction."""
        self.delayed: Callable[[str, str], None] = lambda one, other: None
        """Called with both ends of a link on which a message will be late, once for each direction."""

    def cut(self, one: str, other: str) -> bool:
        """Whether nothing arrives in that direction."""
        return (one, other) in self.cuts

    def notice(self, me: Station, other: Station) -> float:
        """Seconds until the other end notices that this one is gone."""
        return NOTICE_S if self.cut(me.process.name, other.process.name) else self.latency()

    def latency(self) -> float:
        """Seconds that one message takes without faults."""
        return self.weather.latency_s * (0.5 + self._rng.random())

    async def open(self, me: Station, peer: str, max_wait_s: float) -> End:
        """Open a new link. Raises `Unreachable`; `refused` where the peer's machine answers that no process is there."""
        process, other = me.process, self.stations[peer]
        await process.sleep(4 * self.latency())
        if self.cut(process.name, peer) or self.cut(peer, process.name):
            await process.sleep(max_wait_s)
            raise Unreachable("no answer")
        if not other.process.alive:
            raise Unreachable("connection refused", refused=True)
        if other.process.paused_until > process.kernel.now:
            await process.sleep(max_wait_s)
            raise Unreachable("no answer")
        own, theirs = End(self, me, other), End(self, other, me)
        own.far, theirs.far = theirs, own
        me.ends[own] = other.ends[theirs] = None
        other.opened(theirs)
        return own

    def break_link(self, end: End, here_s: float, there_s: float) -> None:
        """Break a link; each end notices in its own time."""
        kernel = end.me.process.kernel
        if here_s:
            kernel.after(here_s, end.end)
        else:
            end.end()
        kernel.after(there_s, end.far.end)

    def lost(self, station: Station, *, silent: bool) -> None:
        """A process was killed: its links break for the other ends, in silence (`silent`) where the whole machine went down."""
        for end in tuple(station.ends):
            end.closed.set()
            station.ends.pop(end, None)
            there = NOTICE_S if silent else self.notice(station, end.station)
            end.me.process.kernel.after(there, end.far.end)

    def carry(self, end: End, message: Message, answered: Callable[[Message], None] | None) -> None:
        """Deliver a message to the other side, as the weather allows."""
        for _ in range(self._copies(end)):
            end.me.process.kernel.after(self._delay(end), lambda: self._arrive(end.far, message, answered))

    def _arrive(self, end: End, message: Message, answered: Callable[[Message], None] | None) -> None:
        if end.closed.is_set or not end.me.process.alive:
            return
        end.me.process.spawn(self._serve(end, message, answered))

    async def _serve(self, end: End, message: Message, answered: Callable[[Message], None] | None) -> None:
        answer = await end.me.serve(end, message)
        if answer is None or answered is None or end.closed.is_set:
            return
        for _ in range(self._copies(end)):
            end.me.process.kernel.after(self._delay(end), lambda: self._answer(end, answer, answered))

    @staticmethod
    def _answer(end: End, answer: Message, answered: Callable[[Message], None]) -> None:
        if not end.far.closed.is_set and end.far.me.process.alive:
            answered(answer)

    def _copies(self, end: End) -> int:
        me, other = end.me.process.name, end.station.process.name
        if self.cut(me, other):
            self.break_link(end, NOTICE_S, NOTICE_S)
            return 0
        if self._rng.random() < self.weather.drop:
            self.injected["dropped"] += 1
            self.dropped(me, other)
            self.dropped(other, me)
            return 0
        if self._rng.random() < self.weather.twice:
            self.injected["twice"] += 1
            return 2
        return 1

    def _delay(self, end: End) -> float:
        if self._rng.random() < self.weather.slow:
            self.injected["late"] += 1
            me, other = end.me.process.name, end.station.process.name
            self.delayed(me, other)
            self.delayed(other, me)
            return self._rng.uniform(0.0, TOO_LONG_S)
        return self.latency()
