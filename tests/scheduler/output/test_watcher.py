"""One visitor looks around for all who watch, and leaves when nobody does. On a clock that jumps."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing

from protocol.errors import Unreachable
from protocol.values.advert import Advert
from protocol.values.match import match
from protocol.values.requirement import Requirement
from scheduler.output.fleet import FleetWatcher, ObservedDevice
from swarm.net.identity import Identity


def seen(name: str) -> ObservedDevice:
    advert = Advert(peer=Identity.from_seed(name).peer_id, seq=1, device=f"d-{name}", name=name)
    return ObservedDevice(advert, None, "", match(Requirement(), advert))


class Swarm:
    """What the observer finds, and how often one was opened."""

    def __init__(self, *names: str) -> None:
        self.names = list(names)
        self.opened = 0
        self.visitors = 0
        self.looks = 0
        self.dark = False

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Swarm]:
        async with trio.open_nursery() as nursery:  # like the real ones, whose exceptions arrive in a group
            await trio.sleep(0.5)
            if self.dark:
                raise Unreachable("no gate answers", hint="is it running?")
            self.opened += 1
            self.visitors += 1
            try:
                yield self
            finally:
                self.visitors -= 1
            nursery.cancel_scope.cancel()

    async def observe(self) -> tuple[ObservedDevice, ...]:
        await trio.sleep(0.1)
        if self.dark:
            raise Unreachable("no gate answers any more")
        self.looks += 1
        return tuple(seen(name) for name in self.names)


@pytest.fixture
async def swarm() -> Swarm:
    return Swarm("one", "two")


@pytest.fixture
async def watcher(swarm: Swarm) -> AsyncIterator[FleetWatcher]:
    made = FleetWatcher(swarm.open, interval_s=3, linger_s=20)  # type: ignore[arg-type]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(made.run)
        yield made
        nursery.cancel_scope.cancel()


async def test_nobody_is_visited_while_nobody_looks(
    autojump_clock: trio.testing.MockClock, watcher: FleetWatcher, swarm: Swarm
) -> None:
    await trio.sleep(100)
    assert swarm.opened == 0


async def test_many_watchers_share_one_visitor_and_its_numbers(
    autojump_clock: trio.testing.MockClock, watcher: FleetWatcher, swarm: Swarm
) -> None:
    numbers: list[list[int]] = [[], [], []]

    async def watch(received: list[int]) -> None:
        with watcher.watching():
            for _ in range(5):
                snapshot = await watcher.newer(received[-1] if received else 0)
                assert [item.advert.name for item in snapshot.devices] == ["one", "two"]
                received.append(snapshot.number)

    async with trio.open_nursery() as nursery:
        for received in numbers:
            nursery.start_soon(watch, received)
    assert numbers == [[1, 2, 3, 4, 5]] * 3
    assert (swarm.opened, swarm.looks) == (1, 5)


async def test_the_visitor_stays_a_while_and_then_leaves(
    autojump_clock: trio.testing.MockClock, watcher: FleetWatcher, swarm: Swarm
) -> None:
    with watcher.watching():
        await watcher.newer()
    await trio.sleep(10)
    with watcher.watching():
        assert (await watcher.newer()).number > 1  # it had continued to look
    await trio.sleep(60)
    assert (swarm.opened, swarm.visitors) == (1, 0)
    looks = swarm.looks
    swarm.names.append("three")
    with watcher.watching():
        snapshot = await watcher.newer()
    assert len(snapshot.devices) == 3  # old sightings are not shown as current
    assert (swarm.opened, swarm.looks) == (2, looks + 1)


async def test_why_nothing_can_be_seen_is_shown_until_it_can(
    autojump_clock: trio.testing.MockClock, watcher: FleetWatcher, swarm: Swarm
) -> None:
    with watcher.watching():
        first = await watcher.newer()
        swarm.dark = True
        second = await watcher.newer(first.number)
        assert second.error is not None
        assert second.error.what == "no gate answers any more"
        assert second.devices == ()
        third = await watcher.newer(second.number)
        assert third.error is not None
        assert third.error.hint == "is it running?"
        swarm.dark = False
        number = third.number
        while (snapshot := await watcher.newer(number)).error is not None:
            number = snapshot.number
        assert len(snapshot.devices) == 2
    assert swarm.opened == 2


async def test_a_swarm_that_takes_long_to_look_at_is_asked_less_often(
    autojump_clock: trio.testing.MockClock,
) -> None:
    class Slow(Swarm):
        async def observe(self) -> tuple[ObservedDevice, ...]:
            await trio.sleep(10)
            return await super().observe()

    swarm = Slow("one")
    watcher = FleetWatcher(swarm.open, interval_s=3)  # type: ignore[arg-type]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(watcher.run)
        with watcher.watching():
            await trio.sleep(200)
        nursery.cancel_scope.cancel()
    assert swarm.looks == 5  # it rests for three of four seconds
