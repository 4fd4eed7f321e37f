"""One host that acts as several devices, for tests of everything but the figures.

A device measures one run at a time, whichever worker runs it, by a lock file that all workers of a host share. Where the figures mean
nothing anyway, as those of the simulated unit, each worker may see another file in its place.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from node.device.lock import DeviceLock
from node.device.probe import lock_name


def can_be_apart() -> bool:
    """Whether a process can get its own view of the file system: as root on Linux."""
    if shutil.which("unshare") is None:
        return False
    return subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False).returncode == 0


def a_lock_of_its_own(folder: Path) -> tuple[str, ...]:
    """Words to put before a worker's command so that its measurements do not wait for the other workers of this host."""
    shared = DeviceLock(lock_name()).path
    shared.touch()
    own = folder / "device.lock"
    folder.mkdir(parents=True, exist_ok=True)
    own.touch()
    script = 'mount --bind "$1" "$2" && shift 2 && exec "$@"'
    return ("unshare", "--mount", "--propagation", "private", "sh", "-c", script, "sh", str(own), str(shared))
