"""Several methods of measuring the same thing take turns, so that the host's state affects all of them alike."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import TypeVar

T = TypeVar("T")


def alternated(sides: Mapping[str, Callable[[], T]], rounds: int) -> dict[str, list[T]]:
    """The result of each side in each round, by side. The order within a round is random."""
    found: dict[str, list[T]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name in random.sample(list(sides), len(sides)):
            found[name].append(sides[name]())
    return found
