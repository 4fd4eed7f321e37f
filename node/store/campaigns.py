"""What a campaign leaves on this worker beside its leases: its results, taken or not, and its manifest. From it another scheduler goes on.

Look, Adopt ─▶ leases, manifest      what there is          Adopt ─▶ hand_over      its results go to who adopts it
blob ─▶ find                     manifests, and models that are cached here, for who has to do with them
     ─▶ shared                   models, also while they come, for workers that show a scheduler's grant
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog
import trio

from node.access.model_access import ModelAccess, is_end_of, proof_offset
from node.capacity.allocations import Allocation
from node.store.cache import ModelCache
from node.store.manifests import ManifestCard, ManifestStore
from node.store.outbox import Outbox
from protocol.errors import ProtocolError, Refused, ResourceError, Unreachable
from protocol.messages.permission import CallPermission
from protocol.messages.work import MAX_BATCH, AdoptReply, AdoptRequest, Commit, Denied, ListLeases, LiveLease
from protocol.signed.transfer_grant import TransferGrant
from protocol.values.lease import Fence
from protocol.values.task import Model, Task
from swarm.blobs.server import PartialBlob
from swarm.net.addresses import PeerId
from swarm.net.identity import verify
from swarm.pools.tokens import LEEWAY_S

KEPT: Final = 2**52
"""Cursors from here on go through what is in the outbox, by rising fence; no fence's number comes near."""

log = structlog.get_logger("sark.estate")

PROOF_S: Final = 5.0
"""A run waits no longer for its scheduler to show that it has the model."""
Tail = Callable[[int, Callable[[bytearray], object]], Awaitable[object]]
"""Brings a model's bytes from an offset on to a sink."""
Ask = Callable[[PeerId, ListLeases], CallPermission | Denied]
"""What a peer may do about the campaign of a `ListLeases`."""


@dataclass(frozen=True)
class CampaignStore:
    """The outbox, the manifests and the cache, asked together."""

    outbox: Outbox
    manifests: ManifestStore
    cache: ModelCache
    whose: ModelAccess

    # -- for the desk ----------------------------------------------------------------------------------------------------

    def note(self, task: Task, peer: PeerId, commit: Commit) -> None:
        """A commit was taken; it may name the manifest."""
        if commit.manifest is not None:
            self.manifests.note(task.campaign, task.scheduler, peer, commit.manifest, commit.manifest_size)

    def page(
        self, page: AdoptReply, principal: str, ask: ListLeases | AdoptRequest, places: tuple[Allocation, ...]
    ) -> AdoptReply:
        """`page` (the leases from the cursor on) with the manifest, and with results of ended leases once all others were listed."""
        card = self.manifests.of(ask.campaign, principal)
        told = {} if card is None else {"manifest": card.sha256, "manifest_size": card.size}
        if page.cursor is not None:
            return page.model_copy(update=told)
        held = {place.lease for place in places}
        kept = [
            (at, one)
            for one in self.leases(ask.campaign, principal)
            if one.lease not in held and (at := _cursor(one.fence)) >= ask.cursor
        ]
        kept.sort(key=lambda pair: pair[0])
        room = MAX_BATCH - len(page.leases)
        return page.model_copy(
            update={
                **told,
                "leases": (*page.leases, *(one for _, one in kept[:room])),
                "cursor": kept[room][0] if room < len(kept) else None,
            }
        )

    def leases(self, campaign: str, principal: str) -> Iterator[LiveLease]:
        """The ended runs of a campaign whose results are here."""
        for item, settled in self.outbox.of(campaign, principal):
            yield LiveLease(
                task=item.task,
                attempt=item.attempt,
                lease=item.lease,
                fence=item.fence,
                reporting=not settled,
                settled=settled,
            )

    async def hand_over(
        self, peer: PeerId, principal: str, ask: AdoptRequest, still: Callable[[], bool] = lambda: True
    ) -> None:
        """The campaign's results go to `peer` from now on, as long as it `still` speaks for it."""
        try:
            moved = await self.outbox.hand_over(ask.campaign, principal, peer, again=ask.again, still=still)
        except ResourceError as exc:  # the adopter asks again
            log.warning("results.not_handed_over", campaign=ask.campaign, why=exc.what)
        else:
            log.info("results.handed_over", campaign=ask.campaign, peer=peer, results=moved)

    # -- for a run -------------------------------------------------------------------------------------------------------

    async def ask_for_model(self, principal: str, model: Model, tail: Tail) -> None:
        """See once that `principal` has a model that is here, if that is not known: its last bytes do. Never fails, never takes long."""
        path = self.cache.find(model.sha256)
        if path is None or self.whose.knows(model.sha256, principal):
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
            self.whose.note(model.sha256, principal)

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
        may = brought or (model is not None and any(self.whose.knows(sha256, each) for each in whose))
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
            and place.wanted.task.model.sha256 == sha256
            and self.whose.knows(sha256, place.wanted.principal)
            for place in places
        )
        if holds or any(
            self.whose.knows(sha256, card.owner) and _speaks(peer, card, may)
            for card in self.manifests.naming(sha256)
        ):
            return model
        return None


def _cursor(fence: Fence) -> int:
    """Where a result stands in the pages: fences are never used again, so what comes or goes meanwhile moves nothing."""
    return KEPT + (min(fence.incarnation, 2**22 - 1) << 30) + min(fence.number, 2**30 - 1)


def _speaks(peer: PeerId, card: ManifestCard, may: Ask) -> bool:
    permit = may(peer, ListLeases(campaign=card.campaign))
    return isinstance(permit, CallPermission) and permit.principal == card.owner
