"""Whom a gate lets in: those for whom it relays, whose adverts it keeps and whose pools' manifests it takes. Pure.

    open     anybody
    ticket   members of the pools this gate serves, as their manifests have them; a join ticket makes one a member
    list     those that are named

Looking around stays open to everybody in all three: whoever asks costs next to nothing, and a newcomer must begin somewhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from gate.settings import Admit
from protocol.messages.pool import PoolManifest
from swarm.net.addresses import PeerId
from swarm.pools.tokens import LEEWAY_S


@dataclass(frozen=True, slots=True)
class Admission:
    """Who is let in just now."""

    admit: Admit = Admit.OPEN
    always: frozenset[PeerId] = frozenset()
    """The gate's own home, its operators and the other gates it knows."""
    allow: frozenset[PeerId] = frozenset()
    """Those that are named: let in by `ticket` and `list` alike."""
    members: frozenset[PeerId] = frozenset()
    """Of the pools this gate serves."""

    def lets_in(self, peer: PeerId) -> bool:
        """Whether that peer may cost this gate something."""
        if self.admit is Admit.OPEN or peer in self.always or peer in self.allow:
            return True
        return self.admit is Admit.TICKET and peer in self.members

    def why_not(self, peer: PeerId) -> str:
        """What somebody who is not let in is told; empty: it is let in."""
        return "" if self.lets_in(peer) else _WHY[self.admit]


_WHY: Final = {
    Admit.OPEN: "",
    Admit.TICKET: "this gate is for members of its pools; ask a pool's owner for a ticket: sark-node join TICKET",
    Admit.LIST: "this gate is for peers on its list; its operator adds you with: allow, in [gate] of its config.toml",
}


def live_members(manifest: PoolManifest, ends: Mapping[PeerId, float], now: float) -> frozenset[PeerId]:
    """The members whose credentials still last, as far as is known. `ends`: wall seconds at which what was given to a peer ends;
    one that is not in it was given something of which this home has no note."""
    return frozenset(
        member.peer
        for member in manifest.members
        if member.peer not in manifest.revoked and ends.get(member.peer, now) + LEEWAY_S >= now
    )


class RetryPauses:
    """When somebody who was not let in may try again: soon at first, for its ticket may be on the way, then ever later."""

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
        """They were let in."""
        for peer in peers:
            self._pauses.pop(peer, None)
