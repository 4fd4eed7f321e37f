"""The index as the roles use it: publish one's own advert, query devices, and store adverts for others.

    index = Index(network, rng=random.Random(), incarnation=3)
    await nursery.start(index.run)
    await index.publish(advert)                          # and again whenever it changes
    result = await index.query(requirement, want=16)
    await index.withdraw()                               # on leaving

Every node that can be dialled is a holder, for as long as it can; the others are clients. `shard_store` is the store, `lookup` finds
holders, `publisher` and `query` use them.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Protocol

import trio

from protocol.errors import Refused, Unreachable
from protocol.messages import index as say
from protocol.signed.advert import SignedAdvert, advert_body, advert_message
from protocol.values.advert import Advert
from protocol.values.index_keys import attributes_of, campaign_attribute, model_attribute
from protocol.values.requirement import Requirement
from swarm.index.client import IndexClient
from swarm.index.lookup import Lookups, sender_of
from swarm.index.merge import AdvertCache
from swarm.index.publisher import REFRESH_S, Publisher
from swarm.index.query import Query, QueryResult
from swarm.index.server import Admit, IndexServer, admit_all
from swarm.index.shard_store import SOFT_LIMIT, ShardStore
from swarm.net.addresses import Address, Contact, PeerId
from swarm.net.identity import routing_key
from swarm.net.link import Links, serve_links
from swarm.net.network import Network

EXPIRE_S: Final = 60.0
LOOK_AROUND_S: Final = (2.0, 300.0)
"""Between two searches of a holder for its neighbours: after the start, and at most."""
SEEK_LOST_S: Final = 10.0
"""Between two retries of silent holders."""
LOST_AT_ONCE: Final = 4
MAX_LINKS: Final = 512


class Reached(Protocol):
    """The part of `ReachKeeper` that the index uses."""

    @property
    def holder(self) -> bool: ...

    @property
    def addresses(self) -> tuple[Address, ...]: ...


class Index:
    """One node's part of the index. `run` must be running."""

    def __init__(
        self,
        network: Network,
        *,
        rng: random.Random,
        incarnation: int = 0,
        pool: str = "",
        serve: bool = True,
        soft: int = SOFT_LIMIT,
        refresh_s: float = REFRESH_S,
        remote_address: Callable[[PeerId], Address | None] | None = None,
        admit: Admit = admit_all,
        reach: Reached | None = None,
        wall: Callable[[], float] = trio.current_time,
        known: Callable[[PeerId], bool] = lambda peer: False,
        anchors: Callable[[], Sequence[Contact]] = tuple,
    ) -> None:
        """`serve=False`: a client only. `soft`: adverts in a shard before it splits. `remote_address`: where a connected peer is seen;
        without it quotas go by the addresses in adverts. `admit`: whose adverts are stored here. `reach`: whether and where this node
        can be dialled; without it, every node with an address can. `wall`: a clock that advances while the machine sleeps. `known`: whom
        the owner knows: no network quota holds for them. `anchors`: holders that the owner chose, its gates: used besides those near a
        key, so that liars there cannot hide anybody."""
        self._wall = wall
        self._network = network
        self._rng = rng
        self._pool = pool
        self._serve = serve
        self._refresh_s = refresh_s
        self._remote_address = remote_address
        self._admit = admit
        self._reach = reach
        self._known = known
        self._anchors = anchors
        self._next_seq = incarnation << 32
        self._verified = AdvertCache()
        self.holder = ShardStore(soft=soft, read=self._verified.read)
        self._advert: Advert | None = None
        self._campaigns: tuple[str, ...] = ()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve, refresh and repair for ever."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            self._links = Links(self._network, say.FAMILY, say.INDEX, nursery, keep=MAX_LINKS)
            self._client = IndexClient(self._network, self._links, self._remote_address)
            self._server = IndexServer(
                self._network.peer_id,
                self.holder,
                self._client,
                nursery,
                self._me,
                self._verified,
                knock=self._network.knock,
                remote_address=self._remote_address,
                admit=self._admit,
                known=self._known,
            )
            self._lookups = Lookups(self._client, nursery, self._network.peer_id, self._me)
            self._publisher = Publisher(
                self._client,
                self._lookups,
                self._network.peer_id,
                self._me,
                self._server.store_here,
                self._rng,
                refresh_s=self._refresh_s,
                wall=self._wall,
                anchors=self._anchors,
            )
            self._query = Query(
                self._client,
                self._lookups,
                nursery,
                self._network.peer_id,
                self._server.page_here,
                self._verified,
                self._rng,
                pool=self._pool,
                anchors=self._anchors,
            )
            serve_links(self._network, say.FAMILY, say.INDEX, self._server.answer)
            nursery.start_soon(self._publisher.run)
            nursery.start_soon(self._expire)
            nursery.start_soon(self._look_around)
            nursery.start_soon(self._seek_lost)
            task_status.started()
            try:
                await trio.sleep_forever()
            finally:
                self._server.close()

    # -- publishing ------------------------------------------------------------------------------------------------------

    async def publish(self, advert: Advert, campaigns: Iterable[str] = ()) -> int:
        """Sign and publish `advert`, and refresh it from then on. Returns the number of holders of its least held attribute.

        Fills in `peer` and `seq`, and `addresses` and `pool` where they are empty. `campaigns`: ids of campaigns whose leases this node
        holds. Raises `LocalProtocolError` when the advert is too large.
        """
        mine = advert.model_copy(
            update={
                "peer": self._network.peer_id,
                "pool": advert.pool or self._pool,
                "addresses": advert.addresses or self._addresses()[:8],
                "seq": self._advert.seq if self._advert is not None else 0,
                "gone": False,
            }
        )
        campaigns = tuple(campaigns)
        if mine != self._advert or campaigns != self._campaigns:
            mine = mine.model_copy(update={"seq": self._seq()})
        signed = self._sign(mine)
        self._advert, self._campaigns = mine, campaigns
        attributes = (*attributes_of(mine), *map(campaign_attribute, campaigns))
        await self._publisher.publish(signed, mine.pool, attributes)
        return self._publisher.coverage()

    async def withdraw(self) -> int:
        """Withdraw the advert, within a second; returns how many holders replied."""
        if self._advert is None:
            return 0
        gone = Advert(
            peer=self._advert.peer,
            seq=self._seq(),
            gone=True,
            device=self._advert.device,
            name=self._advert.name,
            pool=self._advert.pool,
        )
        self._advert = None
        return await self._publisher.withdraw(self._sign(gone))

    @property
    def coverage(self) -> int:
        """The number of holders of our least held attribute."""
        return self._publisher.coverage()

    @property
    def calls(self) -> int:
        """Calls made to other nodes since the start."""
        return self._client.calls

    def _seq(self) -> int:
        self._next_seq += 1
        return self._next_seq

    def _sign(self, advert: Advert) -> SignedAdvert:
        body = advert_body(advert)
        return SignedAdvert(body=body, signature=self._network.sign(advert_message(body)))

    # -- finding ---------------------------------------------------------------------------------------------------------

    async def query(self, requirement: Requirement, want: int = 16) -> QueryResult:
        """About `want` devices that meet all clauses, if there are so many."""
        return await self._query.query(requirement, want)

    async def everybody(self, limit: int = 256) -> QueryResult:
        """Devices of any kind."""
        return await self._query.everybody(limit)

    async def campaign(self, campaign: str, limit: int = 256) -> QueryResult:
        """Devices that hold leases of a campaign."""
        return await self._query.under(campaign_attribute(campaign), limit)

    async def model(self, sha256: str, limit: int = 32) -> QueryResult:
        """Devices that have a model, by their adverts."""
        return await self._query.under(model_attribute(sha256), limit)

    async def survey(self, requirement: Requirement, limit: int = 256) -> QueryResult:
        """Unfiltered devices, to explain clause by clause why nothing matches."""
        return await self._query.survey(requirement, limit)

    async def nearest(self, key: bytes) -> list[Contact]:
        """Up to eight holders nearest to a 32-byte key that just answered, ourselves among them if we are one."""
        return await self._lookups.find(key)

    # -- holding ---------------------------------------------------------------------------------------------------------

    @property
    def refused(self) -> Counter[str]:
        """Refused calls and adverts, by reason."""
        return self._server.refused

    @property
    def holding(self) -> bool:
        """Whether this node stores adverts for others: it is configured to, and can be dialled."""
        return self._serve and (self._reach is None or self._reach.holder) and bool(self._network.addresses)

    def introduce(self, contact: Contact) -> None:
        """Check a node that somebody named as a holder: it counts as one once it has answered. A few at a time; more are ignored."""
        self._server.introduce(contact)

    def _addresses(self) -> tuple[Address, ...]:
        return self._network.addresses if self._reach is None else self._reach.addresses

    def _me(self) -> Contact | None:
        return Contact(self._network.peer_id, self._addresses()[:8]) if self.holding else None

    async def _expire(self) -> None:
        while True:
            await trio.sleep(EXPIRE_S)
            self.holder.expire(trio.current_time())

    async def _look_around(self) -> None:
        """Ask the neighbours of a holder, which tells them our contact."""
        pause, most = LOOK_AROUND_S
        while True:
            await trio.sleep(pause * self._rng.uniform(0.8, 1.2))
            pause = min(pause * 2, most)
            if self.holding:
                await self._lookups.find(routing_key(self._network.peer_id), patient=True)

    async def _seek_lost(self) -> None:
        """Retry silent holders, one at a time; when one is back, others behind it may be too."""
        while True:
            await trio.sleep(SEEK_LOST_S * self._rng.uniform(0.8, 1.2))
            for contact in self._client.lost()[:LOST_AT_ONCE]:
                question = say.FindPeers(key=routing_key(self._network.peer_id), sender=sender_of(self._me()))
                try:
                    await self._client.ask(contact, question, say.FoundPeers)
                except (Unreachable, Refused):
                    continue
                await self._lookups.find(routing_key(self._network.peer_id), patient=True)
                break
