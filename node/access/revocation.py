"""What follows when a permission begins or ends: links that wait for it are used, runs that rest on it are stopped.

`node.access.authorization` has the permissions; the handlers check them on every verb.
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
from protocol.messages.pool import ManifestMessage, PoolManifest, read_manifest
from protocol.messages.work import CredentialsReply, Denied, ShowCredentials
from protocol.words import Reason
from swarm.net.addresses import PeerId
from swarm.pools.manifests import verified

LOOK_S = 5.0
"""Permissions end by the wall clock, which may jump: it is read at least this often."""

log = structlog.get_logger("sark.permissions")


@dataclass
class Revocation:
    """Applies changed permissions to links and runs."""

    permits: Authorization
    ledger: Ledger
    carry_out: Callable[[], None]
    """To be called after each change of the ledger."""
    wall: Callable[[], float]
    store: Callable[[ManifestMessage], object] = lambda signed: None
    """Gets each newer manifest that a peer shows, to be written and passed on."""
    _news: trio.Event = field(default_factory=trio.Event)

    def authenticate(
        self, peer: PeerId, message: ShowCredentials | ManifestMessage
    ) -> CredentialsReply | Denied:
        """Take a token, or a pool's manifest, that `peer` shows. Raises `RemoteProtocolError` for a forged manifest."""
        reply = self._authenticate(peer, message)
        if isinstance(reply, Denied):
            log.info("credentials.refused", peer=peer, why=reply.detail)
        return reply

    def _authenticate(
        self, peer: PeerId, message: ShowCredentials | ManifestMessage
    ) -> CredentialsReply | Denied:
        if isinstance(message, ManifestMessage):
            manifest = read_manifest(message.body)
            if not self.permits.follows(manifest.pool):
                return Denied(
                    reason=Reason.NOT_ALLOWED, detail=f"this worker does not work for {manifest.name}"
                )
            if self.permits.is_newer(manifest):
                self.update(verified(message))
                self.store(message)
            return self.permits.reply(peer)
        answer = self.permits.authenticate(peer, message)
        if isinstance(answer, CredentialsReply):
            self._notify()
        return answer

    def _notify(self) -> None:
        self._news.set()
        self._news = trio.Event()

    async def admitted(self, peer: PeerId) -> None:
        """Wait until `peer` may do anything here."""
        while self.permits.permit_of(peer) is None:
            await self._news.wait()

    def update(self, manifest: PoolManifest) -> None:
        """A verified manifest of a joined pool: what it takes away ends at once, and runs that rest on that are stopped."""
        if not self.permits.is_newer(manifest):
            return
        self._end(self.permits.update(manifest), "revoked")
        self._notify()

    async def keep(self) -> None:
        """Stop runs whose permission ends, until cancelled."""
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
            for place in self.ledger.allocations()
            if place.state not in ENDED and not self.permits.carries(place.peer, place.request, place.rests)
        ]
        if without:  # their scheduler may still do something here, but not this
            log.info("permission.narrowed", leases=without, why=why)
            self.ledger.evict_those(
                lambda place: place.lease in without, Reason.NOT_ALLOWED, trio.current_time()
            )
        if peers or without:
            self.carry_out()
