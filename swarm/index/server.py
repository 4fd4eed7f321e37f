"""Answers other nodes' calls: who is near a key, and what this node's own store holds while it is a holder."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final

import trio

from protocol.errors import Refused, Unreachable
from protocol.messages import index as index_messages
from protocol.values.index_keys import MAX_SHARD_DEPTH, shard_key, shard_prefix
from protocol.wire.base import Message
from protocol.words import Reason
from swarm.index.client import IndexClient, contact_infos
from swarm.index.lookup import sender_of
from swarm.index.region import HOLDERS
from swarm.index.shard_store import ForgedAdvert, ShardStore, read_signed
from swarm.net.addresses import Address, Contact, PeerId, is_private, parse_tcp, public_network, usable
from swarm.net.cost import VERIFY_US
from swarm.net.identity import routing_key
from swarm.net.limits import RateLimit
from swarm.net.link import Link
from swarm.net.network import read_contacts

FIND_US: Final = 50.0
"""Processor time to find the nearest holders of a key, in µs (an estimate): the base, and for each entry of the table."""
FIND_EACH_US: Final = 0.6
MAX_REFERRALS: Final = 4
"""How many of the peers that a client names are asked."""
INTRODUCTIONS: Final = 8
"""Most strangers being checked at a time before they count as holders."""

RELAYED: Final = "relayed"
KNOCKS: Final = 2
"""Checked addresses of a holder, in addition to the one it is seen at."""
KNOCK_RATE: Final = (4, 60.0)
"""Checks of one address, whichever peer names it: this many at once, then one every this many seconds."""

Turn = Callable[[float], Awaitable[None]]
"""Waits for a turn to use the processor for this many µs."""


async def own_turn(cost_us: float) -> None:
    """The `Turn` for this node's own calls: it does not wait."""
    await trio.lowlevel.checkpoint()


Admit = Callable[[PeerId], index_messages.RefusedMessage | None]
"""The refusal for a peer that may not store adverts here; None: it may."""


@dataclass
class IndexServer:
    """Answers calls."""

    holder: ShardStore
    client: IndexClient
    knock: Callable[[PeerId, Address], Awaitable[bool]]
    """Whether a peer proves its key on a fresh connection to an address."""
    admit: Admit
    exempt: Callable[[PeerId], bool]
    """Whether this node's owner knows a peer: no network quota applies to it."""
    leaving: bool = False
    """Refuse every call."""
    refused: Counter[str] = field(default_factory=Counter)
    """Refused calls and adverts, by reason."""
    meeting: set[PeerId] = field(default_factory=set)
    """Peers being introduced."""
    _knocks: RateLimit = field(default_factory=lambda: RateLimit(*KNOCK_RATE))

    def cost_us(self, message: Message) -> float:
        """The cost of a call, in µs of processor time."""
        match message:
            case index_messages.FindPeers():
                return FIND_US + len(self.client.network.table) * FIND_EACH_US
            case index_messages.StoreAdverts():
                near = FIND_US + len(self.client.network.table) * FIND_EACH_US
                return VERIFY_US + len(message.items) * near + self.holder.store_cost_us(message.items)
            case index_messages.QueryShard():
                closer = FIND_US + len(self.client.network.table) * FIND_EACH_US if message.have else 0.0
                return self.holder.page_cost_us(message) + closer
        return 0.0

    async def answer(self, link: Link, message: Message) -> Message:
        """Serve one call from a peer."""
        answer = await self._answer(link, message)
        if isinstance(answer, index_messages.RefusedMessage):
            self.refused[answer.reason] += 1
        elif isinstance(answer, index_messages.StoreReply):
            for item in answer.items:
                if item.verdict in (index_messages.StoreVerdict.REFUSED, index_messages.StoreVerdict.FULL):
                    self.refused[f"store-{item.verdict}"] += 1
        return answer

    async def _answer(self, link: Link, message: Message) -> Message:
        peer = link.peer
        if self.leaving:
            return index_messages.RefusedMessage(reason=Reason.NOT_SERVING, detail="this node is leaving")
        if isinstance(message, index_messages.FindPeers):
            return self._find(peer, message)
        if self.client.me() is None:
            return index_messages.RefusedMessage(
                reason=Reason.NOT_A_HOLDER, detail="this node stores no adverts of others"
            )
        refusal = (
            self.admit(peer)
            if isinstance(message, index_messages.StoreAdverts | index_messages.MarkSplit)
            else None
        )
        return refusal or await self.answer_as_holder(peer, message, link.turn)

    async def answer_as_holder(self, peer: PeerId, message: Message, turn: Turn = own_turn) -> Message:
        """Store an advert of `peer`, which may be ourselves, or read the store for it. `turn`: awaited before each slice of long work."""
        now = trio.current_time()
        match message:
            case index_messages.StoreAdverts():
                return self._store(now, peer, message)
            case index_messages.QueryShard():
                return await self._page(now, peer, message, turn)
            case index_messages.MarkSplit():
                return self._mark(now, peer, message)
            case _:
                raise AssertionError(message)

    def _find(self, asker: PeerId, message: index_messages.FindPeers) -> index_messages.FoundPeers:
        if message.sender is not None and message.sender.peer == asker:
            for contact in read_contacts((message.sender,)):
                self.introduce(contact)
        nearest = self.client.nearest(message.key, message.count + 1)
        near = [contact for contact in nearest if contact.peer != asker]
        client = True if self.client.me() is None else None
        return index_messages.FoundPeers(contacts=contact_infos(near[: message.count]), client=client)

    def _store(
        self, now: float, sender: PeerId, message: index_messages.StoreAdverts
    ) -> index_messages.StoreReply:
        try:
            advert = read_signed(message.advert)
        except ForgedAdvert as exc:
            refused = index_messages.StoredItem(verdict=index_messages.StoreVerdict.REFUSED)
            return index_messages.StoreReply(items=(refused,) * len(message.items), reason=exc.what)
        network = self._network_of(sender)
        items, reason = self.holder.store(now, sender, network, message.advert, message.items)
        named: dict[PeerId, Contact] = {}
        for item in message.items:
            prefix = shard_prefix(routing_key(sender), item.depth)
            key = shard_key(advert.pool, item.attribute, item.depth, prefix)
            named |= {contact.peer: contact for contact in self._closer(key, item.have, sender)}
        return index_messages.StoreReply(
            items=items, reason=reason, closer=contact_infos(list(named.values()))
        )

    def _mark(
        self, now: float, sender: PeerId, message: index_messages.MarkSplit
    ) -> index_messages.MarkReply:
        key = shard_key(message.pool, message.attribute, message.depth, message.prefix)
        below = shard_prefix(routing_key(sender), message.depth) == message.prefix
        if not below or message.depth >= MAX_SHARD_DEPTH:
            return index_messages.MarkReply(split=self.holder.split(now, key))
        split = self.holder.claim_split(now, key, sender, self._network_of(sender), message.below)
        return index_messages.MarkReply(split=split)

    def _network_of(self, sender: PeerId) -> str:
        """The network whose quota an advert uses: `RELAYED` for every peer that comes through a gate, empty for known peers."""
        if sender == self.client.own_peer or self.exempt(sender):
            return ""
        observed = self.client.remote_address(sender)
        return RELAYED if observed is None else public_network([observed])

    async def _page(
        self, now: float, asker: PeerId, message: index_messages.QueryShard, turn: Turn
    ) -> index_messages.ShardPage:
        slices = self.holder.page(now, message)
        while True:
            try:
                cost_us = next(slices)
            except StopIteration as end:
                page: index_messages.ShardPage = end.value
                break
            await turn(cost_us)
        adverts = tuple(self._with_presence(listed) for listed in page.adverts)
        page = page.model_copy(update={"adverts": adverts}) if adverts else page
        key = shard_key(message.pool, message.attribute, message.depth, message.prefix)
        closer = self._closer(key, message.have, asker) if message.have else []
        return page.model_copy(update={"closer": contact_infos(closer)}) if closer else page

    def _with_presence(self, listed: index_messages.ListedAdvert) -> index_messages.ListedAdvert:
        peer = read_signed(listed.advert).peer
        present = peer == self.client.own_peer or self.client.network.path(peer) is not None
        return listed.model_copy(update={"present": True}) if present else listed

    def _closer(self, key: bytes, have: bytes, asker: PeerId) -> list[Contact]:
        """The nearest holders of `key`, except those that `asker` named by fingerprint."""
        size = index_messages.HAVE_BYTES
        fingerprints = {have[start : start + size] for start in range(0, len(have), size)}
        near = self.client.nearest(key, HOLDERS)
        return [c for c in near if c.peer != asker and routing_key(c.peer)[:size] not in fingerprints]

    # -- holders named by strangers --------------------------------------------------------------------------------------

    def introduce(self, contact: Contact) -> None:
        """Ask a peer that somebody named as a holder. It counts as one once it has answered. Excess introductions are ignored."""
        peer = contact.peer
        if (
            contact.addresses
            and len(self.meeting) < INTRODUCTIONS
            and not (self.client.met(peer) or peer in self.meeting)
            and self.client.usable(peer)
        ):
            self.meeting.add(peer)
            self.client.nursery.start_soon(self._meet, contact)

    async def _meet(self, contact: Contact) -> None:
        question = index_messages.FindPeers(
            key=routing_key(self.client.own_peer), sender=sender_of(self.client.me())
        )
        named: list[Contact] = []
        try:
            answer = await self.client.ask(contact, question, index_messages.FoundPeers)
            if answer.client:
                named = read_contacts(answer.contacts)[:MAX_REFERRALS]
            else:
                await self._check_addresses(contact)
        except (Unreachable, Refused):
            pass
        finally:
            self.meeting.discard(contact.peer)
        for other in named:
            self.introduce(other)

    async def _check_addresses(self, contact: Contact) -> None:
        """Check addresses that differ from the one at which the contact is seen (another interface, another family). Others receive only
        checked addresses; otherwise a liar could make the whole swarm dial a victim."""
        observed = self.client.remote_address(contact.peer)
        if observed is None:
            return
        sure = self.client.with_observed_addresses(contact).addresses
        checked: list[Address] = []
        for address in usable(set(contact.addresses).difference(sure)):
            where = parse_tcp(address)
            if where is None or where.ip is None or (is_private(address) and not is_private(observed)):
                continue
            if len(checked) >= KNOCKS or self._knocks.wait(trio.current_time(), where.host):
                break
            if await self.knock(contact.peer, address):
                checked.append(address)
        if checked:
            self.client.learn(Contact(contact.peer, (*sure, *checked)))
