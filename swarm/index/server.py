"""What this node answers when others speak to its index: the way to holders, and its own store if it is one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import trio

from protocol.errors import Refused, RemoteProtocolError, Unreachable
from protocol.messages import index as say
from protocol.values.index_keys import shard_key, shard_prefix
from protocol.wire.base import Message
from protocol.words import Reason
from swarm.index.client import IndexClient, missing, tell
from swarm.index.lookup import HOLDERS, sender_of
from swarm.index.merge import VerifiedAdvert
from swarm.index.shard_store import Forged, ShardStore
from swarm.net.addresses import Address, Contact, PeerId, is_private, parse_tcp, public_network, usable
from swarm.net.identity import routing_key
from swarm.net.limits import RateLimit
from swarm.net.link import Link
from swarm.net.network import read_contacts

CALLS_PER_S: Final = 200.0
"""Calls of one peer."""
HANDED_ON: Final = 4
"""Of those that somebody names who is no holder himself, so many are asked."""
INTRODUCTIONS: Final = 8
"""Strangers that are asked back at a time before they count as holders."""

RELAYED: Final = "relayed"
KNOCKS: Final = 2
"""Addresses where a holder is not seen, but was found when they were tried."""
KNOCKS_AT: Final = (4, 60.0)
"""Of such tries so many at once at one address, then one in so many seconds, whoever names it."""

Admit = Callable[[PeerId], say.RefusedMessage | None]
"""The answer for a peer whose adverts are not kept here; None: they are."""


def admit_all(peer: PeerId) -> say.RefusedMessage | None:
    """Anybody's adverts are kept."""
    return None


class IndexServer:
    """Answers calls. `me` is our own contact while we keep adverts for others."""

    def __init__(
        self,
        own_peer: PeerId,
        holder: ShardStore,
        caller: IndexClient,
        nursery: trio.Nursery,
        me: Callable[[], Contact | None],
        verified: VerifiedAdvert,
        *,
        knock: Callable[[PeerId, Address], Awaitable[bool]],
        remote_address: Callable[[PeerId], Address | None] | None = None,
        admit: Admit = admit_all,
        known: Callable[[PeerId], bool] = lambda peer: False,
    ) -> None:
        """`knock`: whether a peer, with its key, answers a fresh connection at an address; `known`: whom this node's owner
        knows, so that many of them may be behind one router."""
        self._own_peer = own_peer
        self._holder = holder
        self._caller = caller
        self._nursery = nursery
        self._me = me
        self._verified = verified
        self._remote_address = remote_address
        self._admit = admit
        self._known = known
        self._knock = knock
        self._knocks = RateLimit(*KNOCKS_AT)
        self._calls = RateLimit.per_second(CALLS_PER_S)
        self._meeting: set[PeerId] = set()
        self._closed = False
        self.refused: Counter[str] = Counter()
        """Calls that were answered with a no, and adverts that were not kept, by reason."""

    def close(self) -> None:
        """Answer nobody any more: what would do the work is gone."""
        self._closed = True

    async def answer(self, link: Link, message: Message) -> Message:
        """Serve one call of a peer."""
        answer = self._answer(link, message)
        if isinstance(answer, say.RefusedMessage):
            self.refused[answer.reason] += 1
        elif isinstance(answer, say.StoreReply):
            for item in answer.items:
                if item.verdict in (say.StoreVerdict.REFUSED, say.StoreVerdict.FULL):
                    self.refused[f"store-{item.verdict}"] += 1
        return answer

    def _answer(self, link: Link, message: Message) -> Message:
        if self._closed:
            return say.RefusedMessage(reason=Reason.NOT_SERVING, detail="this node is leaving")
        now = trio.current_time()
        wait = self._calls.wait(now, link.peer)
        if wait:
            return say.RefusedMessage(reason=Reason.OVERLOADED, detail="too many calls", retry_after_s=wait)
        if isinstance(message, say.FindPeers):
            return self._find(link.peer, message)
        if not isinstance(message, (say.StoreAdverts, say.QueryShard, say.MarkSplit, say.HandOver)):
            raise RemoteProtocolError(f"a {type(message).__name__} is an answer, not a call")
        if self._me() is None:
            return say.RefusedMessage(
                reason=Reason.NOT_A_HOLDER, detail="this node keeps no adverts of others"
            )
        match message:
            case say.StoreAdverts():
                return self._admit(link.peer) or self._store(now, link.peer, message)
            case say.QueryShard():
                return self._page(now, link.peer, message)
            case say.MarkSplit():
                key = shard_key(message.pool, message.attribute, message.depth, message.prefix)
                return say.MarkReply(split=self._holder.split(key))
            case say.HandOver():
                return self._admit(link.peer) or self._hand(now, message)

    def store_here(self, message: say.StoreAdverts) -> say.StoreReply:
        """Keep our own advert."""
        return self._store(trio.current_time(), self._own_peer, message)

    def page_here(self, message: say.QueryShard) -> say.ShardPage:
        """Read our own store."""
        return self._holder.page(trio.current_time(), message)

    def _find(self, asker: PeerId, message: say.FindPeers) -> say.FoundPeers:
        if message.sender is not None and message.sender.peer == asker:
            for contact in read_contacts((message.sender,)):
                self.introduce(contact)
        near = [
            contact
            for contact in self._caller.nearest(message.key, message.count + 1)
            if contact.peer != asker
        ]
        client = True if self._me() is None else None
        return say.FoundPeers(contacts=tell(near[: message.count]), client=client)

    def _store(self, now: float, sender: PeerId, message: say.StoreAdverts) -> say.StoreReply:
        try:
            advert = self._verified.read(message.advert).advert
        except Forged as exc:
            refused = say.StoredItem(verdict=say.StoreVerdict.REFUSED)
            return say.StoreReply(items=(refused,) * len(message.items), reason=exc.what)
        network = self._network_of(sender, advert.addresses)
        items, reason = self._holder.store(now, sender, network, message.advert, message.items)
        named: dict[PeerId, Contact] = {}
        place = routing_key(sender)
        for item in message.items:
            key = shard_key(advert.pool, item.attribute, item.depth, shard_prefix(place, item.depth))
            for contact in missing(item.have, self._caller.nearest(key, HOLDERS)):
                if contact.peer != sender:
                    named.setdefault(contact.peer, contact)
        return say.StoreReply(items=items, reason=reason, closer=tell(list(named.values())))

    def _network_of(self, sender: PeerId, addresses: Sequence[Address]) -> str:
        """Whose share of a shard it takes: its public network's, that of all who come through gates, or, if it is known, nobody's."""
        if sender == self._own_peer or self._known(sender):
            return ""
        if self._remote_address is None:
            return public_network(addresses)
        seen = self._remote_address(sender)
        return RELAYED if seen is None else public_network([seen])

    def _page(self, now: float, asker: PeerId, message: say.QueryShard) -> say.ShardPage:
        paged = self._holder.page(now, message)
        key = shard_key(message.pool, message.attribute, message.depth, message.prefix)
        near = missing(message.have, self._caller.nearest(key, HOLDERS)) if message.have else []
        closer = tell([contact for contact in near if contact.peer != asker])
        return paged.model_copy(update={"closer": closer}) if closer else paged

    def _hand(self, now: float, message: say.HandOver) -> say.HandOverReply:
        """Of what another holder hands over, keep what its own node might bring as well."""
        if self._admit is not admit_all:
            admitted = tuple(listed for listed in message.adverts if self._admitted(listed))
            message = message.model_copy(update={"adverts": admitted})
        return say.HandOverReply(stored=self._holder.take_over(now, message))

    def _admitted(self, listed: say.ListedAdvert) -> bool:
        try:
            return self._admit(self._verified.read(listed.advert).advert.peer) is None
        except Forged:
            return False

    def introduce(self, contact: Contact) -> None:
        """A stranger says it is a holder: ask it something; only when it answers does it count as one."""
        known = self._caller.knows(contact.peer) or contact.peer in self._meeting
        if (
            known
            or len(self._meeting) >= INTRODUCTIONS
            or not contact.addresses
            or not self._caller.usable(contact.peer)
        ):
            return
        self._meeting.add(contact.peer)
        self._nursery.start_soon(self._meet, contact)

    async def _meet(self, contact: Contact) -> None:
        question = say.FindPeers(key=routing_key(self._own_peer), sender=sender_of(self._me()))
        named: list[Contact] = []
        try:
            answer = await self._caller.ask(contact, question, say.FoundPeers)
            if answer.client:
                named = read_contacts(answer.contacts)[:HANDED_ON]
            else:
                await self._look_elsewhere(contact)
        except (Unreachable, Refused):
            pass
        finally:
            self._meeting.discard(contact.peer)
        for other in named:
            self.introduce(other)

    async def _look_elsewhere(self, contact: Contact) -> None:
        """It says that it can be dialled where it is not seen (another interface, another family): only what is found so goes on
        to others, or anybody could have the whole swarm dial a victim."""
        seen = self._remote_address(contact.peer) if self._remote_address is not None else None
        if seen is None:
            return
        near = is_private(seen)
        sure = self._caller.vouched(contact).addresses
        there: list[Address] = []
        for address in usable(set(contact.addresses).difference(sure)):
            where = parse_tcp(address)
            if where is None or where.ip is None or (is_private(address) and not near):
                continue
            if len(there) >= KNOCKS or self._knocks.wait(trio.current_time(), where.host):
                break
            if await self._knock(contact.peer, address):
                there.append(address)
        self._caller.met(Contact(contact.peer, (*sure, *there)))
