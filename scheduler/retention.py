"""How long campaigns are kept after they have ended."""

from __future__ import annotations

import re
from typing import Final

_AGE: Final = re.compile(r"([0-9]{1,6})\s*(h|d|w|y)")
_SECONDS: Final = {"h": 3600.0, "d": 86_400.0, "w": 7 * 86_400.0, "y": 365 * 86_400.0}


def read_age(text: str) -> float:
    """Seconds in `12h`, `90d`, `8w` or `2y`. Raises ValueError."""
    found = _AGE.fullmatch(text.strip())
    if found is None or not int(found[1]):
        raise ValueError("an age is a number and a unit: 12h, 90d, 8w, 2y")
    return int(found[1]) * _SECONDS[found[2]]
