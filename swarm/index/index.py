"""The index as the roles use it: publish one's own advert, find devices that fit, and keep adverts for others.

    index = Index(network, rng=random.Random(), incarnation=3)
    await nursery.start(index.run)
    await index.publish(advert)                          # and again whenever it changes
    result = await index.query(requirement, want=16)
    await index.withdraw()                               # on leaving

Every node that can be dialled is a holder, from one moment to the next if that changes; the others are clients. See
`index_holder` for what is kept, `index_lookup` for the way to the holders, `index_publisher` and `index_query` for the two sides of use.
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
from swarm.index.merge import VerifiedAdvert
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
"""How often a holder looks for its neighbours: soon after the start, then this rarely."""
SEEK_LOST_S: Final = 10.0
"""How often one of the holders that fell silent is tried again."""
LOST_AT_ONCE: Final = 4
MAX_LINKS: Final = 512


class Reached(Protocol):
    """What the index wants to know of `reach_keeper.ReachKeeper`."""

    @property
    def holder(self) -> bool: ...

    @property
    def addresses(self) -> tuple[Address, ...]: ...


class Index:
    """One node's part of the index. `run` must be running; everything else may be called at any time after that."""

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
        """`serve=False`: a client only. `soft`: adverts in a shard before it splits. `remote_address`: where a connected peer
        is seen to come from; without it the quota goes by the addresses in the advert, which a liar may leave out.
        `admit`: whose adverts are kept here. `reach`: whether this node can be dialled, and where, as of now; it may change at any
        time. Without it every node with an address can. `wall`: a clock that goes on while the machine sleeps.
        `known`: whom the owner knows: any number of them may be behind one router.
        `anchors`: holders that the owner chose, its gates: told and asked beside those near a key, so that liars who sit there
        cannot hide anybody from those who share a gate with him."""
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
        self._verified = VerifiedAdvert()
        self.holder = ShardStore(soft=soft, read=self._verified.read)
        self._advert: Advert | None = None
        self._campaigns: tuple[str, ...] = ()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve, refresh, mend and look around for ever."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            self._links = Links(self._network, say.FAMILY, say.INDEX, nursery, keep=MAX_LINKS)
            self._caller = IndexClient(self._network, self._links, self._remote_address)
            self._desk = IndexServer(
                self._network.peer_id,
                self.holder,
                self._caller,
                nursery,
                self._me,
                self._verified,
                knock=self._network.knock,
                remote_address=self._remote_address,
                admit=self._admit,
                known=self._known,
            )
            self._lookups = Lookups(self._caller, nursery, self._network.peer_id, self._me)
            self._publisher = Publisher(
                self._caller,
                self._lookups,
                self._network.peer_id,
                self._me,
                self._desk.store_here,
                self._rng,
                refresh_s=self._refresh_s,
                wall=self._wall,
                anchors=self._anchors,
            )
            self._query = Query(
                self._caller,
                self._lookups,
                nursery,
                self._network.peer_id,
                self._desk.page_here,
                self._verified,
                self._rng,
                pool=self._pool,
                anchors=self._anchors,
            )
            serve_links(self._network, say.FAMILY, say.INDEX, self._desk.answer)
            nursery.start_soon(self._publisher.run)
            nursery.start_soon(self._expire)
            nursery.start_soon(self._look_around)
            nursery.start_soon(self._seek_lost)
            task_status.started()
            try:
                await trio.sleep_forever()
            finally:
                self._desk.close()

    # -- publishing ------------------------------------------------------------------------------------------------------

    async def publish(self, advert: Advert, campaigns: Iterable[str] = ()) -> int:
        """Sign `advert` and bring it to its holders; kept alive from then on. Gives how many hold its least held attribute.

        `peer` and `seq` are filled in here, `addresses` and `pool` where they are empty. Publishing the same again is a refresh.
        `campaigns`: ids of campaigns whose leases this node holds. LocalProtocolError when the advert is too large.
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
        """Say that this node leaves, within a second; gives how many holders heard it."""
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
        """How many holders keep our least held attribute."""
        return self._publisher.coverage()

    @property
    def calls(self) -> int:
        """Calls made to other nodes since the start."""
        return self._caller.calls

    def _seq(self) -> int:
        self._next_seq += 1
        return self._next_seq

    def _sign(self, advert: Advert) -> SignedAdvert:
        body = advert_body(advert)
        return SignedAdvert(body=body, signature=self._network.sign(advert_message(body)))

    # -- finding ---------------------------------------------------------------------------------------------------------

    async def query(self, requirement: Requirement, want: int = 16) -> QueryResult:
        """Devices that meet all clauses, about `want` of them if there are so many. An empty answer is not an error."""
        return await self._query.query(requirement, want)

    async def everybody(self, limit: int = 256) -> QueryResult:
        """Devices of any kind."""
        return await self._query.everybody(limit)

    async def campaign(self, campaign: str, limit: int = 256) -> QueryResult:
        """Devices that hold leases of a campaign."""
        return await self._query.under(campaign_attribute(campaign), limit)

    async def model(self, sha256: str, limit: int = 32) -> QueryResult:
        """Devices that say that they have a model."""
        return await self._query.under(model_attribute(sha256), limit)

    async def survey(self, requirement: Requirement, limit: int = 256) -> QueryResult:
        """Devices, unfiltered, to count clause by clause why nothing fits."""
        return await self._query.survey(requirement, limit)

    async def nearest(self, key: bytes) -> list[Contact]:
        """Up to eight holders nearest to a 32-byte key that answered just now, ourselves among them if we are one."""
        return await self._lookups.find(key)

    # -- holding ---------------------------------------------------------------------------------------------------------

    @property
    def refused(self) -> Counter[str]:
        """What was asked of our store and not done, by reason. `run` must be running."""
        return self._desk.refused

    @property
    def holding(self) -> bool:
        """Whether this node keeps adverts for others: it wants to, and can be dialled."""
        return self._serve and (self._reach is None or self._reach.holder) and bool(self._network.addresses)

    def introduce(self, contact: Contact) -> None:
        """Get to know a node of which somebody says that it keeps adverts: it counts as a holder once it has answered. `run` must be
        running; a few at a time, more are dropped."""
        self._desk.introduce(contact)

    def _addresses(self) -> tuple[Address, ...]:
        return self._network.addresses if self._reach is None else self._reach.addresses

    def _me(self) -> Contact | None:
        return Contact(self._network.peer_id, self._addresses()[:8]) if self.holding else None

    async def _expire(self) -> None:
        while True:
            await trio.sleep(EXPIRE_S)
            self.holder.expire(trio.current_time())

    async def _look_around(self) -> None:
        """A holder knows its neighbours, and they know it: each of them is told our contact by being asked."""
        pause, most = LOOK_AROUND_S
        while True:
            await trio.sleep(pause * self._rng.uniform(0.8, 1.2))
            pause = min(pause * 2, most)
            if self.holding:
                await self._lookups.find(routing_key(self._network.peer_id), patient=True)

    async def _seek_lost(self) -> None:
        """Try silent holders again, one at a time; when one is back, so may be all that was beyond it."""
        while True:
            await trio.sleep(SEEK_LOST_S * self._rng.uniform(0.8, 1.2))
            for contact in self._caller.lost()[:LOST_AT_ONCE]:
                question = say.FindPeers(key=routing_key(self._network.peer_id), sender=sender_of(self._me()))
                try:
                    await self._caller.ask(contact, question, say.FoundPeers)
                except (Unreachable, Refused):
                    continue
                await self._lookups.find(routing_key(self._network.peer_id), patient=True)
                break
