"""Durations as a device's owner writes and reads them: `90s`, `30m`, `1h`. Pure."""

from __future__ import annotations

import re
from typing import Final

FORM: Final = "write a duration as 90s, 30m, 2h or 1d"
LONGEST_S: Final = 31_536_000.0
_UNITS: Final = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_TEXT: Final = re.compile(r"(\d{1,9}(?:\.\d{1,3})?)\s*([smhd])")


def read_seconds(text: str) -> float:
    """Raises `ValueError`, which says how to write it."""
    found = _TEXT.fullmatch(text.strip())
    seconds = float(found[1]) * _UNITS[found[2]] if found else 0.0
    if not 0 < seconds <= LONGEST_S:
        raise ValueError(f"{text!r:.60} is no duration from a second to a year; {FORM}")
    return seconds


def show_seconds(seconds: float) -> str:
    """Its two largest units: `1 h 30 min`."""
    words: list[str] = []
    for unit, word in (("d", "d"), ("h", "h"), ("m", "min")):
        count, seconds = divmod(seconds, _UNITS[unit])
        words += [f"{count:.0f} {word}"] if count else []
    words += [f"{round(seconds, 1):g} s"] if seconds or not words else []
    return " ".join(words[:2])
