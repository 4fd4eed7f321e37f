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
SHOWN: Final = 4_000
"""Characters of its output to show, from each end."""


@dataclass(frozen=True)
class Recording:
    """`root`: the folder as the run left it."""

    log: Path
    root: Path


def record(folder: Path, scenario: str, *, tasks: int, seed: int) -> Recording:
    """Run `tests.durability.recorded` in its own process; a process that hangs reports where its threads are."""
    folder = folder.resolve()
    library, root, log = build(folder), folder / "root", folder / "log"
    root.mkdir()
    stored = {key: value for key, value in os.environ.items() if not key.startswith("SARK_")}
    words = [sys.executable, "-m", "tests.durability.recorded", scenario, str(root)]
    done = subprocess.run(
        [*words, "--tasks", str(tasks), "--seed", str(seed)],
        env=stored | environment(library, root, log) | {"SARK_LAN": "false"},
        capture_output=True,
        text=True,
        check=False,
        timeout=WITHIN_S,
    )
    said = done.stderr if len(done.stderr) < 2 * SHOWN else f"{done.stderr[:SHOWN]} … {done.stderr[-SHOWN:]}"
    assert done.returncode == 0, f"the recorded run ended with {done.returncode}:\n{said}"
    return Recording(log, root)
