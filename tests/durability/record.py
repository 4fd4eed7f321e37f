"""Records one run: the log of its writes, and the folder that it wrote."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.durability.journal import build, environment

WITHIN_S: Final = 600.0
STANDS_STILL: Final = "Timeout ("
"""What faulthandler begins with."""


@dataclass(frozen=True)
class Recording:
    """`root`: as the run left it."""

    log: Path
    root: Path


def record(folder: Path, *, tasks: int, seed: int) -> Recording:
    """Run `tests.durability.recorded` in a process of its own. One that stands still says where its threads are, and is made once more.
    Raises `AssertionError` when it fails, `RuntimeError` without gcc.
    """
    folder = folder.resolve()
    library = build(folder)
    stored = {key: value for key, value in os.environ.items() if not key.startswith("SARK_")}
    for name in ("first", "second"):
        place = folder / name
        root, log = place / "root", place / "log"
        root.mkdir(parents=True)
        words = [
            sys.executable,
            "-m",
            "tests.durability.recorded",
            str(root),
            "--tasks",
            str(tasks),
            "--seed",
            str(seed),
        ]
        done = subprocess.run(
            words,
            env=stored | environment(library, root, log) | {"SARK_LAN": "false"},
            capture_output=True,
            text=True,
            check=False,
            timeout=WITHIN_S,
        )
        if done.returncode == 0:
            return Recording(log, root)
        assert STANDS_STILL in done.stderr, (
            f"the recorded run ended with {done.returncode}:\n{done.stderr[-4000:]}"
        )
        sys.stderr.write(done.stderr[-4000:])
    raise AssertionError("the recorded run stood still twice: see above")
