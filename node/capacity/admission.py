"""Whether there is room for one more, and whose ticket makes room for a better one where there is none. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from node.capacity.allocations import HOLDS, Allocation, SlotRequest
from protocol.values.lease import LeaseState

_COUNTED: Final = HOLDS | {LeaseState.QUEUED}
"""What a principal's permission counts."""


def over_quota(wanted: SlotRequest, places: Iterable[Allocation]) -> str:
    """Why its permission is not for one more, in words; empty: it is."""
    if wanted.slots is None:
        return ""
    own = sum(1 for p in places if p.state in _COUNTED and p.wanted.principal == wanted.principal)
    if own < wanted.slots:
        return ""
    return f"you have {own} places and tickets here, and your permission is for {wanted.slots}"


def room_for(
    wanted: SlotRequest, places: Iterable[Allocation], limit: int, each: int
) -> tuple[str, Allocation | None]:
    """(why there is no room for its ticket, empty: there is; the ticket that has to go for it).

    Where all `limit` tickets are taken the lowest goes, of those the youngest, if the new one is higher. The owner's are higher than
    all others.
    """
    tickets = [place for place in places if place.state is LeaseState.QUEUED]
    own = sum(1 for place in tickets if place.wanted.principal == wanted.principal)
    if own >= each:
        return f"{own} tickets of yours wait here, which is all one scheduler may have", None
    if len(tickets) < limit:
        return "", None
    lowest = _lowest(tickets)
    if lowest is not None and _height(wanted) > _height(lowest.wanted):
        return "", lowest
    return f"{len(tickets)} tickets wait here, which is all there is room for", None


def _lowest(tickets: Sequence[Allocation]) -> Allocation | None:
    return min(tickets, key=lambda place: (_height(place.wanted), -place.fence.number), default=None)


def _height(wanted: SlotRequest) -> tuple[bool, int]:
    return wanted.owner, wanted.own
