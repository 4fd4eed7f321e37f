"""Whom a gate serves: for whom it relays, whose adverts it stores and whose pools' manifests it takes. Pure.

    open     anybody
    ticket   members of the pools this gate serves, by their manifests; a join ticket makes a peer a member
    list     the peers that are named

Queries are open to everybody in all three: they cost next to nothing, and a newcomer must begin somewhere.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from gate.settings import Admit
from swarm.net.addresses import PeerId


@dataclass(frozen=True, slots=True)
class Admission:
    """The peers admitted now."""

    admit: Admit = Admit.OPEN
    always: frozenset[PeerId] = frozenset()
    """The gate's own home, its operators and the other gates it knows."""
    allow: frozenset[PeerId] = frozenset()
    """Named peers: `ticket` and `list` admit them."""
    members: frozenset[PeerId] = frozenset()
    """Of the pools this gate serves."""

    def admits(self, peer: PeerId) -> bool:
        """Whether that peer may use this gate's resources."""
        if self.admit is Admit.OPEN or peer in self.always or peer in self.allow:
            return True
        return self.admit is Admit.TICKET and peer in self.members

    def why_not(self, peer: PeerId) -> str:
        """Why a peer is refused; empty: it is admitted."""
        return "" if self.admits(peer) else _WHY[self.admit]


_WHY: Final = {
    Admit.OPEN: "",
    Admit.TICKET: "this gate is for members of its pools; ask a pool's owner for a ticket: sark-node join TICKET",
    Admit.LIST: "this gate is for peers on its list; its operator adds you with: allow, in [gate] of its config.toml",
}


class RetryPauses:
    """When a refused peer may try again: soon at first, as its ticket may be on the way, then ever later."""

    FIRST_S: Final = 3.0
    MOST_S: Final = 300.0

    def __init__(self, most: int = 4_096) -> None:
        """`most`: how many peers are remembered."""
        self._most = most
        self._pauses: dict[PeerId, float] = {}

    def pause(self, peer: PeerId) -> float:
        """Seconds."""
        pause = self._pauses.pop(peer, self.FIRST_S)
        self._pauses[peer] = min(2 * pause, self.MOST_S)
        if len(self._pauses) > self._most:
            del self._pauses[next(iter(self._pauses))]
        return pause

    def forget(self, peers: Iterable[PeerId]) -> None:
        """They were admitted."""
        for peer in peers:
            self._pauses.pop(peer, None)
