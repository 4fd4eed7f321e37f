"""Durations as users write them (`90s`, `12h`), and times as users read them. Pure."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Final

_UNITS: Final = {
    "ms": 0.001,
    "s": 1.0,
    "m": 60.0,
    "h": 3600.0,
    "d": 86_400.0,
    "w": 604_800.0,
    "y": 31_536_000.0,
}
_EXAMPLES: Final = {"ms": "500ms", "s": "90s", "m": "10m", "h": "2h", "d": "90d", "w": "8w", "y": "2y"}
_DURATION: Final = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)\s*(ms|[smhdwy])")
DAY_S: Final = _UNITS["d"]
YEAR_S: Final = _UNITS["y"]


class DurationError(ValueError):
    """A text is not a duration: says what is wrong, and what the right form is."""

    def __init__(self, what: str, hint: str) -> None:
        super().__init__(f"{what}: {hint}")
        self.what, self.hint = what, hint


def parse_duration(text: str, *, units: str = "s m h d", max_s: float = YEAR_S) -> float:
    """Seconds in `90s`, `1.5h` or `30d`: more than 0, at most `max_s`. `units`: the allowed ones. Raises `DurationError`."""
    match = _DURATION.fullmatch(text.strip())
    allowed = units.split()
    if match is None or match[2] not in allowed:
        hint = f"write a number and a unit, such as {', '.join(_EXAMPLES[unit] for unit in allowed)}"
        raise DurationError(f"{text.strip()!r:.60} is not a duration", hint)
    seconds = float(match[1]) * _UNITS[match[2]]
    if not 0 < seconds <= max_s:
        most = f"{max_s / 86_400:g}d"
        raise DurationError(f"the duration {match[0]} is out of range", f"between 1{allowed[0]} and {most}")
    return seconds


def parse_age(text: str) -> float:
    """Seconds in `12h`, `90d`, `8w` or `2y`. Raises `DurationError`."""
    return parse_duration(text, units="h d w y", max_s=1000 * YEAR_S)


def duration_text(seconds: float) -> str:
    """The inverse of `parse_duration`, in seconds: `90s`."""
    return f"{seconds:.9f}".rstrip("0").rstrip(".") + "s"


def show_duration(seconds: float) -> str:
    """The two largest units of a duration: `1 h 30 min`."""
    words: list[str] = []
    for unit, word in (("d", "d"), ("h", "h"), ("m", "min")):
        number, seconds = divmod(seconds, _UNITS[unit])
        words += [f"{number:.0f} {word}"] if number else []
    words += [f"{round(seconds, 1):g} s"] if seconds or not words else []
    return " ".join(words[:2])


def show_elapsed(seconds: float) -> str:
    """`0:14`, `2:05`, `1:02:33`."""
    whole = int(seconds)
    if whole >= 3600:
        return f"{whole // 3600}:{whole % 3600 // 60:02}:{whole % 60:02}"
    return f"{whole // 60}:{whole % 60:02}"


def show_estimate(seconds: float) -> str:
    """`~0.4 s`, `~40 s`, `~2:05`: an expectation, not a measurement."""
    if seconds < 10:
        return f"~{seconds:.1f} s"
    return f"~{seconds:.0f} s" if seconds < 90 else f"~{show_elapsed(seconds)}"


def local_time(instant: str | float | None) -> str:
    """`2026-11-22 10:00` in local time, from ISO 8601 or seconds since 1970; '' for None."""
    if instant is None:
        return ""
    at = datetime.fromisoformat(instant) if isinstance(instant, str) else datetime.fromtimestamp(instant, UTC)
    return at.astimezone().strftime("%Y-%m-%d %H:%M")


def show_ms(ms: float) -> str:
    """Milliseconds with three significant digits: `84 µs`, `12.5 ms`, `1.25 s`."""
    if ms < 0.1:
        return f"{ms * 1000:.3g} µs"
    return f"{ms:.3g} ms" if ms < 1000 else f"{ms / 1000:.3g} s"
