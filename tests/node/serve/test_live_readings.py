"""Sensors are read only while something runs, and the readings reach the schedulers whose tasks run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import trio
import trio.testing

from node.serve.live_readings import INTERVAL_S, LiveReadings
from protocol.formats.phase import Phase
from protocol.messages.work import Granted, Progress, StatusRequest, WorkerStatus
from protocol.values.reading import DeviceReading

READING = DeviceReading(cpu=0.5, memory=2**30)


class FakeSensors:
    def __init__(self) -> None:
        self.opened = self.closed = 0
        self.trouble = 0
        """How many reads will fail."""

    def open(self) -> FakeSensors:
        self.opened += 1
        return self

    def read(self) -> DeviceReading:
        if self.trouble:
            self.trouble -= 1
            raise OSError("too many open files")
        return READING

    def close(self) -> None:
        self.closed += 1


class Reader:
    """A `LiveReadings` whose readings come over a channel."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.sensors, self.running = FakeSensors(), True
        send, self.came = trio.open_memory_channel[float](100)
        self.live = LiveReadings(
            self.sensors.open,
            lambda: self.running,
            lambda reading: send.send_nowait(trio.current_time()),
            self.at_once,
        )
        nursery.start_soon(self.live.keep)

    async def at_once(self, read: Callable[[], Any]) -> Any:
        """Read without a thread, because the test's clock jumps."""
        await trio.lowlevel.checkpoint()
        return read()


async def test_readings_come_at_their_pace_while_something_runs_and_end_with_it(
    autojump_clock: trio.testing.MockClock,
) -> None:
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            reader = Reader(nursery)
            await trio.testing.wait_all_tasks_blocked()
            assert (reader.sensors.opened, reader.live.latest()) == (0, None)
            reader.live.begin()
            first, second = await reader.came.receive(), await reader.came.receive()
            assert second - first == INTERVAL_S
            latest = reader.live.latest()
            assert latest is not None
            assert latest.cpu == READING.cpu
            reader.running = False
            while not reader.sensors.closed:
                await trio.sleep(INTERVAL_S)
            assert reader.live.latest() is None
            reader.running = True
            reader.live.begin()
            await reader.came.receive()
            assert reader.sensors.opened == 2
            nursery.cancel_scope.cancel()
    assert reader.sensors.closed == 2


async def test_the_newest_says_how_old_it_is(autojump_clock: trio.testing.MockClock) -> None:
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            reader = Reader(nursery)
            reader.live.begin()
            at = await reader.came.receive()
            await trio.sleep(1.5)
            latest = reader.live.latest()
            assert latest is not None
            assert latest.age_s == trio.current_time() - at
            nursery.cancel_scope.cancel()


async def test_a_reading_that_fails_is_tried_again(autojump_clock: trio.testing.MockClock) -> None:
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            reader = Reader(nursery)
            reader.sensors.trouble = 2
            reader.live.begin()
            await reader.came.receive()
            assert (reader.sensors.opened, reader.sensors.closed) == (3, 2)
            nursery.cancel_scope.cancel()


async def test_a_worker_shows_its_sensors_to_the_scheduler_and_to_its_owner(world: Any) -> None:
    world.open_sensors = FakeSensors().open
    await world.start()
    link = await world.link()
    idle = await link.ask(StatusRequest(), WorkerStatus)
    assert idle.reading is None
    await link.ask(world.ann.commit(world.ann.task()), Granted)
    with trio.fail_after(5):
        while not (shown := [note for note in world.ann.came if isinstance(note, Progress) and note.reading]):
            async with world.ann.news:
                await world.ann.news.wait()
    assert (shown[0].reading, shown[0].phase) == (READING, Phase.LOAD)
    status = await link.ask(StatusRequest(), WorkerStatus)
    assert status.reading is not None
    assert status.reading.memory == READING.memory
