"""Keeps this node's advert with the holders of each of its attributes: one shard each, one message for each holder.

A cycle stores one version of the advert, or refreshes it. Rounds of messages go to the holders that have not answered in this cycle:
closer ones named in replies, the next ones after a failure, those one level deeper after a split.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import structlog
import trio

from protocol.errors import Refused, Unreachable
from protocol.messages import index as say
from protocol.messages.index import StoreVerdict
from protocol.signed.advert import SignedAdvert
from protocol.values.index_keys import MAX_SHARD_DEPTH, shard_key, shard_prefix
from swarm.index.client import IndexClient, fingerprints, gap
from swarm.index.lookup import HOLDERS, Lookups
from swarm.net.addresses import Contact, PeerId
from swarm.net.identity import routing_key
from swarm.net.network import read_contacts

REFRESH_S: Final = 450.0
REFRESH_JITTER: Final = 0.1
CHECK_S: Final = (1.0, 5.0)
"""Between two checks, without messages, whether holders were lost or came: at first, and later."""
LOOK_S: Final = (2.0, 300.0)
"""Between two searches for more holders while there are fewer than eight: at first, and at most."""
MAX_ROUNDS: Final = 8
SPARE: Final = 4
"""Holders kept beyond the nearest eight."""
MAX_ANCHORS: Final = 4
AGREE: Final = 5
"""Of eight holders so many must say split (or up) before the publisher moves; more than half where there are fewer."""
LEAVE_S: Final = 1.0
SLEPT_S: Final = 5.0
"""The wall clock advanced by so much more than the monotonic one: the machine slept, or its clock was set."""

log = structlog.get_logger("sark.index")

StoreHere = Callable[[say.StoreAdverts], say.StoreReply]
"""Stores our advert in our own store, when we are one of its holders."""


@dataclass(slots=True)
class _Shard:
    """The shard of one of our attributes."""

    attribute: str
    depth: int = 0
    holders: dict[PeerId, Contact] = field(default_factory=dict)
    replies: dict[PeerId, tuple[int, StoreVerdict]] = field(default_factory=dict)
    """Holder → the cycle of its last reply, and the verdict."""
    look: bool = True
    """The holders have to be looked up."""
    count: int = 0
    moved: int = 0

    def stored_by(self) -> list[PeerId]:
        """Holders that store the advert."""
        stored = (StoreVerdict.OK, StoreVerdict.SPLIT)
        return [peer for peer, (_, verdict) in self.replies.items() if verdict in stored]


class Publisher:
    """Publishes one node's advert. `me`: our own contact while we are a holder; `store_here`: our own store."""

    def __init__(
        self,
        client: IndexClient,
        lookups: Lookups,
        own_peer: PeerId,
        me: Callable[[], Contact | None],
        store_here: StoreHere,
        rng: random.Random,
        *,
        refresh_s: float = REFRESH_S,
        wall: Callable[[], float] = trio.current_time,
        anchors: Callable[[], Sequence[Contact]] = tuple,
    ) -> None:
        """`wall`: a clock that advances while this machine sleeps and its adverts expire elsewhere. `anchors`: holders that the owner
        chose; they always get the advert, since those near a key may lie."""
        self._wall = wall
        self._client = client
        self._lookups = lookups
        self._own_peer = own_peer
        self._own_key = routing_key(own_peer)
        self._me = me
        self._store_here = store_here
        self._rng = rng
        self._refresh_s = refresh_s
        self._anchors = anchors
        self._signed: SignedAdvert | None = None
        self._pool = ""
        self._shards: dict[str, _Shard] = {}
        self._former: dict[PeerId, Contact] = {}
        """Holders of attributes no longer published: they get the new advert once, so that they drop the old one."""
        self._cycle = 0
        self._refresh_at = 0.0
        self._look_at = 0.0
        self._look_pause = LOOK_S[0]
        self._busy = trio.Lock()

    # -- what the index calls --------------------------------------------------------------------------------------------

    async def publish(self, signed: SignedAdvert, pool: str, attributes: Sequence[str]) -> None:
        """Publish a new advert to its holders now."""
        known = self._shards if pool == self._pool else {}
        shards = {
            attribute: known.get(attribute) or _Shard(attribute) for attribute in attributes[: say.MAX_ITEMS]
        }
        for attribute, shard in self._shards.items():
            if attribute not in shards:
                self._former |= shard.holders
        self._signed, self._pool, self._shards = signed, pool, shards
        await self.refresh()

    async def refresh(self, *, look: bool = False) -> None:
        """Refresh the advert at every holder. `look`: search for more where there are fewer than eight."""
        async with self._busy:
            self._cycle += 1
            self._refresh_at = trio.current_time() + self._refresh_s * self._rng.uniform(
                1 - REFRESH_JITTER, 1 + REFRESH_JITTER
            )
            for shard in self._shards.values():
                shard.look = shard.look or not shard.holders or (look and len(shard.stored_by()) < HOLDERS)
            self._update_holders()
            await self._check_marks()
            await self._rounds()

    async def run(self) -> None:
        """Refresh and repair for ever."""
        pause, most = CHECK_S
        ahead = self._wall() - trio.current_time()
        while True:
            await trio.sleep(pause * self._rng.uniform(0.8, 1.2))
            pause = min(pause * 1.5, most)
            before, ahead = ahead, self._wall() - trio.current_time()
            if ahead - before >= SLEPT_S:
                log.info("index.slept", seconds=round(ahead - before))
                self._refresh_at -= ahead - before
            if self._signed is None:
                continue
            if trio.current_time() >= self._refresh_at:
                await self.refresh(look=True)
            elif self._update_holders() or self._look_is_due():
                async with self._busy:
                    await self._rounds()

    async def withdraw(self, tombstone: SignedAdvert) -> int:
        """Store a tombstone at every holder, within a second; returns how many replied.

        A refresh under way gets a moment to end; the tombstone's sequence number is higher in any case.
        """
        contacts = {
            peer: contact for shard in self._shards.values() for peer, contact in shard.holders.items()
        }
        with trio.move_on_after(LEAVE_S / 2):
            async with self._busy:
                self._signed, self._shards = None, {}
        heard = 0

        async def one(contact: Contact) -> None:
            nonlocal heard
            try:
                await self._send(contact, say.StoreAdverts(advert=tombstone), LEAVE_S)
            except (Unreachable, Refused):
                return
            heard += 1

        with trio.move_on_after(LEAVE_S):
            async with trio.open_nursery() as nursery:
                for contact in contacts.values():
                    nursery.start_soon(one, contact)
        return heard

    def coverage(self) -> int:
        """Holders of the attribute that has the fewest; 0 when nothing is published."""
        return min((len(shard.stored_by()) for shard in self._shards.values()), default=0)

    def depth(self, attribute: str) -> int:
        """How deep our shard of `attribute` lies."""
        return self._shards[attribute].depth

    # -- one cycle -------------------------------------------------------------------------------------------------------

    def _key(self, shard: _Shard) -> bytes:
        return shard_key(self._pool, shard.attribute, shard.depth, shard_prefix(self._own_key, shard.depth))

    def _update_holders(self) -> bool:
        """Update the holders; returns whether any was lost or a nearer one appeared. No I/O."""
        result = False
        me = self._me()
        anchors = self._anchors()[:MAX_ANCHORS]
        for shard in self._shards.values():
            for peer in list(shard.replies):
                if me is None if peer == self._own_peer else not self._client.linked(peer):
                    del shard.replies[peer]
                    shard.holders.pop(peer, None)
                    shard.look = result = True
            key = self._key(shard)
            near = {contact.peer: contact for contact in self._client.nearest(key, HOLDERS)}
            if me is not None:
                near[me.peer] = me
            for anchor in anchors:
                if anchor.peer not in shard.replies and self._client.usable(anchor.peer):
                    shard.holders[anchor.peer] = anchor
                    result = True
            target = int.from_bytes(key, "big")
            best = sorted({*near, *shard.stored_by()}, key=lambda peer: gap(peer, target))[:HOLDERS]
            for peer in best:
                if peer in near and peer not in shard.replies:
                    shard.holders[peer] = near[peer]
                    result = True
        return result

    def _look_is_due(self) -> bool:
        """Whether to search for more holders now: soon at first, ever more rarely in a small swarm."""
        now = trio.current_time()
        if now < self._look_at or self.coverage() >= HOLDERS:
            return False
        self._look_at = now + self._look_pause
        self._look_pause = min(self._look_pause * 2, LOOK_S[1])
        for shard in self._shards.values():
            shard.look = shard.look or len(shard.stored_by()) < HOLDERS
        return True

    async def _rounds(self) -> None:
        for _ in range(MAX_ROUNDS):
            async with trio.open_nursery() as nursery:
                for shard in self._shards.values():
                    if shard.look:
                        nursery.start_soon(self._locate, shard)
            plan: dict[PeerId, tuple[Contact, list[_Shard]]] = {
                peer: (contact, []) for peer, contact in self._former.items() if self._reachable(peer)
            }
            self._former = {}
            for shard in self._shards.values():
                for peer, contact in shard.holders.items():
                    if shard.replies.get(peer, (0, None))[0] != self._cycle and self._reachable(peer):
                        plan.setdefault(peer, (contact, []))[1].append(shard)
            if not plan:
                return
            async with trio.open_nursery() as nursery:
                for contact, shards in plan.values():
                    nursery.start_soon(self._tell, contact, shards)
            for shard in self._shards.values():
                self._settle(shard)

    def _reachable(self, peer: PeerId) -> bool:
        return peer == self._own_peer or self._client.usable(peer)

    async def _locate(self, shard: _Shard) -> None:
        shard.look = False
        result = await self._lookups.find(self._key(shard), patient=True)
        shard.holders.update({contact.peer: contact for contact in result})
        self._trim(shard)

    async def _tell(self, contact: Contact, shards: list[_Shard]) -> None:
        signed = self._signed
        assert signed is not None
        items = tuple(
            say.StoreItem(
                attribute=shard.attribute, depth=shard.depth, have=fingerprints(list(shard.holders))
            )
            for shard in shards
        )
        cycle = self._cycle
        try:
            answer = await self._send(contact, say.StoreAdverts(advert=signed, items=items))
        except Unreachable:
            for shard in shards:
                shard.look = shard.look or contact.peer in shard.replies
                shard.replies.pop(contact.peer, None)
                shard.holders.pop(contact.peer, None)
            return
        except Refused as exc:
            for shard in shards:
                shard.replies[contact.peer] = (cycle, StoreVerdict.REFUSED)
            if exc.retry_after_s is not None:
                self._refresh_at = min(self._refresh_at, trio.current_time() + max(exc.retry_after_s, 1.0))
            return
        if answer.reason:
            log.info("index.not-stored", holder=contact.peer, why=answer.reason)
        for shard, item in zip(shards, answer.items, strict=False):
            shard.replies[contact.peer] = (cycle, item.verdict)
            shard.count = max(shard.count, item.count)
        for named in read_contacts(answer.closer):
            for shard in shards:
                self._consider(shard, named)

    async def _send(
        self, contact: Contact, message: say.StoreAdverts, max_wait_s: float = 1.5
    ) -> say.StoreReply:
        if contact.peer == self._own_peer:
            return self._store_here(message)
        return await self._client.ask(contact, message, say.StoreReply, max_wait_s=max_wait_s)

    def _consider(self, shard: _Shard, named: Contact) -> None:
        """Add a holder named in a reply if it is among the nearest eight."""
        if named.peer in shard.holders or named.peer == self._own_peer:
            return
        if not (named.addresses and self._client.usable(named.peer)):
            return
        target = int.from_bytes(self._key(shard), "big")
        nearer = sum(gap(peer, target) < gap(named.peer, target) for peer in shard.holders)
        if nearer < HOLDERS:
            shard.holders[named.peer] = named

    def _trim(self, shard: _Shard) -> None:
        target = int.from_bytes(self._key(shard), "big")
        near = sorted(shard.holders, key=lambda peer: gap(peer, target))[: HOLDERS + SPARE]
        near += [
            a.peer for a in self._anchors()[:MAX_ANCHORS] if a.peer in shard.holders and a.peer not in near
        ]
        shard.holders = {peer: shard.holders[peer] for peer in near}
        shard.replies = {peer: verdicts for peer, verdicts in shard.replies.items() if peer in shard.holders}

    def _settle(self, shard: _Shard) -> None:
        """After a round: move a level down or up where the holders agree on it."""
        self._trim(shard)
        verdicts = [verdict for cycle, verdict in shard.replies.values() if cycle == self._cycle]
        enough = min(AGREE, len(verdicts) // 2 + 1)
        if verdicts and verdicts.count(StoreVerdict.SPLIT) >= enough and shard.depth < MAX_SHARD_DEPTH:
            self._move(shard, shard.depth + 1)
        elif verdicts and verdicts.count(StoreVerdict.UP) >= enough and shard.depth:
            self._move(shard, shard.depth - 1)

    def _move(self, shard: _Shard, depth: int) -> None:
        shard.depth, shard.holders, shard.replies, shard.look, shard.count = depth, {}, {}, True, 0

    async def _check_marks(self) -> None:
        """Refresh the split mark above each deep shard; where it is gone, move up. Only some of a shard's publishers do it."""
        for shard in self._shards.values():
            if shard.depth and self._rng.random() < min(1.0, HOLDERS / max(shard.count, 1)):
                depth = shard.depth - 1
                prefix = shard_prefix(self._own_key, depth)
                mark = say.MarkSplit(
                    pool=self._pool, attribute=shard.attribute, depth=depth, prefix=prefix, below=shard.count
                )
                contacts = await self._lookups.find(
                    shard_key(self._pool, shard.attribute, depth, prefix), patient=True
                )
                answers: list[bool] = []
                async with trio.open_nursery() as nursery:
                    for contact in contacts:
                        nursery.start_soon(self._mark, contact, mark, answers)
                if answers and sum(answers) * 2 < len(answers):
                    self._move(shard, depth)

    async def _mark(self, contact: Contact, mark: say.MarkSplit, answers: list[bool]) -> None:
        if contact.peer == self._own_peer:
            return
        try:
            answer = await self._client.ask(contact, mark, say.MarkReply)
        except (Unreachable, Refused):
            return
        answers.append(answer.split)
