"""How long a comparison of models that take turns may continue: what the driver does, and what its task's limits have to cover."""

from __future__ import annotations

from typing import Final

LOOKS: Final = (6, 10, 20, 40, 80, 130, 200)
"""Numbers of launches after which the result may be looked at."""
MIN_COMPARISON_LAUNCHES: Final = 40
"""Launches of a comparison that are always made, however long they take."""
EXTRA_LAUNCHES_S: Final = 180.0
"""Further launches are made only if they will probably end within this many seconds of the first launch's start."""


def rounds_until_look(launches: int, rounds: int) -> int | None:
    """How many rounds a comparison will have made at its next look, if `launches` launches made `rounds` rounds. None: unknown before the
    first launch has ended, or there are no more looks.
    """
    look = next((each for each in LOOKS if each > launches), None)
    return None if look is None or not launches else rounds * look // launches
