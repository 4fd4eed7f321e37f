"""Levels of load: parallel requests without a pause (closed loop), or requests at given times, whatever is in flight (open loop).

Closed loops show what the server does when it is kept busy; open loops show what users see who do not wait for each other.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from drivers.openai.sse import RequestResult
from drivers.openai.workload import MAX_CONCURRENCY

STEP_S: Final = 0.5
"""Time between two progress reports."""
LOOK_NS: Final = 100_000_000
"""Time between two checks whether the server keeps up."""

Clock = Callable[[], int]
"""Monotonic nanoseconds."""
Ask = Callable[[int], Awaitable[RequestResult]]
"""Sends the request with the given number."""


@dataclass(slots=True)
class Sweep:
    results: dict[int, RequestResult] = field(default_factory=dict)
    """Results by the request's number, which is the order of sending."""
    in_flight: int = 0
    began_ns: int = 0
    ended_ns: int = 0
    cut: str = ""
    """Why the level was ended before all requests were sent."""
    complete: int = 0
    bad: int = 0
    """Failed or incomplete requests."""

    def add(self, number: int, result: RequestResult) -> None:
        self.results[number] = result
        self.in_flight -= 1
        self.complete += not result.error
        self.bad += bool(result.error)

    @property
    def in_order(self) -> list[RequestResult]:
        return [self.results[number] for number in sorted(self.results)]

    @property
    def wall_s(self) -> float:
        """Time from the first request to the end of the last."""
        return (self.ended_ns - self.began_ns) / 1e9


async def closed_loop(
    sweep: Sweep, ask: Ask, numbers: Iterator[int], concurrency: int, clock: Clock, *, bad: int
) -> None:
    """Keep `concurrency` requests in flight until `numbers` are used up, or more than `bad` requests have failed."""

    async def stream() -> None:
        for number in numbers:
            sweep.in_flight += 1
            sweep.add(number, await ask(number))
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
    sweep: Sweep, ask: Ask, count: int, first: int, concurrency: int, clock: Clock, *, bad: int
) -> None:
    """Make `count` complete requests. Requests that fail are replaced by others, with further numbers, until more than `bad` have
    failed."""

    def due() -> Iterator[int]:
        while sweep.complete + sweep.in_flight < count:
            yield first + len(sweep.results) + sweep.in_flight

    while sweep.complete < count and not sweep.cut:
        await closed_loop(sweep, ask, due(), min(concurrency, count - sweep.complete), clock, bad=bad)


async def open_loop(
    sweep: Sweep,
    ask: Ask,
    first: int,
    arrivals: Sequence[float],
    clock: Clock,
    *,
    saturated: Callable[[Sweep], str],
    most: int = MAX_CONCURRENCY,
) -> None:
    """Send request `first + k` at `arrivals[k]` seconds, whatever is still in flight, until `most` are in flight or `saturated` gives a
    reason.

    `saturated` is called before a request, ten times a second at most: nothing is sent or stamped while it runs.
    """

    async def one(number: int, due_ns: int) -> None:
        result = await ask(number)
        sweep.add(number, replace(result, lag_ns=max(0, result.sent_ns - due_ns)))

    sweep.began_ns = looked_ns = clock()
    async with asyncio.TaskGroup() as group:
        for number, arrival in enumerate(arrivals, first):
            due_ns = sweep.began_ns + round(arrival * 1e9)
            await asyncio.sleep(max(0.0, (due_ns - clock()) / 1e9))
            if sweep.in_flight >= most:
                sweep.cut = "more requests were in flight than this client can hold"
            elif clock() - looked_ns >= LOOK_NS:
                sweep.cut = saturated(sweep)
                looked_ns = clock()
            if sweep.cut:
                break
            sweep.in_flight += 1
            group.create_task(one(number, due_ns))
    sweep.ended_ns = clock()


def poisson(rate: float, count: int, seed: int) -> tuple[float, ...]:
    """When each of `count` requests is due, in seconds: gaps of a Poisson process with a rate of `rate` per second."""
    rng = random.Random(f"{seed} arrivals {rate!r}")
    due: list[float] = []
    at = 0.0
    for _ in range(count):
        due.append(at)
        at += rng.expovariate(rate)
    return tuple(due)
