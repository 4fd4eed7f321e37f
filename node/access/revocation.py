"""The consequences when a permission begins or ends: links that wait for it are used, and runs that depend on it are stopped.

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
"""Longest time between readings of the wall clock, by which permissions end and which may jump."""

log = structlog.get_logger("sark.permissions")


@dataclass
class Revocation:
    """Applies changed permissions to links and runs."""

    permits: Authorization
    ledger: Ledger
    carry_out: Callable[[], None]
    """Called after each change of the ledger."""
    wall: Callable[[], float]
    store: Callable[[ManifestMessage], object] = lambda signed: None
    """Called with each newer manifest that a peer shows, to store it and pass it on."""
    _news: trio.Event = field(default_factory=trio.Event)

    def authenticate(
        self, peer: PeerId, message: ShowCredentials | ManifestMessage
    ) -> CredentialsReply | Denied:
        """Accept a token, or a pool's manifest, that `peer` shows. Raises `RemoteProtocolError` for a forged manifest."""
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
        """Wait until `peer` has any permission here."""
        while self.permits.permit_of(peer) is None:
            await self._news.wait()

    def update(self, manifest: PoolManifest) -> None:
        """Apply a verified manifest of a joined pool. Permissions that it revokes end at once, and runs that depend on them are stopped."""
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
            if place.state not in ENDED
            and not self.permits.carries(place.peer, place.request, place.backing_token)
        ]
        if without:  # their scheduler still has some permission here, but not for these runs
            log.info("permission.narrowed", leases=without, why=why)
            self.ledger.evict_those(
                lambda place: place.lease in without, Reason.NOT_ALLOWED, trio.current_time()
            )
        if peers or without:
            self.carry_out()
