"""What gives way when shared room is full: of whoever takes the most of it, what is least worth keeping. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

T = TypeVar("T")


def gives_way(
    items: Iterable[T], whose: Callable[[T], Hashable], size: Callable[[T], int], *, number: int, room: int
) -> list[T]:
    """What has to go so that at most `number` items of together `room` bytes are left. `items`: the least worth keeping first."""
    left = list(items)
    counts, sizes = Counter[Hashable](), Counter[Hashable]()
    for item in left:
        counts[whose(item)] += 1
        sizes[whose(item)] += size(item)
    gone: list[T] = []
    while left and (len(left) > number or sizes.total() > room):
        most = sizes if sizes.total() > room else counts
        greatest = max(most.values())
        first = next(item for item in left if most[whose(item)] == greatest)
        left.remove(first)
        gone.append(first)
        counts[whose(first)] -= 1
        sizes[whose(first)] -= size(first)
    return gone
