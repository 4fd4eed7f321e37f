"""The background scheduler process of a home: `submit` and `watch` start it, and it ends when no campaign is left.

Campaigns go on when the terminal is closed or Ctrl-C is pressed. A supervisor (`scheduler.submit.supervisor`) restarts the process after a
crash.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

from protocol.errors import ResourceError
from scheduler.submit.supervisor import supervisor_of
from swarm.base.home import Home
from swarm.base.locks import is_held
from swarm.base.process import detached, own_command


def is_running(home: Home) -> bool:
    """Whether a scheduler process holds this home's lock."""
    return is_held(home.folder("scheduler"))


class BackgroundProcess:
    """Keeps a scheduler process running while a command waits for its work."""

    def __init__(self, home: Home, home_flag: Path | None, gates: Sequence[str]) -> None:
        self._home = home
        self._log = home.logs / "scheduler.log"
        command = own_command()
        if home_flag is not None:
            command += ["--home", str(home_flag.expanduser().absolute())]
        command.append("schedule")
        for gate in gates:
            command += ["--gate", gate]
        self._command = supervisor_of(home.folder("scheduler"), command)
        self._started: subprocess.Popen[bytes] | None = None

    def __call__(self) -> None:
        """Start the scheduler process unless one runs. Raises `ResourceError` when it cannot start, or failed."""
        if self._started is not None:
            code = self._started.poll()
            if code is None:
                return
            self._started = None
            if code > 0 and not is_running(self._home):
                raise ResourceError(
                    f"the scheduler process ended: {self._last_error()}",
                    hint="see: sark-node logs --role scheduler",
                )
        if is_running(self._home):
            return
        try:
            self._home.logs.mkdir(parents=True, exist_ok=True)
            with self._log.open("ab") as out:
                self._started = detached(self._command, out=out.fileno())
        except OSError as exc:
            raise ResourceError(
                f"cannot start the scheduler: {exc}", hint=f"check that {self._home.logs} is writable"
            ) from None

    def _last_error(self) -> str:
        try:
            lines = self._log.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            lines = []
        errors = [line for line in lines[-20:] if line.startswith("sark-node: ")] or lines[-1:]
        return errors[-1].removeprefix("sark-node: ") if errors else "its log is empty"
