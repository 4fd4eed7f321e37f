"""Levels of load: requests in parallel without a pause (closed loop), or at given times whatever is in flight (open loop).

Closed loops show what the server does when it is kept busy, open ones what users see who do not wait for each other.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from drivers.openai.client import Clock
from drivers.openai.sse import ChatAnswer, StreamEnd

LOOK_NS: Final = 100_000_000
"""Between two looks at whether the server keeps up."""

Ask = Callable[[int], Awaitable[ChatAnswer]]
"""Sends the request of that number."""


@dataclass(slots=True)
class Sweep:
    """A level as it goes: what has come so far, in the order in which the requests were sent."""

    answers: dict[int, ChatAnswer] = field(default_factory=dict)
    flying: int = 0
    most_flying: int = 0
    began_ns: int = 0
    ended_ns: int = 0
    cut: str = ""
    """Why it was ended before all was sent."""
    complete: int = 0
    bad: int = 0
    """Failed or incomplete."""

    def put(self, number: int, answered: ChatAnswer) -> None:
        """One more has come."""
        self.answers[number] = answered
        self.flying -= 1
        if answered.ended is StreamEnd.COMPLETE:
            self.complete += 1
        else:
            self.bad += 1

    def send(self) -> None:
        """One more is on its way."""
        self.flying += 1
        self.most_flying = max(self.most_flying, self.flying)

    @property
    def in_order(self) -> list[ChatAnswer]:
        """What came."""
        return [self.answers[number] for number in sorted(self.answers)]

    @property
    def wall_s(self) -> float:
        """From the first request to the end of the last."""
        return (self.ended_ns - self.began_ns) / 1e9


async def closed_loop(
    sweep: Sweep, ask: Ask, numbers: Iterator[int], concurrency: int, clock: Clock, *, bad: int
) -> None:
    """Keep `concurrency` requests in flight until `numbers` are used up, or more than `bad` have failed."""

    async def stream() -> None:
        for number in numbers:
            sweep.send()
            sweep.put(number, await ask(number))
            if sweep.bad > bad:
                sweep.cut = "too many requests failed"
            if sweep.cut:
                return

    sweep.began_ns = sweep.began_ns or clock()
    async with asyncio.TaskGroup() as group:
        for _ in range(concurrency):
            group.create_task(stream())
    sweep.ended_ns = clock()


async def exactly(
    sweep: Sweep, ask: Ask, wanted: int, first: int, concurrency: int, clock: Clock, *, bad: int
) -> None:
    """`wanted` complete answers: requests that fail are replaced by others, with further numbers, until more than `bad` have failed."""

    def due() -> Iterator[int]:
        while sweep.complete + sweep.flying < wanted:
            yield first + len(sweep.answers) + sweep.flying

    while sweep.complete < wanted and not sweep.cut:
        await closed_loop(sweep, ask, due(), min(concurrency, wanted - sweep.complete), clock, bad=bad)


async def open_loop(
    sweep: Sweep,
    ask: Ask,
    arrivals: Sequence[float],
    clock: Clock,
    *,
    most: int,
    full: Callable[[Sweep], str],
) -> None:
    """Send request k at `arrivals[k]` seconds whatever is still in flight, until `full` says why not (asked before a request, ten times a
    second at most: it looks through what came, and meanwhile nothing is sent or stamped).
    """

    async def one(number: int, due_ns: int) -> None:
        answered = await ask(number)
        sweep.put(number, replace(answered, lag_ns=max(0, answered.sent_ns - due_ns)))

    sweep.began_ns = looked_ns = clock()
    async with asyncio.TaskGroup() as group:
        for number, arrival in enumerate(arrivals):
            due_ns = sweep.began_ns + round(arrival * 1e9)
            await asyncio.sleep(max(0.0, (due_ns - clock()) / 1e9))
            if sweep.flying >= most:
                sweep.cut = "more requests were in flight than this client holds"
            elif clock() - looked_ns >= LOOK_NS:
                sweep.cut = full(sweep)
                looked_ns = clock()
            if sweep.cut:
                break
            sweep.send()
            group.create_task(one(number, due_ns))
    sweep.ended_ns = clock()


def poisson(rate: float, count: int, seed: int) -> tuple[float, ...]:
    """When each of `count` requests is due, in seconds: gaps of a Poisson process with `rate` a second."""
    rng = random.Random(f"{seed} arrivals {rate!r}")
    due: list[float] = []
    at = 0.0
    for _ in range(count):
        due.append(at)
        at += rng.expovariate(rate)
    return tuple(due)
