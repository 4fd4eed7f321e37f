"""The scheduler process of a home: started by `submit` and `watch` when none runs, ends by itself when no campaign is left.

It is a process of its own so that a terminal may be closed, or Ctrl-C pressed, while campaigns go on.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from protocol.errors import ResourceError
from swarm.base.home import Home
from swarm.base.locks import lock_folder
from swarm.base.program import own_command

FAILURES: Final = 2
"""One may lose a race for the folder; two in a row mean it."""


def is_running(home: Home) -> bool:
    """Whether a scheduler process holds this home."""
    try:
        with lock_folder(home.folder("scheduler")):
            return False
    except ResourceError:
        return True


class BackgroundProcess:
    """Sees to it that a scheduler process runs for as long as somebody waits for its work."""

    def __init__(self, home: Home, home_flag: Path | None, gates: Sequence[str]) -> None:
        self._home = home
        self._log = home.logs / "scheduler.log"
        self._command = [*own_command(), "--log-level", "info"]
        if home_flag is not None:
            self._command += ["--home", str(home_flag.expanduser().absolute())]
        self._command.append("schedule")
        for gate in gates:
            self._command += ["--gate", gate]
        self._started: subprocess.Popen[bytes] | None = None
        self._failures = 0

    def __call__(self) -> None:
        """Start the scheduler process unless one runs.

        One that was killed is started again. Raises `ResourceError` when it cannot be started, and when two in a row ended by
        themselves with an error: the next would say the same.
        """
        if self._started is not None:
            code = self._started.poll()
            if code is None:
                return
            self._started = None
            self._failures = self._failures + 1 if code > 0 else 0
        if is_running(self._home):
            self._failures = 0
            return
        if self._failures >= FAILURES:
            raise ResourceError(
                f"the scheduler process ended: {self._last_words()}", hint=f"its whole log: {self._log}"
            )
        try:
            self._home.logs.mkdir(parents=True, exist_ok=True)
            with self._log.open("ab") as out:
                self._started = _detached(self._command, out.fileno())
        except OSError as exc:
            raise ResourceError(
                f"cannot start the scheduler: {exc}", hint=f"is {self._home.logs} writable?"
            ) from None

    def _last_words(self) -> str:
        try:
            lines = self._log.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            lines = []
        told = [line for line in lines[-20:] if line.startswith("sark-node: ")] or lines[-1:]
        return told[-1].removeprefix("sark-node: ") if told else "it said nothing"


def _detached(command: Sequence[str], out: int) -> subprocess.Popen[bytes]:
    """A process that neither a closed terminal nor our Ctrl-C reaches."""
    windows = sys.platform == "win32"
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=out,
        stderr=out,
        cwd=os.sep,
        start_new_session=not windows,
        creationflags=0x00000008 | 0x00000200
        if windows
        else 0,  # DETACHED_PROCESS | CREATE_NEW_PROCESS_GROUP
    )
