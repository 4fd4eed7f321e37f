"""A separate process, at the lowest priority, that prints readings of the device until its standard input ends. No thread runs next to the
measured loop. Both sides read `time.perf_counter_ns`, which is one clock for all processes of a host."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Final

from drivers.contract.boot import clean_environment

INTERVAL_S: Final = 0.03
MAX_READINGS: Final = 100_000
"""Most readings of a long run: they are taken less often."""
IDLE_READINGS: Final = 5
"""Readings before `start` returns."""
READY_S: Final = 5.0
"""Limit for the reader's library to open."""
END_S: Final = 2.0
MAX_BYTES: Final = 64 * 1024 * 1024


def interval_s(run_s: float | None) -> float:
    """Seconds between two readings during a run of `run_s` seconds; None: the run is short."""
    return max(INTERVAL_S, (run_s or 0.0) / MAX_READINGS)


class ReaderProcess:
    """The parent's end of a reader. Use once; always call `stop`."""

    def __init__(self, command: Sequence[str], folder: Path | None = None) -> None:
        """`command` runs `read_on` (`drivers.contract.boot.boot_command`). `folder`: where its output is stored; None: the system's
        folder."""
        self._command, self._folder = command, folder
        self._process: subprocess.Popen[bytes] | None = None
        self._file: IO[bytes] | None = None
        self._files = contextlib.ExitStack()
        self.began_ns = 0
        """Readings before this time are of the idle device."""
        self.found_nothing = False
        """The reader ended by itself before its first reading, without an error."""

    def start(self) -> bool:
        """Returns True after the idle readings; False if there is nothing to read, or no space for the readings."""
        try:
            with contextlib.ExitStack() as opened:
                self._file = opened.enter_context(tempfile.TemporaryFile(dir=self._folder))
                self._files = opened.pop_all()
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=self._file,
                stderr=subprocess.PIPE,
                env=clean_environment(os.environ),
            )
        except OSError:
            return False
        lines: list[bytes] = []
        errors = self._process.stderr
        assert errors is not None
        reader = threading.Thread(target=lambda: lines.append(errors.readline()), daemon=True)
        reader.start()
        reader.join(READY_S)
        ready, self.found_nothing = lines == [b"ready\n"], lines == [b""]
        if not ready:
            self._end()
        self.began_ns = time.perf_counter_ns()
        return ready

    def stop(self) -> bytes | None:
        """End the reader; return its output. None at a second call."""
        self._end()
        file, self._file = self._file, None
        if file is None:
            return None
        with self._files:
            file.seek(0)
            return file.read(MAX_BYTES)

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        assert process.stderr is not None
        with contextlib.suppress(OSError):
            process.stdin.close()
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stderr.close()


def read_on(
    heading: str, read: Callable[[], str], every_s: float, settle: Callable[[], object] = lambda: None
) -> None:
    """Runs in the reader's process: prints a heading, then one line per reading until standard input ends, then one more after `settle`.
    Prints `ready` on stderr after the idle readings."""
    ended = threading.Event()
    threading.Thread(target=_set_at_end, args=(ended,), daemon=True).start()
    out = sys.stdout
    out.write(heading + "\n")
    count = written = 0
    while not ended.is_set() and written < MAX_BYTES:
        written += out.write(read() + "\n")
        count += 1
        if count == IDLE_READINGS:
            out.flush()
            sys.stderr.write("ready\n")
            sys.stderr.flush()
        ended.wait(every_s)
    settle()
    out.write(read() + "\n")  # the counters after the last window
    out.flush()


def _set_at_end(ended: threading.Event) -> None:
    sys.stdin.buffer.read()
    ended.set()


def lower_priority() -> None:
    """Lower the priority of this process as far as possible."""
    if sys.platform == "win32":
        import psutil

        psutil.Process().nice(psutil.IDLE_PRIORITY_CLASS)
    else:
        os.nice(19)
