"""An interactive bash, typed into, for what only a real one does: completion."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

ENDED: Final = b"\x15exit\n"
"""Clear the line and exit."""


def install_completion(environment: Mapping[str, str]) -> str:
    """What `sark-node --install-completion` prints in bash. Takes `sark-node` from the PATH."""
    command = ["bash", "--norc", "-c", "sark-node --install-completion; exit $?"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, (done.stdout, done.stderr)
    return done.stdout


def typed(
    keys: str, awaited: str, environment: Mapping[str, str], cwd: Path, *, within: float = 120.0
) -> str:
    """Type these keys at the prompt of an interactive bash, which reads the user's own .bashrc. Returns the terminal's output as soon as
    it contains `awaited`. Raises AssertionError after `within` seconds.
    """
    own, theirs = pty.openpty()
    bash = subprocess.Popen(
        ["bash", "--noprofile", "-i"], stdin=theirs, stdout=theirs, stderr=theirs, cwd=cwd, start_new_session=True,
        env={**environment, "TERM": "dumb", "PS1": "$ "},
    )  # fmt: skip
    os.close(theirs)
    try:
        os.write(own, keys.encode())
        shown, deadline = "", time.monotonic() + within
        while awaited not in shown:
            left = deadline - time.monotonic()
            assert left > 0, f"not within {within:g} s: {awaited!r} in {shown!r}"
            if select.select([own], [], [], left)[0]:
                shown += os.read(own, 4096).decode(errors="replace")
        os.write(own, ENDED)
        return shown
    finally:
        try:
            bash.wait(10)
        except subprocess.TimeoutExpired:
            bash.kill()
            bash.wait()
        os.close(own)
