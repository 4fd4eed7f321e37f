"""Runs a worker again and again, for a system that starts again only what it could not start: the Task Scheduler of Windows.

python -m node.again COMMAND…     until the worker left in good order, or says that its settings are wrong
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Final

AGAIN_S: Final = 10
"""From the end of a worker that failed to the next one."""
WRONG: Final = (2, 5)
"""Exit codes that would come again: bad settings, and what is not permitted."""


def again(run: Callable[[], int], pause: Callable[[float], object]) -> int:
    """Run until it ends well or its settings are wrong; gives that exit code."""
    while (code := run()) not in (0, *WRONG):
        pause(AGAIN_S)
    return code


def main(command: Sequence[str]) -> int:
    """Blocking, for as long as the worker serves."""
    return again(lambda: subprocess.run(list(command), check=False).returncode, time.sleep)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
