"""Looking around: who is in the swarm and how are they. A passing visitor with a key of its own, seen by nobody's index."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import trio

from protocol.advert import Advert
from protocol.errors import SarkError
from protocol.health_messages import HEALTH, Ping, Pong
from protocol.match import Verdict, match
from protocol.requirement import Requirement
from protocol.words import Family
from swarm.identity import Identity
from swarm.link import Links
from swarm.network import Path
from swarm.visiting import Visitor, inside

MAX_ASKED_AT_ONCE = 32


@dataclass(frozen=True, slots=True)
class Seen:
    """A device of the swarm: what it says, how it is now, whether it fits what was asked for."""

    advert: Advert
    pong: Pong | None
    why_silent: str
    verdict: Verdict
    path: Path | None = None
    """By which way it answered."""


async def look_around(
    gates: Sequence[str], requirement: Requirement, limit: int = 256, *, signer: Identity | None = None
) -> tuple[Seen, ...]:
    """Every device that can be found, those that fit first. `signer`: vouches for us at gates on the way.

    Raises `Unreachable` when no gate answers.
    """
    async with inside(gates) as (network, index, nursery):
        found = await index.everybody(limit)
        links = Links(network, Family.HEALTH, HEALTH, nursery)
        if signer is not None:
            visitor = Visitor(network, signer)
            await visitor.announce(a for sighting in found.found for a in sighting.advert.addresses)
        slots = trio.CapacityLimiter(MAX_ASKED_AT_ONCE)
        seen: dict[str, Seen] = {}

        async def ask(advert: Advert) -> None:
            pong, why, path = None, "", None
            async with slots:
                try:
                    link = await links.get(advert.peer, advert.addresses, patience_s=3.0)
                    began = trio.current_time()
                    pong = await link.ask(Ping(), Pong, patience_s=3.0)
                    took_ms = (trio.current_time() - began) * 1000
                    if (path := network.path(advert.peer)) is not None:
                        path = replace(
                            path, rtt_ms=took_ms
                        )  # of this very answer: a visitor has no other yet
                except SarkError as exc:
                    why = exc.what
            seen[advert.peer] = Seen(advert, pong, why, match(requirement, advert), path)

        async with trio.open_nursery() as asking:
            for sighting in found.found:
                asking.start_soon(ask, sighting.advert)
    return tuple(
        sorted(seen.values(), key=lambda item: (not item.verdict.fits, item.advert.name, item.advert.peer))
    )
