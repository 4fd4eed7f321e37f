"""Ways to measure the same thing, in turns: what the host does meanwhile meets them all alike."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import TypeVar

T = TypeVar("T")


def alternated(sides: Mapping[str, Callable[[], T]], rounds: int) -> dict[str, list[T]]:
    """What each side gave in each round, by its name. Their order in a round is drawn."""
    found: dict[str, list[T]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name in random.sample(list(sides), len(sides)):
            found[name].append(sides[name]())
    return found
