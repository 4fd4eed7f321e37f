"""A clock that is faster than the wall clock, and waits for this process while the machine is busy with other processes."""

from __future__ import annotations

import math
import time
from typing import Final

import trio

MOST_S: Final = 0.02
"""Seconds of the wall clock that count between two readings. During anything beyond that, the processor was elsewhere."""


class PatientClock(trio.abc.Clock):
    """`rate`: seconds that pass in one second of the wall clock."""

    def __init__(self, rate: float) -> None:
        self._rate, self._now, self._looked = rate, 0.0, time.perf_counter()

    def start_clock(self) -> None:
        self._looked = time.perf_counter()

    def current_time(self) -> float:
        before, self._looked = self._looked, time.perf_counter()
        self._now += min(self._looked - before, MOST_S) * self._rate
        return self._now

    def deadline_to_sleep_time(self, deadline: float) -> float:
        if math.isinf(deadline):
            return deadline
        return min(max(0.0, deadline - self.current_time()) / self._rate, MOST_S)
