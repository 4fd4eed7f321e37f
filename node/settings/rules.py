"""When a device takes no new work, because of its owner's settings or a pause. Pure.

    quiet = ["22:00-07:00", "Sat", "Mon-Fri 09:00-17:00"]       local time; a range over midnight belongs to the day it begins on

Running tasks continue. The worker drains, with the reason given here, and resumes by itself once there is no reason left.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

DAYS: Final = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
FORM: Final = "write quiet hours as 22:00-07:00, Sat, Mon-Fri or Sat-Sun 10:00-12:30"
_DAY: Final = 24 * 60
_WEEK: Final = 7 * _DAY
_TEXT: Final = re.compile(
    r"(?:(?P<day>[A-Za-z]{3})(?:-(?P<last>[A-Za-z]{3}))?)?\s*"
    r"(?:(?P<from>\d{1,2}:\d{2})\s*-\s*(?P<to>\d{1,2}:\d{2}))?"
)


@dataclass(frozen=True, slots=True)
class QuietHours:
    """Hours that recur each week: minutes since midnight on each of `days` (Monday is 0). `end` may be on the next day."""

    days: frozenset[int]
    start: int
    end: int


def read_quiet(text: str) -> QuietHours:
    """Read one entry of `quiet`. Raises `ValueError`, which states the correct format."""
    match = _TEXT.fullmatch(text.strip())
    if match is None or not text.strip():
        raise ValueError(FORM)
    days = frozenset(range(7))
    if match["day"]:
        first = _day(match["day"])
        last = _day(match["last"]) if match["last"] else first
        days = frozenset((first + step) % 7 for step in range((last - first) % 7 + 1))
    if not match["from"]:
        return QuietHours(days, 0, _DAY)
    start, end = _minute(match["from"]), _minute(match["to"])
    end = end if end > start else end + _DAY
    if start % _DAY == end % _DAY and (start, end) != (0, _DAY):
        raise ValueError(f"{text} begins and ends at the same time; {FORM}")
    return QuietHours(days, start, end)


def _day(text: str) -> int:
    if text.capitalize() not in DAYS:
        raise ValueError(f"{text} is not a day; the days are {', '.join(DAYS)}")
    return DAYS.index(text.capitalize())


def _minute(text: str) -> int:
    hour, minute = map(int, text.split(":"))
    if minute > 59 or hour * 60 + minute > _DAY:
        raise ValueError(f"{text} is not a time of day; {FORM}")
    return hour * 60 + minute


def quiet_until(hours: Sequence[QuietHours], now: datetime) -> datetime | None:
    """When the quiet hours around `now` (local) end, at most a week ahead; None: `now` is in none. Adjacent hours count as one span."""
    midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
    at = begin = now.hour * 60 + now.minute
    moved = True
    while moved and at - begin < _WEEK:
        moved = False
        for span in hours:
            for back in (0, 1):  # the span may have begun the day before
                day = at // _DAY - back
                if (midnight.weekday() + day) % 7 not in span.days:
                    continue
                if span.start <= at - day * _DAY < span.end:
                    at, moved = day * _DAY + span.end, True
    return None if at == begin else midnight + timedelta(minutes=min(at, begin + _WEEK))


@dataclass(frozen=True, slots=True)
class Rules:
    """The owner's rules."""

    quiet: tuple[QuietHours, ...] = ()
    on_battery: bool = False
    """Take new work on battery too."""


def why_not_serving(rules: Rules, now: datetime, *, on_battery: bool = False, paused: bool = False) -> str:
    """Why the worker takes no new work at `now` (local), for people; empty: it does. `on_battery`: False also if the device cannot tell."""
    if paused:
        return "paused by its owner"
    until = quiet_until(rules.quiet, now)
    if until is not None:
        return f"quiet hours {_until(until, now)}"
    if on_battery and not rules.on_battery:
        return "on battery"
    return ""


def _until(end: datetime, now: datetime) -> str:
    ahead = end - now
    if ahead > timedelta(days=6, hours=23):
        return "all week"
    clock = end.strftime("%H:%M")
    return f"until {clock}" if ahead < timedelta(hours=24) else f"until {DAYS[end.weekday()]} {clock}"
