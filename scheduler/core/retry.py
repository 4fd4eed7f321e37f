"""When a task whose attempt failed or was lost may run again. Pure."""

from __future__ import annotations

import math
from typing import Final

BACKOFF_CAP_S: Final = 300.0
"""Seconds up to which the backoff doubles."""
ELSEWHERE_S: Final = 30.0
"""Seconds after its backoff for which a task waits for a worker that has not tried it, although one that has tried it is available."""


def retry_delay_s(backoff_s: float, tries: int, left_s: float = math.inf) -> float:
    """Seconds before the next attempt: `backoff_s` after the first failed one, then twice as long each time, up to 5 minutes (or
    `backoff_s`, if that is more). `left_s`: what is left of the campaign's time; half of it is reserved for the attempt.
    """
    grown = doubled_s(backoff_s, tries - 1, max(backoff_s, BACKOFF_CAP_S))
    return min(grown, max(0.0, left_s) / 2)


def doubled_s(first_s: float, times: int, most_s: float) -> float:
    """`first_s` doubled `times` times, at most `most_s`; safe for any number of failed tries."""
    return min(most_s, first_s * 2.0 ** max(0, min(times, 64)))
