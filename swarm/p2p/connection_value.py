"""The worth of an inbound connection at the connection limit, and which one leaves for a newcomer. Pure: time is an argument.

A connection is used when this node answers a call from its peer, or the peer answers ours; pings do not count. Use that continues for
minutes earns credit and makes a connection proven. The order of leaving:

    never used, longest idle first  ─▶  used: by last use, with credit  ─▶  at work now  ─▶  just arrived, known: stays

Beyond a few connections, each further one of a network makes all connections of that network leave sooner. Once unproven connections hold
half of the room, newcomers displace only those: a flood of keys displaces itself, even if each key makes a call.
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
"""How long a new connection is protected: time for a slow peer's first calls."""
PROVEN: Final = 3
"""Marks that make a connection proven: two to three minutes of use."""
UNPROVEN_SHARE: Final = 0.5
"""Share of the room for strangers that unproven connections may hold once the room is full."""
AT_WORK_S: Final = 3.0
"""A connection used within this time is at work."""
MARK_S: Final = 60.0
"""Each span of this length with use earns one mark for calls, and one for answers."""
MAX_MARKS: Final = 20
CREDIT_S: Final = 30.0
"""How much later a connection counts as last used, in seconds for each mark."""
RESERVED_S: Final = 600.0
"""How much later, in seconds, if the peer has a reservation."""
CROWD: Final = 8
"""Connections of one network that incur no penalty."""
CROWD_S: Final = 20.0
"""How much earlier a connection counts as last used, in seconds for each connection of its network beyond `CROWD`."""


@dataclass(slots=True)
class ConnectionUse:
    """When a connection was last used, and in how many spans of time."""

    used_at: float = -math.inf
    marks: int = 0
    _spans: list[int] = field(default_factory=lambda: [-1, -1])

    def note(self, now: float, *, answered: bool) -> None:
        """Record that the peer answered our call, or, if `answered` is False, that we answered its call."""
        self.used_at, span = now, int(now // MARK_S)
        if self._spans[answered] != span:
            self._spans[answered] = span
            self.marks = min(self.marks + 1, MAX_MARKS)


@dataclass(frozen=True, slots=True)
class ConnectionValue:
    """What is known about one inbound connection."""

    peer: PeerId
    network: str
    """Empty: the connection shares its network with nobody."""
    since: float
    used_at: float
    marks: int
    reserved: bool = False
    """The peer has a reservation."""

    @property
    def unused(self) -> bool:
        return self.used_at == -math.inf and not self.reserved

    def protected(self, now: float) -> bool:
        """Whether the connection has just arrived."""
        return now < self.since + NEW_S

    def at_work(self, now: float) -> bool:
        return now < self.used_at + AT_WORK_S

    def worth(self, crowd: int) -> float:
        """The time at which the connection counts as last used. `crowd`: connections of its network."""
        last = max(self.used_at, self.since)
        credit = CREDIT_S * self.marks + RESERVED_S * self.reserved
        return last + credit - CROWD_S * max(0, crowd - CROWD) * bool(self.network)


def least_useful(
    values: Iterable[ConnectionValue], now: float, known: Callable[[PeerId], bool], count: int, *, room: int
) -> list[ConnectionValue]:
    """Up to `count` connections that leave first; never known peers or new connections. Connections at work leave only if there are no
    others and at most half of the candidates are new; connections that arrive faster than that are refused. `room`: connections that
    strangers may have."""
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
