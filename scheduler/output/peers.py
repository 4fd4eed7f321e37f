"""Looking around: who is in the swarm and how are they. A passing visitor with a key of its own, seen by nobody's index."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from typing import Final

import trio

from protocol.errors import SarkError, Unreachable
from protocol.messages.health import HEALTH, Ping, Pong
from protocol.values.advert import Advert
from protocol.values.match import Match, match
from protocol.values.requirement import Requirement
from protocol.words import ProtocolId
from swarm.index.index import Index
from swarm.join.ephemeral import Visitor, inside
from swarm.net.identity import Identity
from swarm.net.link import Links
from swarm.net.network import Network, Path

MAX_ASKED_AT_ONCE: Final = 32
MAX_SEEN: Final = 256
"""Devices that are looked at."""


@dataclass(frozen=True, slots=True)
class SeenPeer:
    """A device of the swarm: what it says, how it is now, whether it fits what was asked for."""

    advert: Advert
    pong: Pong | None
    why_silent: str
    verdict: Match
    path: Path | None = None
    """By which way it answered."""

    def held_against(self, requirement: Requirement) -> SeenPeer:
        """The same device with another question."""
        return replace(self, verdict=match(requirement, self.advert))


def by_fit(seen: Sequence[SeenPeer]) -> tuple[SeenPeer, ...]:
    """Those that fit first, then by name."""
    return tuple(sorted(seen, key=lambda item: (not item.verdict.fits, item.advert.name, item.advert.peer)))


class SwarmObserver:
    """A visitor that stays for a while and looks around as often as it is asked."""

    def __init__(self, network: Network, index: Index, links: Links, visitor: Visitor | None) -> None:
        self._network = network
        self._index = index
        self._links = links
        self._visitor = visitor

    async def look(self, limit: int = MAX_SEEN) -> tuple[SeenPeer, ...]:
        """Every device that can be found, nothing asked of it yet. Raises `Unreachable` once nobody is connected any more."""
        if not self._network.connected():
            raise Unreachable("no gate answers any more", hint="is it running? sark-node gate status")
        found = (await self._index.everybody(limit)).found
        if self._visitor is not None:
            await self._visitor.announce(a for sighting in found for a in sighting.advert.addresses)
        slots = trio.CapacityLimiter(MAX_ASKED_AT_ONCE)
        seen: dict[str, SeenPeer] = {}

        async def ask(advert: Advert) -> None:
            async with slots:
                seen[advert.peer] = await self._ask(advert)

        async with trio.open_nursery() as asking:
            for sighting in found:
                asking.start_soon(ask, sighting.advert)
        return by_fit(tuple(seen.values()))

    async def _ask(self, advert: Advert) -> SeenPeer:
        nothing = match(Requirement(), advert)
        try:
            link = await self._links.get(advert.peer, advert.addresses, max_wait_s=3.0)
            began = trio.current_time()
            pong = await link.ask(Ping(), Pong, max_wait_s=3.0)
        except SarkError as exc:
            return SeenPeer(advert, None, exc.what, nothing)
        took_ms = (trio.current_time() - began) * 1000
        path = self._network.path(advert.peer)
        # the time of this very answer: a visitor has no other yet
        return SeenPeer(advert, pong, "", nothing, path and replace(path, rtt_ms=took_ms))


Opening = Callable[[], AbstractAsyncContextManager[SwarmObserver]]


@asynccontextmanager
async def eyes_open(gates: Sequence[str], *, signer: Identity | None = None) -> AsyncIterator[SwarmObserver]:
    """In the swarm for a while, to look around. `signer`: vouches for us at gates on the way. Raises `Unreachable`."""
    async with inside(gates) as (network, index, nursery):
        links = Links(network, ProtocolId.HEALTH, HEALTH, nursery)
        yield SwarmObserver(network, index, links, None if signer is None else Visitor(network, signer))


async def look_around(
    gates: Sequence[str], requirement: Requirement, limit: int = MAX_SEEN, *, signer: Identity | None = None
) -> tuple[SeenPeer, ...]:
    """Every device that can be found, those that fit first. `signer`: vouches for us at gates on the way.

    Raises `Unreachable` when no gate answers.
    """
    async with eyes_open(gates, signer=signer) as eyes:
        seen = await eyes.look(limit)
    return by_fit([item.held_against(requirement) for item in seen])
