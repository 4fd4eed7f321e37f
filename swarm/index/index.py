"""The index as the roles use it: publish the node's own advert, query devices, and store adverts for others.

    index = Index(network, rng=random.Random(), incarnation=3)
    await nursery.start(index.run)
    await index.publish(advert)                          # and again whenever it changes
    result = await index.query(requirement, want=16)
    await index.withdraw()                               # on leaving

Every node that can be dialled is a holder while that lasts; all others are clients. `shard_store` stores the adverts, `lookup` finds
holders, and `publisher` and `query` use them.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Final, Protocol

import trio

from protocol.errors import Refused, Unreachable
from protocol.messages import index as index_messages
from protocol.values.advert import Advert, SignedAdvert, advert_body, advert_message
from protocol.values.index_keys import EVERYBODY, attributes_of, campaign_attribute
from protocol.values.requirement import Clause, Op, Requirement
from swarm.index.client import FIRST_S, IndexClient
from swarm.index.lookup import Lookups, sender_of
from swarm.index.publisher import REFRESH_S, Publisher
from swarm.index.query import Query, QueryResult
from swarm.index.server import Admit, IndexServer
from swarm.index.shard_store import SPLIT_THRESHOLD, ShardStore
from swarm.net.addresses import Address, Contact, PeerId, without_names
from swarm.net.identity import routing_key
from swarm.net.links import Links, serve_links
from swarm.net.network import Network

EXPIRE_S: Final = 60.0
LOOK_AROUND_S: Final = (2.0, 600.0)
"""Between two lookups of a holder, which alternate between its own neighbours and a random point: after the start, and at most."""
SEEK_LOST_S: Final = 10.0
"""Between two retries of silent holders."""
LOST_AT_ONCE: Final = 4
CHECK_S: Final = 120.0
"""Between two checks of holders in the routing table that have been quiet for `UNHEARD_S`."""
CHECKED_AT_ONCE: Final = 8
UNHEARD_S: Final = 1_800.0
MAX_LINKS: Final = 512


class ReachSource(Protocol):
    """The part of `ReachKeeper` that the index uses."""

    @property
    def holder(self) -> bool: ...

    @property
    def addresses(self) -> tuple[Address, ...]: ...


@dataclass
class Index:
    """One node's part of the index. `run` must be running."""

    network: Network
    rng: random.Random
    _: KW_ONLY
    incarnation: int = 0
    serve: bool = True
    """False: a client only."""
    split_threshold: int = SPLIT_THRESHOLD
    """Adverts in a shard before it splits."""
    refresh_s: float = REFRESH_S
    remote_address: Callable[[PeerId], Address | None] | None = None
    """The address where a connected peer is seen; None: ask the network."""
    admit: Admit = lambda peer: None
    """Whose adverts are stored here."""
    reach: ReachSource | None = None
    """Whether and where this node can be dialled; without it, every node with an address can."""
    wall: Callable[[], float] = trio.current_time
    """A clock that keeps running while the machine sleeps."""
    exempt: Callable[[PeerId], bool] = lambda peer: False
    """Whether the owner knows a peer: no network quota applies to it."""
    anchors: Callable[[], Sequence[Contact]] = tuple
    """Holders that the owner chose, its gates: used in addition to those near a key, so that liars there cannot hide a device."""
    open_links: Callable[..., Links] = Links
    """Creates the links to other nodes, with the arguments of `Links`."""
    serve_links: Callable[..., None] = serve_links
    """Answers the links that other nodes open, with the arguments of `swarm.net.links.serve_links`."""
    _advert: Advert | None = None
    _campaigns: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self._next_seq = self.incarnation << 32
        self.holder = ShardStore(split_threshold=self.split_threshold)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve, refresh and repair until cancelled."""
        network = self.network
        async with trio.open_nursery() as nursery:
            client = IndexClient(
                network,
                self.open_links(
                    network, index_messages.FAMILY, index_messages.INDEX, nursery, keep=MAX_LINKS
                ),
                nursery,
                self._me,
                self.remote_address or network.remote_address,
                lambda message: self._server.answer_as_holder(network.peer_id, message),
                self.anchors,
            )
            self._client = client
            self._server = IndexServer(self.holder, client, network.knock, self.admit, self.exempt)
            self._lookups = Lookups(client, self.rng)
            self._publisher = Publisher(
                client, self._lookups, self.rng, self.refresh_s, self.wall, self.split_threshold
            )
            self._query = Query(client, self._lookups, self.rng, self.split_threshold)
            self.serve_links(
                network,
                index_messages.FAMILY,
                index_messages.INDEX,
                self._server.answer,
                cost=self._server.cost_us,
            )
            nursery.start_soon(self._publisher.run)
            nursery.start_soon(self._publisher.learn_regions)
            nursery.start_soon(self._expire)
            nursery.start_soon(self._look_around)
            nursery.start_soon(self._seek_lost)
            nursery.start_soon(self._check_table)
            task_status.started()
            try:
                await trio.sleep_forever()
            finally:
                self._server.leaving = True

    # -- publishing ------------------------------------------------------------------------------------------------------

    async def publish(self, advert: Advert, campaigns: Iterable[str] = ()) -> int:
        """Sign and publish `advert`, and keep refreshing it. Returns the number of holders of its least held attribute.

        Fills in `peer` and `seq`, and `addresses` if they are empty. `campaigns`: ids of the campaigns whose leases this node holds. Raises
        `LocalProtocolError` if the advert is too large.
        """
        mine = advert.model_copy(
            update={
                "peer": self.network.peer_id,
                "addresses": without_names(advert.addresses or self._addresses())[:8],
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
        return SignedAdvert(body=body, signature=self.network.sign(advert_message(body)))

    # -- finding ---------------------------------------------------------------------------------------------------------

    async def query(self, requirement: Requirement, want: int = 16) -> QueryResult:
        """About `want` devices that meet all clauses, if that many exist."""
        return await self._query.query(requirement, want)

    async def everybody(self, limit: int = 256) -> QueryResult:
        """Devices of any kind."""
        return await self._query.find_by_attribute(EVERYBODY, limit)

    async def campaign(self, campaign: str, limit: int = 256) -> QueryResult:
        """Devices that hold leases of a campaign."""
        return await self._query.find_by_attribute(campaign_attribute(campaign), limit)

    async def model(self, sha256: str, limit: int = 32) -> QueryResult:
        """Devices whose adverts list a model."""
        has_model = Clause(attribute="models", op=Op.HAS, value=sha256)
        return await self._query.query(Requirement(clauses=(has_model,)), limit)

    async def survey(self, requirement: Requirement, limit: int = 256) -> QueryResult:
        """Devices that show, clause by clause, why nothing matches: all devices, or those that meet the most restrictive clause."""
        return await self._query.survey(requirement, limit)

    def hearsay(self, peer: PeerId) -> bool:
        """Whether this device is known only from nodes that the owner did not choose."""
        return self._query.hearsay(peer)

    async def nearest(self, key: bytes) -> list[Contact]:
        """Up to eight holders nearest to a 32-byte key that just answered; may include ourselves."""
        return await self._lookups.find(key)

    # -- holding ---------------------------------------------------------------------------------------------------------

    @property
    def refused(self) -> Counter[str]:
        """Refused calls and adverts, by reason."""
        return self._server.refused

    @property
    def holding(self) -> bool:
        """Whether this node stores adverts for others: it is configured as a holder, and can be dialled."""
        return self.serve and (self.reach is None or self.reach.holder) and bool(self.network.addresses)

    def introduce(self, contact: Contact) -> None:
        """Check a node that somebody named as a holder. It counts as one once it has answered. Excess introductions are ignored."""
        self._server.introduce(contact)

    def _addresses(self) -> tuple[Address, ...]:
        return self.network.addresses if self.reach is None else self.reach.addresses

    def _me(self) -> Contact | None:
        return Contact(self.network.peer_id, without_names(self._addresses())[:8]) if self.holding else None

    async def _expire(self) -> None:
        while True:
            await trio.sleep(EXPIRE_S)
            self.holder.expire(trio.current_time())
            self._client.unusable()  # forgets who may be asked again

    async def _look_around(self) -> None:
        """For a holder: alternately look up its own neighbours, which thereby learn our contact, and those of a random point."""
        pause, most = LOOK_AROUND_S
        neighbours = True
        while True:
            await trio.sleep(pause * self.rng.uniform(0.8, 1.2))
            pause = min(pause * 2, most)
            if self.holding and neighbours:
                await self._lookups.find(routing_key(self.network.peer_id), patient=True)
            elif self.holding:
                await self._lookups.sweeps.measure()
            neighbours = not neighbours

    async def _check_table(self) -> None:
        """Check a few holders at a time that have long been quiet. Those that are gone make room for others."""
        while True:
            await trio.sleep(CHECK_S * self.rng.uniform(0.8, 1.2))
            for contact in self.network.table.oldest(trio.current_time() - UNHEARD_S, CHECKED_AT_ONCE):
                await self._client.check(contact)

    async def _seek_lost(self) -> None:
        """Retry silent holders, one at a time. When one is back, others behind it may be too."""
        while True:
            await trio.sleep(SEEK_LOST_S * self.rng.uniform(0.8, 1.2))
            for contact in self._client.lost()[:LOST_AT_ONCE]:
                key = routing_key(self.network.peer_id)
                question = index_messages.FindPeers(key=key, sender=sender_of(self._me()))
                try:
                    await self._client.ask(contact, question, index_messages.FoundPeers, max_wait_s=FIRST_S)
                except (Unreachable, Refused):
                    continue
                await self._lookups.find(key, patient=True)
                break
