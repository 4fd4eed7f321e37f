"""Campaign manifests and cached models: who may have which.

find      for schedulers that have leases here, or that may speak of the campaign
shared    for workers that show a scheduler's transfer grant; models also while they come
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog
import trio

from node.access.model_access import is_end_of, proof_offset
from node.capacity.allocations import Allocation
from node.store.cache import ModelCache
from node.store.manifests import ManifestCard, ManifestStore
from protocol.errors import ProtocolError, Refused, ResourceError, Unreachable
from protocol.messages.permission import CallPermission
from protocol.messages.work import Denied, ListLeases
from protocol.signed.transfer_grant import TransferGrant
from protocol.values.task import Model
from swarm.blobs.server import PartialBlob
from swarm.net.addresses import PeerId
from swarm.net.identity import verify
from swarm.pools.tokens import LEEWAY_S

log = structlog.get_logger("sark.estate")

PROOF_S: Final = 5.0
"""A run waits no longer for its scheduler to show that it has the model."""
Tail = Callable[[int, Callable[[bytearray], object]], Awaitable[object]]
"""Brings a model's bytes from an offset on to a sink."""
Ask = Callable[[PeerId, ListLeases], CallPermission | Denied]
"""What a peer may do about the campaign of a `ListLeases`."""


@dataclass(frozen=True)
class CampaignStore:
    """The manifests and the cache, asked together."""

    manifests: ManifestStore
    cache: ModelCache

    # -- for a run -------------------------------------------------------------------------------------------------------

    async def ask_for_model(self, principal: str, model: Model, tail: Tail) -> None:
        """See once that `principal` has a model that is here, if that is not known: its last bytes do. Never fails, never takes long."""
        path = self.cache.find(model.sha256)
        if path is None or self.cache.whose.knows(model.sha256, principal):
            return
        data = bytearray()
        try:
            with trio.move_on_after(PROOF_S):
                await tail(proof_offset(model.size), data.extend)
        except (Unreachable, Refused, ProtocolError, ResourceError) as exc:
            log.info("model.not_shown", model=model.sha256, principal=principal, why=exc.what)
            return
        if not data:
            return
        if await trio.to_thread.run_sync(is_end_of, path, bytes(data)):
            self.cache.whose.note(model.sha256, principal)

    # -- for another worker ----------------------------------------------------------------------------------------------

    def shared(
        self,
        peer: PeerId,
        sha256: str,
        grant: TransferGrant,
        principals: Callable[[PeerId], Collection[str]],
        now: float,
    ) -> Path | PartialBlob | None:
        """A model for another worker, on the word of a scheduler that could have it from us itself. None: it is not for that peer.

        `principals`: for whom a scheduler may have tasks run here; `now`: wall seconds. A model that is still coming is given for the
        principal alone for whom every piece of it was brought: so nobody gets at bytes through a task that merely names their hash.
        """
        if (grant.taker, grant.sha256) != (peer, sha256) or now > grant.until + LEEWAY_S:
            return None
        whose = principals(grant.giver)
        model, coming = self.cache.find(sha256), self.cache.coming(sha256)
        brought = self.cache.brought_for(sha256) in whose
        may = brought or (model is not None and any(self.cache.whose.knows(sha256, each) for each in whose))
        if not may or not verify(grant.giver, grant.message, grant.signature):
            return None
        return model if model is not None else coming if brought else None

    # -- for the taker of a blob -----------------------------------------------------------------------------------------

    def find(self, peer: PeerId, sha256: str, may: Ask, places: tuple[Allocation, ...]) -> Path | None:
        """A manifest, or a model from the cache, for a peer that has leases here or may speak of a campaign whose manifest names it.

        A model only where that principal is known to have it: its hash alone is no claim. `places`: all that the ledger holds.
        """
        manifest = self.manifests.find(sha256)
        if manifest is not None:
            card, path = manifest
            return path if _speaks(peer, card, may) else None
        model = self.cache.find(sha256)
        if model is None:
            return None
        holds = any(
            place.peer == peer
            and place.request.task.model.sha256 == sha256
            and self.cache.whose.knows(sha256, place.request.principal)
            for place in places
        )
        if holds or any(
            self.cache.whose.knows(sha256, card.owner) and _speaks(peer, card, may)
            for card in self.manifests.naming(sha256)
        ):
            return model
        return None


def _speaks(peer: PeerId, card: ManifestCard, may: Ask) -> bool:
    permit = may(peer, ListLeases(campaign=card.campaign))
    return isinstance(permit, CallPermission) and permit.principal == card.owner
