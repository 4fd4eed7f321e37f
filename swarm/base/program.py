"""How this program starts another of itself, whether it runs in an interpreter or as the stand-alone binary, which is its own."""

from __future__ import annotations

import sys
from typing import Final

FROZEN: Final = bool(getattr(sys, "frozen", False))
"""Whether this is the stand-alone binary: it takes sark-node's own arguments and none of Python's."""


def own_command(*python: str, frozen: bool = FROZEN) -> list[str]:
    """The words before `--home …`, `join` and the like. `python`: options of the interpreter, where there is one."""
    return [sys.executable] if frozen else [sys.executable, "-P", *python, "-m", "sark"]
