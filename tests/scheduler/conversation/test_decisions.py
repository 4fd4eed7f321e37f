"""When the core decides: with the first event after a quiet while, and then once for all events until the next decision."""

from __future__ import annotations

from collections.abc import Coroutine
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

from scheduler.conversation.conversation import APART_S, SchedulerConversation
from scheduler.conversation.effects import SleepUntil, drive


class Deciding:
    """A core that notes when it decided. `left`: so often there is more to be done at once."""

    def __init__(self, left: int = 0) -> None:
        self.undecided = False
        self.state = SimpleNamespace(withdrawn=(), unfinished=left > 0)
        self.decided: list[float] = []
        self._left = left

    def decide(self, now: float) -> list[Any]:
        self.decided.append(now)
        self.undecided, self._left = False, self._left - 1
        self.state.unfinished = self._left > 0
        return []


async def perform(effect: Any) -> None:
    assert isinstance(effect, SleepUntil)
    await trio.sleep_until(effect.until)


def conversation(core: Any, nursery: trio.Nursery) -> SchedulerConversation:
    def start(job: Coroutine[Any, Any, None]) -> None:
        nursery.start_soon(drive, job, perform)

    shell: Any = SimpleNamespace(now=trio.current_time, start=start, wake=lambda: None)
    rest: Any = SimpleNamespace()
    return SchedulerConversation(
        core,
        shell,
        rest,
        rest,
        rest,
        rest,
        peer="",
        sign=bytes,
        manifest=lambda campaign: None,
        ended=lambda campaign: None,
    )


async def test_events_that_follow_a_decision_soon_wait_for_the_next_and_share_it(
    autojump_clock: trio.testing.MockClock,
) -> None:
    core, began = Deciding(), trio.current_time()
    async with trio.open_nursery() as nursery:
        talk = conversation(core, nursery)
        for _ in range(8):  # one each quarter of the time between two decisions
            core.undecided = True
            talk.carry_out(())
            await trio.sleep(APART_S / 4)
    assert core.decided == pytest.approx([began, began + APART_S, began + 2 * APART_S])


async def test_an_event_that_changes_nothing_is_followed_by_no_decision(
    autojump_clock: trio.testing.MockClock,
) -> None:
    core, began = Deciding(), trio.current_time()
    async with trio.open_nursery() as nursery:
        talk = conversation(core, nursery)
        talk.carry_out(())
        core.undecided = True
        talk.carry_out(())
    assert core.decided == [began]


async def test_what_a_decision_left_is_not_waited_for(autojump_clock: trio.testing.MockClock) -> None:
    core, began = Deciding(left=3), trio.current_time()
    async with trio.open_nursery() as nursery:
        core.undecided = True
        conversation(core, nursery).carry_out(())
        while len(core.decided) < 3:
            core.undecided = True  # a core that has left something is
            await trio.lowlevel.checkpoint()
    assert core.decided == [began] * 3
