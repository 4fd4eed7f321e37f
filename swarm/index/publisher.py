"""Keeps this node's advert with the holders of each of its attributes: one shard for each attribute, one message to each holder. Covered
attributes (`covered.py`) are left out.

A cycle stores one version of the advert, or refreshes it. It sends rounds of messages to the holders that have not answered in this cycle:
closer ones named in replies, the next ones after a failure, and those of a deeper shard after a split.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from statistics import median_high, median_low
from typing import Final

import structlog
import trio

from protocol.errors import Refused, Unreachable
from protocol.messages import index as index_messages
from protocol.messages.index import StoreVerdict
from protocol.values.advert import ADVERT_TTL_S, SignedAdvert
from protocol.values.index_keys import EVERYBODY, MAX_SHARD_DEPTH, shard_key, shard_prefix
from protocol.words import Reason
from swarm.index.client import IndexClient, fingerprints
from swarm.index.covered import UNSURE, is_covered
from swarm.index.depths import AGREE, EMPTY, depth_below, sure_depth
from swarm.index.lookup import Lookups
from swarm.index.region import HOLDERS, NEAR
from swarm.index.shard_store import SPLIT_THRESHOLD
from swarm.net.addresses import Contact, PeerId
from swarm.net.identity import distance, routing_key
from swarm.net.network import read_contacts

REFRESH_S: Final = 450.0
REFRESH_JITTER: Final = 0.1
CHECK_S: Final = (1.0, 5.0)
"""Between two checks for lost or new holders, which send no messages: at first, and later."""
LOOK_S: Final = (2.0, 300.0)
"""Between two searches for more holders while there are fewer than eight: at first, and at most."""
SWEEP_S: Final = 1_800.0
"""Maximum age of the sweep of a suspect region."""
SWEEP_PAUSE_S: Final = 2.0
BARRED_S: Final = 20.0
"""How long a gate may refuse this node before a warning: the node may still be showing its ticket."""
MAX_ROUNDS: Final = 8
KNOWN: Final = 2 * NEAR
"""Nodes near a key that a publisher remembers, in addition to those that replied, which no peer can push out by naming many nodes."""
MAX_ANCHORS: Final = 4
CHECKS: Final = 2 * HOLDERS
"""About how many of the publishers below a split shard tell its holders about the split in each cycle."""
LEAVE_S: Final = 1.0
SLEPT_S: Final = 5.0
"""If the wall clock advanced by this much more than the monotonic one, the machine slept or its clock was set."""

log = structlog.get_logger("sark.index")


@dataclass(slots=True)
class _Shard:
    """The shard of one of our attributes."""

    pool: str
    attribute: str
    own_key: bytes
    depth: int = 0
    holders: dict[PeerId, Contact] = field(default_factory=dict)
    replies: dict[PeerId, tuple[int, StoreVerdict]] = field(default_factory=dict)
    """Holder → the cycle of its last reply, and the verdict."""
    near: list[Contact] = field(default_factory=list)
    """The known nodes nearest to the key, in order."""
    wanted: set[PeerId] = field(default_factory=set)
    """The known nodes that should store the advert."""
    look: bool = True
    """The holders have to be looked up."""
    thin: bool = False
    """So few nodes are known near the key that others may be hidden: the lookup was thorough."""
    counts: dict[PeerId, int] = field(default_factory=dict)
    """Holder → adverts in the shard, from its last reply."""
    below: dict[PeerId, int] = field(default_factory=dict)
    """Holder → about how many adverts lie below the shard, if it is split."""
    split_depth: int = -1
    """Depth of the deepest shard above this one that is known to be split."""
    having: dict[PeerId, tuple[int, ...]] = field(default_factory=dict)
    """For the shard of everybody: holder → how many adverts in the shard have each of our attributes."""
    covered: bool = False
    """Readers find us in the shard of everybody: nothing new is stored here."""
    kept_until: float = 0.0
    """When adverts stored before the attribute was covered expire. Until then their holders get newer versions, and the tombstone."""

    @property
    def count(self) -> int:
        """Adverts in the shard: the median of its holders' counts, so that no single holder decides the number."""
        return median_high([self.counts[peer] for peer in self.replies if peer in self.counts] or [0])

    def prefix(self, depth: int) -> int:
        return shard_prefix(self.own_key, depth)

    def key(self, depth: int | None = None) -> bytes:
        """The key of the shard at `depth`; None: at the shard's own depth."""
        depth = self.depth if depth is None else depth
        return shard_key(self.pool, self.attribute, depth, self.prefix(depth))

    def stored_by(self) -> list[PeerId]:
        """Holders that store the advert."""
        stored = (StoreVerdict.OK, StoreVerdict.SPLIT)
        return [peer for peer, (_, verdict) in self.replies.items() if verdict in stored]

    def move(self, depth: int) -> None:
        self.depth, self.holders, self.replies, self.look = depth, {}, {}, True
        self.near, self.wanted, self.below, self.counts, self.having, self.thin = [], set(), {}, {}, {}, False


@dataclass
class Publisher:
    """Publishes one node's advert."""

    client: IndexClient
    lookups: Lookups
    rng: random.Random
    refresh_s: float
    wall: Callable[[], float]
    """A clock that keeps running while this machine sleeps and its adverts expire elsewhere."""
    split_threshold: int = SPLIT_THRESHOLD
    """Adverts in a shard before it splits."""
    _signed: SignedAdvert | None = None
    _shards: dict[str, _Shard] = field(default_factory=dict)
    _former: dict[PeerId, Contact] = field(default_factory=dict)
    """Holders of attributes no longer published. They get the new advert once, so that they drop the old one."""
    _cycle: int = 0
    _refresh_at: float = 0.0
    _look_at: float = 0.0
    _look_pause: float = LOOK_S[0]
    _seen: tuple[object, ...] | None = None
    """The inputs that determine the holders, as of the last update that found nothing to do."""
    _barred: dict[PeerId, float] = field(default_factory=dict)
    """Gate that refuses this node → since when; infinity: already logged."""
    _moved: trio.Event = field(default_factory=trio.Event)
    """Set when the set of suspect regions may have changed."""
    _busy: trio.Lock = field(default_factory=trio.Lock)

    # -- called by the index ---------------------------------------------------------------------------------------------

    async def publish(self, signed: SignedAdvert, pool: str, attributes: Sequence[str]) -> None:
        """Publish a new advert to its holders now."""
        own_key = routing_key(self.client.own_peer)
        async with self._busy:
            shards: dict[str, _Shard] = {}
            for attribute in attributes[: index_messages.MAX_ITEMS]:
                shard = self._shards.get(attribute)
                if shard is None or shard.pool != pool:
                    shard = _Shard(pool, attribute, own_key)
                shards[attribute] = shard
            for attribute, shard in self._shards.items():
                if attribute not in shards or shard.covered:
                    self._former |= shard.holders
            self._signed, self._shards = signed, shards
            self._cycle += 1
        await self.refresh()

    async def refresh(self, *, look: bool = False) -> None:
        """Refresh the advert at every holder. `look`: search for more holders where there are fewer than eight."""
        async with self._busy:
            self._cycle += 1
            jitter = self.rng.uniform(1 - REFRESH_JITTER, 1 + REFRESH_JITTER)
            self._refresh_at = trio.current_time() + self.refresh_s * jitter
            for shard in self._published:
                shard.look = shard.look or not shard.holders or (look and len(shard.stored_by()) < HOLDERS)
            await self.lookups.sweeps.measured()
            self._place_everybody()
            self._seen = None
            self._update_holders()
            await self._check_marks()
            await self._store_all()

    async def run(self) -> None:
        """Refresh and repair until cancelled."""
        pause, most = CHECK_S
        ahead = self.wall() - trio.current_time()
        while True:
            await trio.sleep(pause * self.rng.uniform(0.8, 1.2))
            pause = min(pause * 1.5, most)
            before, ahead = ahead, self.wall() - trio.current_time()
            if ahead - before >= SLEPT_S:
                log.info("index.slept", seconds=round(ahead - before))
                self._refresh_at -= ahead - before
            if self._signed is None:
                continue
            if trio.current_time() >= self._refresh_at:
                await self.refresh(look=True)
            elif self._update_holders() or self._look_is_due():
                async with self._busy:
                    await self._store_all()

    async def learn_regions(self) -> None:
        """Sweep, one by one and until cancelled, the regions of our shards where nodes are suspect; `run` stores the advert at new nodes
        there. While no region is suspect, wait for a change."""
        while True:
            await self._moved.wait()
            self._moved = trio.Event()
            await trio.sleep(SWEEP_PAUSE_S * self.rng.uniform(0.8, 1.2))
            async with self._busy:  # storing the advert shows who is near a key
                pass
            for shard in self._published:
                near = shard.near
                if near and not shard.look and self.lookups.sweeps.due(shard.key(), near, SWEEP_S):
                    await self.lookups.sweeps.sweep(shard.key(), near, SWEEP_S)
                if self.lookups.sweeps.swept(shard.key()):
                    self._moved.set()

    async def withdraw(self, tombstone: SignedAdvert) -> int:
        """Store a tombstone at every holder, within a second; returns how many replied.

        A refresh under way gets a moment to end. Either way, the tombstone has the higher sequence number.
        """
        contacts = {peer: c for shard in self._shards.values() for peer, c in shard.holders.items()}
        with trio.move_on_after(LEAVE_S / 2):
            async with self._busy:
                self._signed, self._shards = None, {}
        message = index_messages.StoreAdverts(advert=tombstone)
        return len(await self.client.ask_all(contacts.values(), message, index_messages.StoreReply, LEAVE_S))

    def coverage(self) -> int:
        """Holders of the attribute that has the fewest; 0 when nothing is published."""
        return min((len(shard.stored_by()) for shard in self._published), default=0)

    def depth(self, attribute: str) -> int:
        """The depth of our shard of `attribute`."""
        return self._shards[attribute].depth

    @property
    def _published(self) -> list[_Shard]:
        """The shards in which the advert has to be stored."""
        return [shard for shard in self._shards.values() if not shard.covered]

    # -- one cycle -------------------------------------------------------------------------------------------------------

    def _place_everybody(self) -> None:
        """Choose the part of the shard of everybody to begin with: its depth if as many nodes publish as exist. A publisher that starts too
        deep finds a nearly empty shard and moves up (`_settle`). This spares the holders of the root most newcomers."""
        everybody = self._shards.get(EVERYBODY)
        if everybody is not None and everybody.depth == 0 and not everybody.holders:
            depth = sure_depth(self.lookups.sweeps.nodes, self.split_threshold)
            everybody.move(depth if depth > 1 else 0)

    def _update_holders(self) -> bool:
        """Update the holders; return whether one was lost or a nearer one appeared. No I/O."""
        result = False
        me = self.client.me()
        anchors = self.client.anchors()[:MAX_ANCHORS]
        seen = self._now(me, anchors)
        if seen == self._seen:
            return False
        self._moved.set()
        for shard in self._published:
            for peer in list(shard.replies):
                if not self.client.linked(peer):
                    del shard.replies[peer]
                    shard.holders.pop(peer, None)
                    shard.look = result = True
            stored = (shard.holders[peer] for peer in shard.stored_by() if peer in shard.holders)
            known = [*stored, *self.client.nearest(shard.key(), NEAR), *([me] if me else ())]
            # anchors always get the advert, since holders near a key may lie
            wanted = self._place(shard, known), (each for each in anchors if self.client.usable(each.peer))
            for contact in itertools.chain(*wanted):
                if contact.peer not in shard.replies:
                    shard.holders[contact.peer] = contact
                    result = True
        self._seen = None if result else seen
        return result

    def _now(self, me: Contact | None, anchors: Sequence[Contact]) -> tuple[object, ...]:
        """The inputs that determine the holders, apart from the replies of rounds. No I/O."""
        replied = {peer for shard in self._published for peer in shard.replies}
        return (
            self.client.network.table.version,
            self.lookups.sweeps.version,
            me,
            tuple(anchors),
            self.client.unusable(),
            frozenset(peer for peer in replied if self.client.linked(peer)),
        )

    def _look_is_due(self) -> bool:
        """Whether to search for more holders now: soon at first, then ever more rarely while too few are found."""
        now = trio.current_time()
        if now < self._look_at or self.coverage() >= HOLDERS:
            return False
        self._look_at = now + self._look_pause
        self._look_pause = min(self._look_pause * 2, LOOK_S[1])
        for shard in self._published:
            shard.look = shard.look or len(shard.stored_by()) < HOLDERS
        return True

    async def _store_all(self) -> None:
        """Store in the shard of everybody, whose holders say which attributes are covered, then in the shards of the other attributes."""
        everybody = self._shards.get(EVERYBODY)
        if everybody is not None:
            await self._rounds([everybody])
            self._find_covered(everybody)
        await self._rounds(self._published)

    def _find_covered(self, everybody: _Shard) -> None:
        sure = len(everybody.stored_by()) * 2 > len(everybody.replies)
        said = {peer: verdict for peer, (cycle, verdict) in everybody.replies.items() if cycle == self._cycle}
        split = sum(verdict is StoreVerdict.SPLIT for verdict in said.values())
        whole = everybody.depth == 0 and split <= min(UNSURE, len(said) // 2)
        numbers = [everybody.having.get(peer, ()) for peer in everybody.stored_by() if peer in said]
        counted = itertools.zip_longest(*numbers, fillvalue=0)
        having = {
            attribute: sorted(counts)[min(UNSURE, (len(counts) - 1) // 2)]
            for attribute, counts in zip(self._shards, counted, strict=False)
        }
        for attribute, shard in self._shards.items():
            if shard is everybody:
                continue
            before, now = shard.covered, trio.current_time()
            many = having.get(attribute, 0)
            shard.covered = sure and is_covered(attribute, many, whole=whole, before=before)
            if before and not shard.covered:
                shard.split_depth = -1
                shard.move(0)
            elif shard.covered and not before:
                shard.holders = {peer: each for peer, each in shard.holders.items() if peer in shard.replies}
                shard.kept_until = now + ADVERT_TTL_S
            elif shard.covered and now >= shard.kept_until:
                shard.holders = {}

    async def _rounds(self, shards: Sequence[_Shard]) -> None:
        for _ in range(MAX_ROUNDS):
            async with trio.open_nursery() as nursery:
                for shard in shards:
                    if shard.look:
                        nursery.start_soon(self._locate, shard)
            plan: dict[PeerId, tuple[Contact, list[_Shard]]] = {
                peer: (contact, []) for peer, contact in self._former.items() if self.client.usable(peer)
            }
            self._former = {}
            for shard in shards:
                for peer, contact in shard.holders.items():
                    if shard.replies.get(peer, (0, None))[0] != self._cycle and self.client.usable(peer):
                        plan.setdefault(peer, (contact, []))[1].append(shard)
            if not plan:
                return
            async with trio.open_nursery() as nursery:
                for contact, items in plan.values():
                    nursery.start_soon(self._store, contact, items)
            for shard in shards:
                self._settle(shard)
            self._seen = None

    async def _locate(self, shard: _Shard) -> None:
        shard.look = False
        found = await self.lookups.locate(shard.key(), thorough=shard.thin)
        shard.holders.update({contact.peer: contact for contact in self._place(shard, found)})
        self._trim(shard)

    def _place(self, shard: _Shard, more: Iterable[Contact]) -> list[Contact]:
        """Where to store the advert, given the nodes known and `more`. No I/O."""
        self._seen = None
        key = shard.key()
        usable = {each.peer: each for each in (*shard.near, *more) if self.client.usable(each.peer)}
        if self.client.me() is None:  # we are no longer a holder
            usable.pop(self.client.own_peer, None)
        near = sorted(usable.values(), key=lambda contact: distance(contact.peer, key))
        shard.near = [each for rank, each in enumerate(near) if rank < KNOWN or each.peer in shard.replies]
        wanted = self.lookups.sweeps.stores(key, shard.near)
        shard.wanted = {contact.peer for contact in wanted}
        return wanted

    async def _store(self, contact: Contact, shards: list[_Shard]) -> None:
        signed, cycle = self._signed, self._cycle
        assert signed is not None
        items = tuple(
            index_messages.StoreItem(
                attribute=shard.attribute,
                depth=shard.depth,
                have=fingerprints([contact.peer for contact in shard.near]),
            )
            for shard in shards
        )
        message = index_messages.StoreAdverts(advert=signed, items=items)
        try:
            answer = await self.client.ask(contact, message, index_messages.StoreReply)
        except Unreachable:
            for shard in shards:
                shard.look = shard.look or contact.peer in shard.replies
                shard.replies.pop(contact.peer, None)
                shard.holders.pop(contact.peer, None)
                shard.near = [each for each in shard.near if each.peer != contact.peer]
            return
        except Refused as exc:
            for shard in shards:
                shard.replies[contact.peer] = (cycle, StoreVerdict.REFUSED)
            if exc.retry_after_s is not None:
                self._refresh_at = min(self._refresh_at, trio.current_time() + max(exc.retry_after_s, 1.0))
            if exc.reason is Reason.NOT_ALLOWED:
                self._note_barred(contact.peer)
            return
        self._barred.pop(contact.peer, None)
        if answer.reason:
            log.info("index.not-stored", holder=contact.peer, why=answer.reason)
        for shard, item in zip(shards, answer.items, strict=False):
            shard.replies[contact.peer] = (cycle, item.verdict)
            shard.counts[contact.peer] = item.count
            shard.below[contact.peer] = item.below or 0
            shard.having[contact.peer] = item.having
        closer = [
            named
            for named in read_contacts(answer.closer)
            if named.addresses and named.peer != self.client.own_peer
        ]
        for shard in shards:
            for named in self._place(shard, closer):
                shard.holders.setdefault(named.peer, named)

    def _note_barred(self, peer: PeerId) -> None:
        """Warn once about a gate that keeps refusing this node."""
        if all(anchor.peer != peer for anchor in self.client.anchors()):
            return
        now = trio.current_time()
        since = self._barred.setdefault(peer, now)
        if now - since >= BARRED_S:
            self._barred[peer] = math.inf
            line = f"gate …{peer[-8:]} does not list this device: join with a ticket, or ask its operator to admit it"
            log.warning(line)

    def _trim(self, shard: _Shard) -> None:
        kept = shard.wanted | {each.peer for each in self.client.anchors()[:MAX_ANCHORS]}
        shard.holders = {peer: contact for peer, contact in shard.holders.items() if peer in kept}
        for by_peer in (shard.replies, shard.counts, shard.below, shard.having):
            for peer in [peer for peer in by_peer if peer not in shard.holders]:
                del by_peer[peer]

    def _settle(self, shard: _Shard) -> None:
        """After a round: descend if the holders agree that the shard is split, to the depth that most of them report; move up if the shard
        was too deep.
        """
        self._trim(shard)
        verdicts = [verdict for cycle, verdict in shard.replies.values() if cycle == self._cycle]
        enough = min(AGREE, len(verdicts) // 2 + 1)
        if verdicts.count(StoreVerdict.SPLIT) >= enough and shard.depth < MAX_SHARD_DEPTH:
            shard.split_depth = shard.depth
            below = [shard.below.get(peer, 0) for peer in shard.replies]
            shard.move(
                depth_below(shard.depth, median_low(below), self.split_threshold, self.lookups.sweeps.nodes)
            )
        elif (
            shard.stored_by()
            and shard.depth > shard.split_depth + 1
            and shard.count < self.split_threshold * EMPTY
        ):
            shard.move(shard.depth - 1)
        elif not shard.thin and self.lookups.sweeps.thin(shard.key(), shard.near):
            shard.thin = shard.look = True

    async def _check_marks(self) -> None:
        """Tell the holders of each shard above ours that it is split; new holders learn it from many publishers. If most do not know about
        the split, move up there, since readers would not descend. Each publisher does so at random, less often the more publish below.
        """
        for shard in [shard for shard in self._published if shard.counts]:
            for depth in range(shard.depth):
                below = max(shard.count, 1) * 2 ** (shard.depth - depth)
                if self.rng.random() >= CHECKS / below:
                    continue
                mark = index_messages.MarkSplit(
                    pool=shard.pool,
                    attribute=shard.attribute,
                    depth=depth,
                    prefix=shard.prefix(depth),
                    below=round(below),
                )
                holders = await self.lookups.find(shard.key(depth), patient=True)
                others = [contact for contact in holders if contact.peer != self.client.own_peer]
                answers = [
                    reply.split for reply in await self.client.ask_all(others, mark, index_messages.MarkReply)
                ]
                heard = len(answers) >= AGREE or len(answers) * 2 > len(others)
                if heard and sum(answers) * 2 < len(answers):
                    shard.split_depth = depth - 1
                    shard.move(depth)
                    break
