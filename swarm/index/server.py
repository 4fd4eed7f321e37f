"""Answers other nodes' calls: the way to holders, and this node's own store while it is one."""

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
from swarm.index.client import IndexClient, contact_infos, missing
from swarm.index.lookup import HOLDERS, sender_of
from swarm.index.merge import AdvertCache
from swarm.index.shard_store import ForgedAdvert, ShardStore
from swarm.net.addresses import Address, Contact, PeerId, is_private, parse_tcp, public_network, usable
from swarm.net.identity import routing_key
from swarm.net.limits import RateLimit
from swarm.net.link import Link
from swarm.net.network import read_contacts

CALLS_PER_S: Final = 200.0
"""Calls of one peer."""
MAX_REFERRALS: Final = 4
"""Peers asked of those that a client names."""
INTRODUCTIONS: Final = 8
"""Strangers being checked at a time before they count as holders."""

RELAYED: Final = "relayed"
KNOCKS: Final = 2
"""Checked addresses of a holder besides the one it is seen at."""
KNOCK_RATE: Final = (4, 60.0)
"""Checks of one address: so many at once, then one in so many seconds, whoever names it."""

Admit = Callable[[PeerId], say.RefusedMessage | None]
"""The refusal for a peer whose adverts are not stored here; None: they are."""


def admit_all(peer: PeerId) -> say.RefusedMessage | None:
    """Anybody's adverts are entry."""
    return None


class IndexServer:
    """Answers calls. `me`: our own contact while we store adverts for others."""

    def __init__(
        self,
        own_peer: PeerId,
        holder: ShardStore,
        client: IndexClient,
        nursery: trio.Nursery,
        me: Callable[[], Contact | None],
        verified: AdvertCache,
        *,
        knock: Callable[[PeerId, Address], Awaitable[bool]],
        remote_address: Callable[[PeerId], Address | None] | None = None,
        admit: Admit = admit_all,
        known: Callable[[PeerId], bool] = lambda peer: False,
    ) -> None:
        """`knock`: whether a peer proves its key on a fresh connection to an address; `known`: whom this node's owner knows: no network
        quota holds for them."""
        self._own_peer = own_peer
        self._holder = holder
        self._client = client
        self._nursery = nursery
        self._me = me
        self._verified = verified
        self._remote_address = remote_address
        self._admit = admit
        self._known = known
        self._knock = knock
        self._knocks = RateLimit(*KNOCK_RATE)
        self._calls = RateLimit.per_second(CALLS_PER_S)
        self._meeting: set[PeerId] = set()
        self._closed = False
        self.refused: Counter[str] = Counter()
        """Refused calls and adverts, by reason."""

    def close(self) -> None:
        """Refuse every call from now on."""
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
                reason=Reason.NOT_A_HOLDER, detail="this node stores no adverts of others"
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
        """Store our own advert."""
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
            for contact in self._client.nearest(message.key, message.count + 1)
            if contact.peer != asker
        ]
        client = True if self._me() is None else None
        return say.FoundPeers(contacts=contact_infos(near[: message.count]), client=client)

    def _store(self, now: float, sender: PeerId, message: say.StoreAdverts) -> say.StoreReply:
        try:
            advert = self._verified.read(message.advert).advert
        except ForgedAdvert as exc:
            refused = say.StoredItem(verdict=say.StoreVerdict.REFUSED)
            return say.StoreReply(items=(refused,) * len(message.items), reason=exc.what)
        network = self._network_of(sender, advert.addresses)
        items, reason = self._holder.store(now, sender, network, message.advert, message.items)
        named: dict[PeerId, Contact] = {}
        place = routing_key(sender)
        for item in message.items:
            key = shard_key(advert.pool, item.attribute, item.depth, shard_prefix(place, item.depth))
            for contact in missing(item.have, self._client.nearest(key, HOLDERS)):
                if contact.peer != sender:
                    named.setdefault(contact.peer, contact)
        return say.StoreReply(items=items, reason=reason, closer=contact_infos(list(named.values())))

    def _network_of(self, sender: PeerId, addresses: Sequence[Address]) -> str:
        """The network whose quota an advert counts against: `RELAYED` for all that come through gates, empty for known peers."""
        if sender == self._own_peer or self._known(sender):
            return ""
        if self._remote_address is None:
            return public_network(addresses)
        observed = self._remote_address(sender)
        return RELAYED if observed is None else public_network([observed])

    def _page(self, now: float, asker: PeerId, message: say.QueryShard) -> say.ShardPage:
        paged = self._holder.page(now, message)
        key = shard_key(message.pool, message.attribute, message.depth, message.prefix)
        near = missing(message.have, self._client.nearest(key, HOLDERS)) if message.have else []
        closer = contact_infos([contact for contact in near if contact.peer != asker])
        return paged.model_copy(update={"closer": closer}) if closer else paged

    def _hand(self, now: float, message: say.HandOver) -> say.HandOverReply:
        """Store of what another holder hands over whatever its own node may store here."""
        if self._admit is not admit_all:
            admitted = tuple(listed for listed in message.adverts if self._admitted(listed))
            message = message.model_copy(update={"adverts": admitted})
        return say.HandOverReply(stored=self._holder.take_over(now, message))

    def _admitted(self, listed: say.ListedAdvert) -> bool:
        try:
            return self._admit(self._verified.read(listed.advert).advert.peer) is None
        except ForgedAdvert:
            return False

    def introduce(self, contact: Contact) -> None:
        """A stranger says it is a holder: it counts as one once it has answered a call."""
        known = self._client.knows(contact.peer) or contact.peer in self._meeting
        if (
            known
            or len(self._meeting) >= INTRODUCTIONS
            or not contact.addresses
            or not self._client.usable(contact.peer)
        ):
            return
        self._meeting.add(contact.peer)
        self._nursery.start_soon(self._meet, contact)

    async def _meet(self, contact: Contact) -> None:
        question = say.FindPeers(key=routing_key(self._own_peer), sender=sender_of(self._me()))
        named: list[Contact] = []
        try:
            answer = await self._client.ask(contact, question, say.FoundPeers)
            if answer.client:
                named = read_contacts(answer.contacts)[:MAX_REFERRALS]
            else:
                await self._check_addresses(contact)
        except (Unreachable, Refused):
            pass
        finally:
            self._meeting.discard(contact.peer)
        for other in named:
            self.introduce(other)

    async def _check_addresses(self, contact: Contact) -> None:
        """Check the addresses that differ from the one it is seen at (another interface, another family). Others get checked addresses
        only, or a liar could have the whole swarm dial a victim."""
        observed = self._remote_address(contact.peer) if self._remote_address is not None else None
        if observed is None:
            return
        private = is_private(observed)
        sure = self._client.with_observed_addresses(contact).addresses
        checked: list[Address] = []
        for address in usable(set(contact.addresses).difference(sure)):
            where = parse_tcp(address)
            if where is None or where.ip is None or (is_private(address) and not private):
                continue
            if len(checked) >= KNOCKS or self._knocks.wait(trio.current_time(), where.host):
                break
            if await self._knock(contact.peer, address):
                checked.append(address)
        self._client.learn(Contact(contact.peer, (*sure, *checked)))
