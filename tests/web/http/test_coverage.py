"""How often intervals hold is computed over all results: once for many readers, and again after a while."""

from __future__ import annotations

import trio
from trio.testing import MockClock

from results.analysis.sittings import IntervalCoverage
from web.http.coverage import READ_S, CoverageView


async def test_it_is_read_once_for_many_readers_and_anew_after_a_while(autojump_clock: MockClock) -> None:
    read_at: list[float] = []
    began = trio.current_time()

    async def read() -> dict[str, IntervalCoverage]:
        read_at.append(trio.current_time() - began)
        await trio.sleep(5)
        return {"d k": IntervalCoverage(len(read_at), 10)}

    view = CoverageView(read)
    seen: list[int] = []

    async def look() -> None:
        seen.append((await view.now())["d k"].held)

    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(look)
    await trio.sleep(READ_S - 1)
    await look()
    await trio.sleep(1)
    await look()
    assert seen == [1, 1, 1, 1, 2]
    assert read_at == [0, 5 + READ_S]
