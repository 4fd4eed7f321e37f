"""What blocks in one kind of work does not wait for another kind."""

from __future__ import annotations

import threading

import trio

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
