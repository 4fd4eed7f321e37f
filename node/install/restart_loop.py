"""Restarts a worker whenever it fails, for a system that does not restart ended tasks: the Task Scheduler of Windows.

python -m node.install.restart_loop COMMAND…     until the worker exits normally, or says that its settings are wrong
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Final

AGAIN_S: Final = 10
"""Seconds from the end of a failed worker to the next start."""
WRONG: Final = (2, 5)
"""Exit codes that a restart would repeat: invalid settings, and not permitted."""


def again(run: Callable[[], int], pause: Callable[[float], object]) -> int:
    """Run until the command ends well or its settings are wrong. Returns that exit code."""
    while (code := run()) not in (0, *WRONG):
        pause(AGAIN_S)
    return code


def main(command: Sequence[str]) -> int:
    """Blocking, for as long as the worker serves."""
    return again(lambda: subprocess.run(list(command), check=False).returncode, time.sleep)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
