"""A turn of the loop that computes for long is detected by the processor time that it took."""

from __future__ import annotations

import time

import trio
import trio.lowlevel

from swarm.base.stalls import StallWatch


async def computes(seconds: float) -> None:
    began = time.thread_time()
    while time.thread_time() - began < seconds:
        pass


def test_a_step_that_computes_for_long_is_reported_with_its_name() -> None:
    stalls: list[tuple[float, str]] = []

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(computes, 0.03)
            await trio.lowlevel.checkpoint()
        await trio.lowlevel.checkpoint()

    trio.run(main, instruments=[StallWatch(lambda *stall: stalls.append(stall), limit_s=0.02)])
    ((seconds, name),) = stalls
    assert seconds >= 0.03
    assert name.endswith("computes")


class Turns:
    """A loop whose turns last as long as the test says."""

    def __init__(self) -> None:
        self.spent = self.now = 0.0
        self.stalls: list[float] = []
        self.watch = StallWatch(
            lambda seconds, _: self.stalls.append(round(seconds, 3)),
            spent=lambda: self.spent,
            clock=lambda: self.now,
        )

    def turn(self, seconds: float) -> None:
        self.watch.after_io_wait(0)
        self.spent += seconds
        self.watch.before_io_wait(0)


def test_waiting_is_no_stall_and_many_stalls_are_one_report() -> None:
    turns = Turns()
    turns.watch.before_io_wait(0)  # it was added in the middle of a turn
    for seconds in (0.05, 0.2, 0.3, 0.15):
        turns.turn(seconds)
        turns.now += 1
        turns.spent += 5  # in threads, or asleep
    assert turns.stalls == [0.2]
    turns.now += 10
    turns.turn(0.01)
    assert turns.stalls == [0.2, 0.3]
    turns.now += 10
    turns.turn(0.01)
    assert turns.stalls == [0.2, 0.3]
