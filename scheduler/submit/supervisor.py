"""Restarts a home's background scheduler after a crash, and reports the crash to `campaigns` and `watch`.

    submit ──▶ supervisor ──▶ schedule      killed, or ended with an error: again after 1 s, 2 s, … 60 s
                                            ended well, was stopped, or its settings are wrong: the supervisor ends too

A process of its own, which imports little: `python -m scheduler.submit.supervisor FOLDER COMMAND…`; the stand-alone binary runs it with
`schedule --supervised`. A scheduler whose supervisor is gone starts another (`scheduler.submit.supervised`).
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import structlog

from swarm.base.durable import write_atomically
from swarm.base.home import Home
from swarm.base.locks import is_held
from swarm.base.logs import set_up_logs
from swarm.base.process import FROZEN
from swarm.base.text import count

FIRST_S: Final = 1.0
LONGEST_S: Final = 60.0
STEADY_S: Final = 60.0
"""A process that ran for this many seconds has started well: the next pause is short again."""
FAILURES: Final = 2
"""Consecutive failed starts, before any good one, after which the supervisor gives up. One failure may be a lost race for the home."""
WRONG: Final = (2, 5)
"""Exit codes that would recur: wrong settings, and missing permission."""
CRASH: Final = "crash.json"
OVERDUE_S: Final = 30.0
"""Seconds past the announced start after which no supervisor is expected to start the scheduler any more."""

SUPERVISOR: Final = "SARK_SUPERVISOR"
"""Environment variable of a scheduler: the process id of its supervisor."""
SCHEDULER: Final = "SARK_SCHEDULER"
"""Environment variable of a supervisor: the process that already runs, and reports on standard input how it ends."""
UNSEEN: Final = 512
"""Stands for an exit code if the process ended without a message and nobody saw how."""
LOOKS: Final = 10
LOOK_S: Final = 0.1
"""A process that only checks whether a home is held holds it for a moment. So the home counts as taken only if it is held at each of these
checks, with a pause between them.
"""

log = structlog.get_logger("sark.supervisor")


@dataclass(frozen=True, slots=True)
class CrashReport:
    """The last crash of a home's scheduler. Instants are wall seconds."""

    why: str
    at: float
    again_at: float
    crashes: int
    """Number since the supervisor started."""


def supervise(
    run: Callable[[], int],
    *,
    taken: Callable[[], bool],
    report: Callable[[str, float], None],
    pause: Callable[[float], object],
    now: Callable[[], float],
) -> int:
    """Run until it ends well, another process has the home (`taken`), or it cannot start; returns the exit code. A negative code is a
    signal's. `report`: called with how it ended, and the seconds until the next run.
    """
    wait_s, failures, started = FIRST_S, 0, False
    while True:
        began = now()
        code = run()
        if code in (0, *WRONG):
            return code
        if taken():
            return 0
        if now() - began >= STEADY_S:
            wait_s, started = FIRST_S, True
        failures = failures + 1 if 0 < code < UNSEEN and not started else 0
        if failures >= FAILURES:
            return code
        report(how_it_ended(code), wait_s)
        pause(wait_s)
        if taken():
            return 0
        wait_s = min(2 * wait_s, LONGEST_S)


def how_it_ended(code: int) -> str:
    """`killed by SIGKILL`, `exit code 6`."""
    if code == UNSEEN:
        return "how is not known"
    if code >= 0:
        return f"exit code {code}"
    with contextlib.suppress(ValueError):
        return f"killed by {signal.Signals(-code).name}"
    return f"killed by signal {-code}"


class Supervisor:
    """Runs a command as described in `supervise`, and forwards a request to stop to it."""

    def __init__(self, folder: Path, command: Sequence[str], taken: Callable[[], bool]) -> None:
        self._place = folder / CRASH
        self._command = command
        self._taken = taken
        self._child: subprocess.Popen[bytes] | None = None
        pid = os.environ.pop(SCHEDULER, "")
        self._running = int(pid) if pid.isdigit() else None
        self._crashes = 0

    def run(self) -> int:
        """Blocks for as long as campaigns are open. Returns the exit code."""
        before = {number: signal.signal(number, self._stop) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            code = supervise(
                self._once, taken=self._taken, report=self._report, pause=time.sleep, now=time.monotonic
            )
            if code:
                log.error("scheduler.gave_up", why=how_it_ended(code))
            return code
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            if not self._taken():
                with contextlib.suppress(OSError):
                    self._place.unlink(missing_ok=True)

    def _once(self) -> int:
        if self._running is not None:
            words = sys.stdin.buffer.read().strip()  # until that process has ended
            self._running = None
            return int(words) if words.isdigit() else UNSEEN
        environment = {**os.environ, SUPERVISOR: str(os.getpid())}
        with subprocess.Popen(self._command, stdin=subprocess.DEVNULL, env=environment) as self._child:
            return self._child.wait()

    def _stop(self, number: int, frame: Any) -> None:
        if self._running is not None:
            with contextlib.suppress(OSError):
                os.kill(self._running, signal.SIGTERM)
        elif self._child is None or self._child.poll() is not None:
            raise SystemExit(0)
        else:
            self._child.terminate()

    def _report(self, why: str, wait_s: float) -> None:
        self._crashes += 1
        log.error("scheduler.crashed", why=why, again_in_s=wait_s, crashes=self._crashes)
        crash = CrashReport(why, time.time(), time.time() + wait_s, self._crashes)
        with contextlib.suppress(OSError):
            write_atomically(self._place, json.dumps(asdict(crash)).encode())


def last_crash(home: Home) -> CrashReport | None:
    """The supervisor's report. None: the scheduler of this home has not crashed, as far as is known."""
    try:
        return CrashReport(**json.loads((home.folder("scheduler") / CRASH).read_bytes()))
    except (OSError, ValueError, TypeError):
        return None


def crash_line(crash: CrashReport | None, *, running: bool, wall: float) -> str:
    """For people; empty if there is nothing to say."""
    if crash is None or (not running and wall > crash.again_at + OVERDUE_S):
        return ""
    at = time.strftime("%H:%M:%S", time.localtime(crash.at))
    if running:
        more = f", {count(crash.crashes, 'crash', 'crashes')} so far" if crash.crashes > 1 else ""
        return f"The scheduler crashed at {at} ({crash.why}) and was started again{more}."
    left = max(0.0, crash.again_at - wall)
    return f"The scheduler crashed at {at} ({crash.why}); it is started again in {left:.0f} s."


def supervisor_of(folder: Path, command: Sequence[str]) -> list[str]:
    """The command of a supervisor over `schedule`. `folder`: the scheduler's data folder."""
    if FROZEN:
        return [*command, "--supervised"]
    return [sys.executable, "-P", "-m", "scheduler.submit.supervisor", str(folder), *command]


def main(folder: Path, command: Sequence[str]) -> int:
    """Blocks for as long as campaigns are open."""
    return Supervisor(folder, command, lambda: stays_held(folder)).run()


def stays_held(folder: Path, *, pause: Callable[[float], object] = time.sleep) -> bool:
    """Whether another process holds the home, rather than only checking it."""
    for _ in range(LOOKS):
        if not is_held(folder):
            return False
        pause(LOOK_S)
    return True


if __name__ == "__main__":
    set_up_logs(sys.stderr)
    raise SystemExit(main(Path(sys.argv[1]), sys.argv[2:]))
