"""The blobs that other nodes get from this worker by hash: records, campaign manifests and models, including models that the owner adds."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import structlog
import trio

from node.access.authorization import Authorization
from node.capacity.allocations import Allocation
from node.conversation.outbox import Outbox
from node.store.cache import ModelCache
from node.store.manifests import ManifestCard, ManifestStore
from node.store.model_files import is_end_of, proof_offset
from node.store.outbox_files import record_name
from protocol.errors import ProtocolError, Refused, ResourceError, Unreachable
from protocol.messages.blobs import TransferGrant
from protocol.messages.permission import CallPermission
from protocol.messages.work import ListLeases
from protocol.values.task import Model
from protocol.words import Reason
from swarm.base.threads import DISK
from swarm.blobs.server import BlobServer, Content, serve_blobs
from swarm.net.addresses import PeerId
from swarm.net.identity import verify
from swarm.net.network import Network
from swarm.pools.tokens import LEEWAY_S

SENT_S: Final = 2.0
"""The longest that a measurement waits for a piece that is being sent to another worker."""
LOOK_S: Final = 15.0
"""Seconds between checks for models that the owner has added. A task that needs such a model finds it at once."""
PROOF_S: Final = 5.0
"""The longest that a run waits for its scheduler to prove that it has the model."""

log = structlog.get_logger("sark.blobs")


@dataclass(frozen=True)
class BlobSources:
    """Shares no model with other workers while a launch loads and measures a model, because that would distort the figures."""

    manifests: ManifestStore
    cache: ModelCache
    outbox: Outbox
    records: Path
    """The folder of the outbox."""
    permits: Authorization
    allocations: Callable[[], tuple[Allocation, ...]]
    """Returns all allocations of the ledger."""
    wall: Callable[[], float]
    """Seconds since the epoch, for the end of a transfer grant."""
    exclusive: trio.Lock = field(default_factory=trio.Lock)
    """Held while a model is fetched or verified, and while a launch measures a model, because these disturb each other."""
    _served: list[BlobServer] = field(default_factory=list)

    def serve(self, network: Network) -> None:
        self._served.append(serve_blobs(network, self.find, shared=self.share, resting=self.resting))

    def resting(self) -> bool:
        """Whether a measurement or verification is in progress that sharing would disturb."""
        return self.exclusive.locked() and not self.cache.fetching

    async def quiet(self) -> None:
        """Wait briefly, before a measurement, for pieces that are being sent."""
        with trio.move_on_after(SENT_S):
            for each in self._served:
                await each.settled()

    async def keep(self, changed: Callable[[], object]) -> None:
        """Run until cancelled: verify models that the owner adds while nothing is fetched or measured, then call `changed`."""
        while True:
            await trio.sleep(LOOK_S)
            if self.cache.changed():
                async with self.exclusive:
                    await self.cache.verify_added()
                changed()

    def find(self, peer: PeerId, sha256: str) -> Path | bytes | Reason | None:
        """A large record for its scheduler; a manifest for a peer that may speak for the campaign; a model for a peer that has leases for
        the model, or may speak for a campaign whose manifest names it.

        A model is given only if that principal is known to have it. Knowing its hash is not enough.
        """
        if self.permits.permit_of(peer) is None:
            return Reason.NOT_ALLOWED
        if self.outbox.is_for(peer, sha256):
            return self.outbox.in_memory(sha256) or self.records / record_name(sha256)
        if manifest := self.manifests.find(sha256):
            card, path = manifest
            return path if self._speaks_for(peer, card) else None
        holders = {
            one.request.principal
            for one in self.allocations()
            if one.peer == peer and one.request.task.needs(sha256)
        }
        holders |= {card.owner for card in self.manifests.naming(sha256) if self._speaks_for(peer, card)}
        return self.cache.find(sha256) if self._any_has(holders, sha256) else None

    def _speaks_for(self, peer: PeerId, card: ManifestCard) -> bool:
        permission = self.permits.check(peer, ListLeases(campaign=card.campaign))
        return isinstance(permission, CallPermission) and permission.principal == card.owner

    def _any_has(self, principals: Collection[str], sha256: str) -> bool:
        return any(self.cache.access.knows(sha256, principal) for principal in principals)

    def share(self, peer: PeerId, sha256: str, grant: TransferGrant) -> Content | Reason:
        """A model for another worker, under a transfer grant of a scheduler that could fetch the model from this worker itself.

        A partial download is given only on behalf of the principal for whom every piece was fetched, so that nobody obtains a model with a
        task that merely names its hash.
        """
        if (grant.taker, grant.sha256) != (peer, sha256) or self.wall() > grant.until + LEEWAY_S:
            return Reason.UNKNOWN
        principals = self.permits.principals_of(grant.giver)
        model, fetched = self.cache.find(sha256), self.cache.fetched_for(sha256) in principals
        if not fetched and (model is None or not self._any_has(principals, sha256)):
            return Reason.UNKNOWN
        if not verify(grant.giver, grant.message, grant.signature):
            return Reason.UNKNOWN
        return model or (self.cache.download(sha256) if fetched else None) or Reason.UNKNOWN

    async def prove_model(
        self,
        principal: str,
        model: Model,
        tail: Callable[[int, Callable[[bytearray], object]], Awaitable[object]],
    ) -> None:
        """Find out once whether `principal` has a model that is stored here: the model's last bytes prove it. Never fails or takes long.

        `tail`: fetches the model's bytes from an offset on into a sink.
        """
        path = self.cache.find(model.sha256)
        if path is None or self.cache.access.knows(model.sha256, principal):
            return
        data = bytearray()
        try:
            with trio.move_on_after(PROOF_S):
                await tail(proof_offset(model.size), data.extend)
        except (Unreachable, Refused, ProtocolError, ResourceError) as exc:
            log.info("model.not_proved", model=model.sha256, principal=principal, why=exc.what)
            return
        if not data:
            return
        if await DISK.run(is_end_of, path, bytes(data)):
            self.cache.access.note(model.sha256, principal)
