"""What happens when somebody's permission begins or ends: links that waited for it are taken up, runs that rested on it are stopped.

The permissions themselves are `node.access.authorization`; who asks for something is checked by the desk on every verb.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import structlog
import trio

from node.access.authorization import Authorization
from node.capacity.allocations import ENDED
from node.capacity.ledger import Ledger
from protocol.messages.pool import PoolManifest
from protocol.messages.work import CredentialsReply, Denied, ShowCredentials
from protocol.words import Reason
from swarm.index.server import TokenBuckets
from swarm.net.addresses import PeerId

LOOK_S = 5.0
"""Permissions end by the wall clock, which may jump: it is looked at so often at least."""
SHOWS_PER_S = 8.0
"""Tokens that one peer may show, on average; bursts up to twice that."""

log = structlog.get_logger("sark.door")


@dataclass
class Revocation:
    """Between the permissions and those who have, or had, one."""

    permits: Authorization
    ledger: Ledger
    carry_out: Callable[[], None]
    """To be called after each change of the ledger."""
    wall: Callable[[], float]
    _news: trio.Event = field(default_factory=trio.Event)
    _shows: TokenBuckets = field(default_factory=lambda: TokenBuckets(SHOWS_PER_S))

    def present(self, peer: PeerId, message: ShowCredentials) -> CredentialsReply | Denied:
        """A token is shown. To prove one costs time that a stranger must not have without end while runs are timed."""
        wait = self._shows.wait(trio.current_time(), peer)
        if wait:
            return Denied(reason=Reason.OVERLOADED, detail="too many permissions are shown", retry_s=wait)
        return self.permits.present(peer, message)

    def presented(self, peer: PeerId) -> None:
        """It may do something now that it perhaps could not before."""
        self._news.set()
        self._news = trio.Event()

    async def let_in(self, peer: PeerId) -> None:
        """Wait until `peer` may do anything here."""
        while self.permits.permit_of(peer) is None:
            await self._news.wait()

    def heard(self, manifest: PoolManifest) -> None:
        """A verified manifest of a joined pool: what it takes away holds at once, and what runs on it is stopped."""
        self._end(self.permits.manifest(manifest), "taken back")

    async def keep(self) -> None:
        """Stop what runs on a permission when that ends, for ever."""
        while True:
            end = self.permits.next_end()
            ahead = math.inf if end is None else max(0.0, min(LOOK_S, end - self.wall()))
            news = self._news
            with trio.move_on_after(ahead):
                await news.wait()
            self._end(self.permits.expired(), "expired")

    def _end(self, peers: tuple[PeerId, ...], why: str) -> None:
        for peer in peers:
            log.info("permission.ended", peer=peer, why=why)
            self.ledger.evict(peer, Reason.NOT_ALLOWED, trio.current_time())
        without = [
            place.lease
            for place in self.ledger.places()
            if place.state not in ENDED and not self.permits.carries(place.peer, place.wanted, place.rests)
        ]
        if without:  # their scheduler may do something here still, but not this
            log.info("permission.narrowed", leases=without, why=why)
            self.ledger.evict_those(
                lambda place: place.lease in without, Reason.NOT_ALLOWED, trio.current_time()
            )
        if peers or without:
            self.carry_out()
