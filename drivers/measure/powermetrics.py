"""`powermetrics` of macOS: the energy of Apple's chips, read from its output. Available to root, and to users who may run it without a
password."""

from __future__ import annotations

import re
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from drivers.measure.meters import MeterReading

COMMAND: Final = ("sudo", "-n", "powermetrics", "--samplers", "cpu_power,gpu_power", "-i", "500")
FIRST_S: Final = 3.0
"""Limit for its first two samples, which show the idle device's power."""
NEXT_S: Final = 1.0
_ELAPSED: Final = re.compile(r"\*\*\* Sampled system activity \(.*\) \(([0-9.]+)ms elapsed\) \*\*\*")
_COMBINED: Final = re.compile(r"Combined Power \(CPU \+ GPU \+ ANE\): +([0-9.]+) *(m?)W")


class PowermetricsText:
    """The lines of `powermetrics` as a counter: each sample is a mean over the time that the sample names. One thread feeds it, another
    reads it."""

    source: str = "powermetrics"
    part: str = "package"
    device: str = "processor, GPU and Neural Engine"

    def __init__(self, clock: Callable[[], int]) -> None:
        self._clock = clock
        self._elapsed_s = self._joules = 0.0
        self._unread = deque[MeterReading]()
        self._changed = threading.Condition()
        self._ended = False

    def feed(self, line: str) -> None:
        """Take the next line, just after it arrived."""
        if elapsed := _ELAPSED.search(line):
            self._elapsed_s = float(elapsed[1]) / 1000
        elif (power := _COMBINED.search(line)) and self._elapsed_s:
            self._joules += float(power[1]) / (1000 if power[2] else 1) * self._elapsed_s
            self._elapsed_s = 0.0  # two samplers may print the line
            with self._changed:
                self._unread.append(MeterReading(self._clock(), joules=self._joules))
                self._changed.notify_all()

    def end(self) -> None:
        """Say that no more lines will come."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def wait_for(self, samples: int, most_s: float) -> bool:
        """Wait until `samples` samples are unread, but at most `most_s` seconds; returns whether at least one is unread."""
        with self._changed:
            self._changed.wait_for(lambda: self._ended or len(self._unread) >= samples, most_s)
            return bool(self._unread)

    def settle(self, most_s: float = NEXT_S) -> None:
        """Wait for a sample that comes after now: those before it do not cover the inferences just timed."""
        with self._changed:
            self._unread.clear()
        self.wait_for(1, most_s)

    def read(self) -> MeterReading | None:
        return self._unread.popleft() if self._unread else None


def open_powermetrics(
    command: Sequence[str] = COMMAND, clock: Callable[[], int] = time.perf_counter_ns
) -> PowermetricsText | None:
    """Start `powermetrics` and wait for two samples. It runs until this process ends and its pipe closes: a user may not signal a process
    of root. None where it may not be run without a password."""
    text = PowermetricsText(clock)
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
    except OSError:
        return None

    def follow() -> None:
        with process:
            for line in process.stdout or ():
                text.feed(line)
        text.end()

    threading.Thread(target=follow, daemon=True).start()
    return text if text.wait_for(2, FIRST_S) else None
