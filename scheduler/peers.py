"""Looking around: who is in the swarm and how are they. A passing visitor with a key of its own, seen by nobody's index."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

import trio

from protocol.advert import Advert
from protocol.errors import SarkError, Unreachable
from protocol.health_messages import HEALTH, Ping, Pong
from protocol.match import Verdict, match
from protocol.requirement import Requirement
from protocol.words import Family
from swarm.host import open_host
from swarm.identity import Identity
from swarm.index import Index
from swarm.link import Links
from swarm.network import Path
from swarm.visiting import Visitor

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
    if not gates:
        raise Unreachable(
            "no gate is known here",
            hint="start one with: sark-node gate\nor name one: --gate /ip4/…/tcp/4101/p2p/12D3Koo…",
        )
    rng = random.Random()
    async with (
        open_host(Identity.fresh(), bootstrap=gates, server=False, rng=rng) as network,
        trio.open_nursery() as nursery,
    ):
        if not network.connected():
            raise Unreachable(
                "no gate answers: " + ", ".join(gates), hint="is it running, and is the address right?"
            )
        index = Index(network, rng=rng, serve=False)
        await nursery.start(index.run)
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
        nursery.cancel_scope.cancel()
    return tuple(
        sorted(seen.values(), key=lambda item: (not item.verdict.fits, item.advert.name, item.advert.peer))
    )
