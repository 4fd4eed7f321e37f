"""How long a comparison of models that take turns may go on: what the driver makes, what its task's limits have to cover."""

from __future__ import annotations

from typing import Final

LOOKS: Final = (6, 10, 20, 40, 80, 130, 200)
"""Numbers of launches after which the answer may be looked at."""
UNHURRIED: Final = 40
"""Launches of a comparison that are made however long they take."""
HURRIED_S: Final = 180.0
"""A launch after those is made only where it is likely to end within so many seconds of the first's beginning."""


def rounds_until_look(launches: int, rounds: int) -> int | None:
    """How many rounds a comparison will have made when its answer is looked at next, if so many launches made `rounds`. None: not known
    before the first launch has ended, or no more are made.
    """
    look = next((each for each in LOOKS if each > launches), None)
    return None if look is None or not launches else rounds * look // launches
