"""Blocking calls of one kind of work do not wait for another kind."""

from __future__ import annotations

import threading
import time

import trio
from trio.testing import MockClock

from swarm.base.threads import DISK, DNS


async def test_names_that_take_long_stop_neither_the_disk_nor_each_other_for_ever() -> None:
    answer, resolved = threading.Event(), list[int]()

    async def look_up(number: int) -> None:
        await DNS.run(answer.wait)
        resolved.append(number)

    async with trio.open_nursery() as nursery:
        for number in range(3 * DNS.threads):
            nursery.start_soon(look_up, number)
        await trio.testing.wait_all_tasks_blocked()
        assert DNS.limiter().borrowed_tokens == DNS.threads
        with trio.fail_after(10):
            for _ in range(DISK.threads):
                assert await DISK.run(lambda: "read") == "read"
        answer.set()
    assert len(resolved) == 3 * DNS.threads


def test_each_run_of_trio_has_pools_of_its_own() -> None:
    async def pool() -> trio.CapacityLimiter:
        assert DISK.limiter() is DISK.limiter()
        return DISK.limiter()

    assert trio.run(pool) is not trio.run(pool)


async def test_a_clock_that_jumps_waits_for_short_work(autojump_clock: MockClock) -> None:
    """Concerns the tests themselves: otherwise deadlines pass on a busy machine before a thread has had its turn."""

    async def beside() -> None:
        await trio.sleep(5)
        late.append(trio.current_time())

    began, late = trio.current_time(), list[float]()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(beside)
        async with trio.open_nursery() as work:
            for _ in range(3):
                work.start_soon(DISK.run, time.sleep, 0.05)
        assert trio.current_time() == began
        assert not late
    assert late == [began + 5], "and jumps again afterwards"
