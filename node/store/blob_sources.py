"""What others have from this worker by its hash: records, campaign manifests and models; and models that the owner puts here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import trio

from node.access.authorization import Authorization
from node.capacity.allocations import Allocation
from node.conversation.outbox import Outbox
from node.store.campaigns import CampaignStore
from node.store.outbox_files import record_name
from protocol.signed.transfer_grant import TransferGrant
from protocol.words import Reason
from swarm.blobs.server import BlobServer, Content, serve_blobs
from swarm.net.addresses import PeerId
from swarm.net.network import Network

SENT_S: Final = 2.0
"""The longest that a measurement waits for a piece that goes to another worker."""
LOOK_S: Final = 5.0
"""Between two looks at whether the owner has added a model."""


@dataclass(frozen=True)
class BlobSources:
    """Nothing is shared with other workers from before a model is loaded until it was measured: it would be in the figures."""

    estate: CampaignStore
    outbox: Outbox
    records: Path
    """The folder of the outbox."""
    permits: Authorization
    places: Callable[[], tuple[Allocation, ...]]
    """All that the ledger holds."""
    wall: Callable[[], float]
    """Seconds since the epoch, for the end of a transfer grant."""
    still: trio.Lock = field(default_factory=trio.Lock)
    """Held while a model is fetched or verified, and while a run is measured: one disturbs the other."""
    _served: list[BlobServer] = field(default_factory=list)

    def serve(self, network: Network) -> None:
        """Answer on `/sark/blob/1`."""
        self._served.append(serve_blobs(network, self.find, shared=self.shared, resting=self.resting))

    def resting(self) -> bool:
        """Whether something is measured, or verified, that sharing would disturb."""
        return self.still.locked() and not self.estate.cache.fetching

    async def quiet(self) -> None:
        """Before a measurement: wait a moment for what is just being sent."""
        with trio.move_on_after(SENT_S):
            for each in self._served:
                await each.settled()

    def find(self, peer: PeerId, sha256: str) -> Path | bytes | Reason | None:
        """Large records for their schedulers; campaign manifests and models for who has to do with them."""
        if self.permits.permit_of(peer) is None:
            return Reason.NOT_ALLOWED
        if self.outbox.is_for(peer, sha256):
            return self.outbox.in_memory(sha256) or self.records / record_name(sha256)
        return self.estate.find(peer, sha256, self.permits.check, self.places())

    def shared(self, peer: PeerId, sha256: str, grant: TransferGrant) -> Content | Reason:
        """A model for another worker, on the word of a scheduler that is served here."""
        found = self.estate.shared(peer, sha256, grant, self.permits.principals_of, self.wall())
        return Reason.UNKNOWN if found is None else found

    async def keep(self, told: Callable[[], object]) -> None:
        """What the owner adds is verified when nothing is fetched or measured, and then `told` to others. For ever."""
        cache = self.estate.cache
        while True:
            await trio.sleep(LOOK_S)
            if cache.changed():
                async with self.still:
                    await cache.take_up()
                told()
