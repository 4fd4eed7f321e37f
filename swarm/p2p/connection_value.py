"""What an inbound connection is worth at the connection limit, and who leaves for a newcomer. Pure: time is an argument.

A connection is used when its peer's call was answered here, or when the peer answered ours; pings say nothing of it. Use that goes on for
minutes earns credit and makes a connection a proven one. In the order of leaving:

    never used, longest idle first  ─▶  used: by last use, with credit  ─▶  at work now  ─▶  just arrived, known: stays

Each connection of one network beyond a few makes the others of that network leave sooner. Once half of the room is held by connections
that are not proven, newcomers displace only those: a flood of keys, even of keys that each make a call, displaces itself.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from swarm.net.addresses import PeerId

NEW_S: Final = 3.0
"""How long a new connection is protected: time for the first calls of a slow peer."""
PROVEN: Final = 3
"""Marks of a proven connection: two to three minutes of use."""
UNPROVEN_SHARE: Final = 0.5
"""Of the room for strangers, for connections that are not proven, once it is full."""
AT_WORK_S: Final = 3.0
"""A connection used within this time is at work."""
MARK_S: Final = 60.0
"""Each such span with use is one mark, for calls and for answers each."""
MAX_MARKS: Final = 20
CREDIT_S: Final = 30.0
"""Seconds by which a connection counts as used later, for each mark."""
RESERVED_S: Final = 600.0
"""The same for a reservation."""
CROWD: Final = 8
"""Connections of one network that cost nothing."""
CROWD_S: Final = 20.0
"""Seconds by which a connection counts as used earlier, for each connection of its network beyond `CROWD`."""


@dataclass(slots=True)
class ConnectionUse:
    """When a connection was used, and in how many spans of time."""

    used_at: float = -math.inf
    marks: int = 0
    _spans: list[int] = field(default_factory=lambda: [-1, -1])

    def note(self, now: float, *, answered: bool) -> None:
        """The peer answered our call, or (`answered` is False) was answered."""
        self.used_at, span = now, int(now // MARK_S)
        if self._spans[answered] != span:
            self._spans[answered] = span
            self.marks = min(self.marks + 1, MAX_MARKS)


@dataclass(frozen=True, slots=True)
class ConnectionValue:
    """What is known of one inbound connection."""

    peer: PeerId
    network: str
    """Empty: it shares with nobody."""
    since: float
    used_at: float
    marks: int
    reserved: bool = False
    """The peer has a reservation."""

    @property
    def unused(self) -> bool:
        return self.used_at == -math.inf and not self.reserved

    def protected(self, now: float) -> bool:
        """It has just arrived."""
        return now < self.since + NEW_S

    def at_work(self, now: float) -> bool:
        return now < self.used_at + AT_WORK_S

    def worth(self, crowd: int) -> float:
        """When it counts as last used. `crowd`: connections of its network."""
        last = max(self.used_at, self.since)
        credit = CREDIT_S * self.marks + RESERVED_S * self.reserved
        return last + credit - CROWD_S * max(0, crowd - CROWD) * bool(self.network)


def least_useful(
    values: Iterable[ConnectionValue], now: float, known: Callable[[PeerId], bool], count: int, *, room: int
) -> list[ConnectionValue]:
    """Up to `count` connections that leave first; known peers and new connections never. Those at work leave only where there are no
    others, and few new ones: what comes faster than it may leave is refused. `room`: connections that strangers may have."""
    strangers = [value for value in values if not known(value.peer)]
    unproven = [value for value in strangers if value.marks < PROVEN and not value.reserved]
    crowds = Counter(value.network for value in strangers)
    part = unproven if len(unproven) >= UNPROVEN_SHARE * room else strangers
    settled = [value for value in part if not value.protected(now)]
    leaving = [value for value in settled if not value.at_work(now)]
    if not leaving and 2 * len(settled) >= len(part):
        leaving = settled
    return heapq.nsmallest(
        count, leaving, key=lambda value: (not value.unused, value.worth(crowds[value.network]))
    )
