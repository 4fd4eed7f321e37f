"""Resident memory of this process and its peak since a reset, without sampling.

Linux: writing 5 to /proc/self/clear_refs resets VmHWM to VmRSS, so that each phase has a peak of its own. Windows keeps one peak for the
whole life of the process. Elsewhere the peak is not measured.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

PLATFORM: Final[str] = sys.platform  # as a plain str: type checkers would call the other branches unreachable
_STATUS = Path("/proc/self/status")
_CLEAR = Path("/proc/self/clear_refs")


def _status_bytes(field: bytes) -> int | None:
    try:
        text = _STATUS.read_bytes()
    except OSError:
        return None
    _, separator, rest = text.partition(field + b":")
    return int(rest.split(maxsplit=1)[0]) * 1024 if separator else None


def resident_bytes() -> int | None:
    """Resident set now, in bytes."""
    if PLATFORM == "linux":
        return _status_bytes(b"VmRSS")
    import psutil

    return int(psutil.Process().memory_info().rss)


def reset_peak() -> bool:
    """Start a new peak. False where the platform cannot."""
    try:
        # without O_TRUNC, which a sandbox would have to allow separately
        file = os.open(_CLEAR, os.O_WRONLY)
    except OSError:
        return False
    try:
        return os.write(file, b"5") == 1
    except OSError:
        return False
    finally:
        os.close(file)


def peak_bytes(was_reset: bool) -> int | None:
    """Highest resident set in bytes since `reset_peak` returned `was_reset`; None if it cannot be measured."""
    if PLATFORM == "linux":
        return _status_bytes(b"VmHWM") if was_reset else None
    if PLATFORM == "win32":
        import psutil

        peak = getattr(psutil.Process().memory_info(), "peak_wset", None)
        return None if peak is None else int(peak)
    return None
