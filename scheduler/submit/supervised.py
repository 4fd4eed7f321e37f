"""A scheduler that a supervisor started keeps a supervisor: if it is gone, the scheduler starts another, which takes over this process.

supervisor ──▶ schedule ──▶ another supervisor      reads from a pipe how the scheduler ended; without a message it crashed
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import psutil
import structlog

from protocol.errors import SarkError
from scheduler.submit.supervisor import SCHEDULER, SUPERVISOR, supervisor_of
from swarm.base.process import detached

log = structlog.get_logger("sark.scheduler")


@contextlib.contextmanager
def keeping_supervisor(
    folder: Path, command: Sequence[str], environment: Mapping[str, str] = os.environ
) -> Iterator[Callable[[], None]]:
    """A blocking function to call now and then while `command` runs as this process. A supervisor started by it learns how the context
    ends.
    """
    kept = _Kept(folder, command, environment)
    try:
        yield kept.check
    except SarkError as error:
        kept.leave(error.exit_code)
        raise
    kept.leave(0)


class _Kept:
    """The supervisor of this process: the one that started it, or one that it started itself."""

    def __init__(self, folder: Path, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self._folder = folder
        self._command = command
        pid = environment.get(SUPERVISOR, "")
        self._wanted = pid.isdigit()
        self._first: psutil.Process | None = None
        self._own: subprocess.Popen[bytes] | None = None
        if self._wanted:
            with contextlib.suppress(psutil.Error):
                self._first = psutil.Process(int(pid))

    def check(self) -> None:
        """Start another supervisor if it is gone. If there was none at the beginning, none is wanted."""
        if not self._wanted or self._lives():
            return
        try:
            environment = {**os.environ, SCHEDULER: str(os.getpid())}
            self._own = detached(
                supervisor_of(self._folder, self._command), stdin=subprocess.PIPE, environment=environment
            )
        except OSError as error:
            log.warning("supervisor.start_failed", why=str(error))
        else:
            log.warning("supervisor.replaced", pid=self._own.pid)

    def leave(self, code: int) -> None:
        """Tell a supervisor that this process started how the process ends: it is not the parent, and cannot see it."""
        if self._own is not None and self._own.stdin is not None:
            with contextlib.suppress(OSError):
                self._own.stdin.write(b"%d\n" % code)
                self._own.stdin.close()

    def _lives(self) -> bool:
        if self._own is not None:
            return self._own.poll() is None
        with contextlib.suppress(psutil.Error):
            return (
                self._first is not None
                and self._first.is_running()
                and self._first.status() != psutil.STATUS_ZOMBIE
            )
        return False
