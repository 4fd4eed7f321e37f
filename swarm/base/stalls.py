"""Detects turns of the event loop that compute for long: meanwhile no link is answered and nothing is renewed.

It measures processor time of the loop's thread, so that a busy machine does not look like a stall.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

import trio

STALL_S: Final = 0.1
"""A turn that computes for longer than this is a stall."""
REPORT_EVERY_S: Final = 10.0


class StallWatch(trio.abc.Instrument):
    """An instrument to add to a trio run. It calls `stalled`, at most every `every_s`, with the seconds of the longest stall since the last
    call and the name of the task that took most of that time.
    """

    def __init__(
        self,
        stalled: Callable[[float, str], None],
        *,
        limit_s: float = STALL_S,
        every_s: float = REPORT_EVERY_S,
        spent: Callable[[], float] = time.thread_time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stalled, self._limit_s, self._every_s = stalled, limit_s, every_s
        self._spent, self._clock = spent, clock
        self._turn_at: float | None = None
        self._step_at = 0.0
        self._longest_step, self._task = 0.0, ""
        self._worst: tuple[float, str] = (0.0, "")
        self._reported_at = -every_s

    def after_io_wait(self, timeout: float) -> None:
        self._turn_at = self._step_at = self._spent()
        self._longest_step, self._task = 0.0, ""

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        began, self._step_at = self._step_at, self._spent()
        if self._step_at - began > self._longest_step:
            self._longest_step, self._task = self._step_at - began, task.name

    def before_io_wait(self, timeout: float) -> None:
        if self._turn_at is None:
            return
        turn = self._spent() - self._turn_at
        if turn >= self._limit_s and turn > self._worst[0]:
            self._worst = (turn, self._task)
        if self._worst[0] and self._clock() >= self._reported_at + self._every_s:
            self._reported_at = self._clock()
            worst, self._worst = self._worst, (0.0, "")
            self._stalled(*worst)
