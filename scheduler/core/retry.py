"""When a task whose attempt failed or was lost may run again. Pure."""

from __future__ import annotations

import math
from typing import Final

BACKOFF_CAP_S: Final = 300.0
"""How far doubling goes."""


def retry_delay_s(backoff_s: float, tries: int, left_s: float = math.inf) -> float:
    """Seconds before the next attempt: `backoff_s` after the first failed one, then twice as long each time, up to 5 minutes (or
    `backoff_s`, if that is more). `left_s`: of the campaign's time, of which half stays for the attempt.
    """
    grown = backoff_s * 2.0 ** (max(1, min(tries, 64)) - 1)
    return min(grown, max(backoff_s, BACKOFF_CAP_S), max(0.0, left_s) / 2)
