"""The command line that starts this program again, in an interpreter or as the stand-alone binary."""

from __future__ import annotations

import sys
from typing import Final

FROZEN: Final = bool(getattr(sys, "frozen", False))
"""Whether this is the stand-alone binary."""


def own_command(*python: str, frozen: bool = FROZEN) -> list[str]:
    """The command before `--home …`, `join` and the like. `python`: options of the interpreter."""
    return [sys.executable] if frozen else [sys.executable, "-P", *python, "-m", "sark"]
