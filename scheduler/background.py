"""The scheduler process of a home: started by `submit` and `watch` when none runs, ends by itself when no campaign is left.

It is a process of its own so that a terminal may be closed, or Ctrl-C pressed, while campaigns go on.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from protocol.errors import ResourceError
from swarm.home import Home
from swarm.identity import lock_folder


def is_running(home: Home) -> bool:
    """Whether a scheduler process holds this home."""
    try:
        with lock_folder(home.folder("scheduler")):
            return False
    except ResourceError:
        return True


def start(home: Home, home_flag: Path | None, gates: Sequence[str]) -> Path:
    """Start the scheduler process unless one runs; gives the path of its log. Raises `ResourceError`."""
    log = home.logs / "scheduler.log"
    if is_running(home):
        return log
    command = [sys.executable, "-P", "-m", "sark", "--log-level", "info"]
    if home_flag is not None:
        command += ["--home", str(home_flag.expanduser().absolute())]
    command.append("schedule")
    for gate in gates:
        command += ["--gate", gate]
    try:
        home.logs.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as out:
            _detached(command, out.fileno())
    except OSError as exc:
        raise ResourceError(f"cannot start the scheduler: {exc}", hint=f"is {home.logs} writable?") from None
    return log


def _detached(command: Sequence[str], out: int) -> None:
    """A process that neither a closed terminal nor our Ctrl-C reaches."""
    windows = sys.platform == "win32"
    subprocess.Popen(
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
