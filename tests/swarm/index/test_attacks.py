"""Strangers that lie to the index: with forged and old adverts, fake identities and other nodes' addresses, through the real handlers."""

from __future__ import annotations

import random
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final

import pytest
import trio
import trio.testing

from protocol.messages import index as index_messages
from protocol.messages.index import StoreVerdict
from protocol.values.advert import Advert, SignedAdvert, UnitOffer, advert_body, advert_message, read_advert
from protocol.values.index_keys import EVERYBODY, shard_key
from protocol.values.requirement import Requirement, parse_clause
from protocol.wire.base import Message
from swarm.index.index import Index
from swarm.index.shard_store import MAX_OF_NETWORK, ShardStore
from swarm.join.host import open_host
from swarm.memory.network import MemoryNetwork, MemorySwarm
from swarm.net.addresses import Contact
from swarm.net.identity import Identity, routing_key
from swarm.net.link import Link
from swarm.net.links import Links, serve_links
from swarm.net.network import Network
from swarm.p2p.dial_rules import DialRules

Jumping = trio.testing.MockClock
CPU: Final = "CPU (ONNX)"
EVERY_CPU: Final = Requirement(clauses=(parse_clause(f'units has "{CPU}"'),))
VICTIM: Final = "8.8.8.8"


def signed(identity: Identity, by: Identity | None = None, **fields: object) -> SignedAdvert:
    plain: dict[str, object] = {"peer": identity.peer_id, "seq": 1, "device": "d", "name": "n"}
    units = (UnitOffer(unit=CPU, runtime="r"),)
    body = advert_body(Advert.model_validate(plain | {"units": units} | fields))
    return SignedAdvert(body=body, signature=(by or identity).sign(advert_message(body)))


class Field:
    """Honest holders that all know the first one, their gate."""

    def __init__(self, swarm: MemorySwarm, nursery: trio.Nursery) -> None:
        self.swarm, self.nursery = swarm, nursery
        self.networks: list[MemoryNetwork] = []
        self.indexes: list[Index] = []

    async def grow(self, count: int) -> None:
        for number in range(len(self.networks), len(self.networks) + count):
            network = self.swarm.node(Identity.from_seed(f"honest {number}"))
            index = Index(network, rng=random.Random(number), remote_address=network.remote_address)
            self.networks.append(network)
            self.indexes.append(index)
            if number:
                network.table.learn(Contact(self.networks[0].peer_id, self.networks[0].addresses))
            await self.nursery.start(index.run)
            units = (UnitOffer(unit=CPU, runtime="r"),)
            advert = Advert(peer=network.peer_id, seq=0, device="d", name=f"honest-{number}", units=units)
            await index.publish(advert)

    def links(self, network: Network) -> Links:
        return Links(network, index_messages.FAMILY, index_messages.INDEX, self.nursery)

    async def knock(self, network: Network, message: Message, at: int = 0) -> Message:
        """One call by an attacker."""
        gate = self.networks[at]
        links = Links(network, index_messages.FAMILY, index_messages.INDEX, self.nursery)
        return await links.call(gate.peer_id, gate.addresses, message)


@asynccontextmanager
async def field(count: int) -> AsyncIterator[Field]:
    async with MemorySwarm(random.Random(1), latency_s=0.01) as swarm, trio.open_nursery() as nursery:
        grown = Field(swarm, nursery)
        await grown.grow(count)
        await trio.sleep(15)
        yield grown
        nursery.cancel_scope.cancel()


# -- reflection: other nodes' addresses --------------------------------------------------------------------------------


def near(key: bytes, count: int, ids: Sequence[Identity]) -> list[Identity]:
    target = int.from_bytes(key, "big")
    return sorted(ids, key=lambda one: int.from_bytes(routing_key(one.peer_id), "big") ^ target)[:count]


async def test_a_swarm_fed_a_victims_address_in_every_way_hardly_dials_it(
    autojump_clock: Jumping,
) -> None:
    """Six liars claim that they themselves, and hundreds of others near whatever key is asked for, can be reached at the victim's
    address.
    """
    crowd = [Identity.from_seed(f"crowd {number}") for number in range(200)]
    rng = random.Random(7)

    def there() -> tuple[str, ...]:
        return tuple(f"/ip4/{VICTIM}/tcp/{rng.randrange(1, 65_535)}" for _ in range(8))

    def named(key: bytes) -> tuple[index_messages.ContactInfo, ...]:
        return tuple(
            index_messages.ContactInfo(peer=one.peer_id, addresses=there())
            for one in near(key, index_messages.MAX_CONTACTS, crowd)
        )

    fakes = tuple(
        index_messages.ListedAdvert(advert=signed(one, addresses=there()), age_s=1.0) for one in crowd[:16]
    )

    async def lie(link: Link, message: Message) -> Message:
        match message:
            case index_messages.FindPeers():
                return index_messages.FoundPeers(contacts=named(message.key))
            case index_messages.StoreAdverts():
                items = tuple(index_messages.StoredItem(verdict=StoreVerdict.OK) for _ in message.items)
                return index_messages.StoreReply(items=items, closer=named(rng.randbytes(32)))
            case index_messages.QueryShard():
                return index_messages.ShardPage(
                    adverts=fakes, matches=16, count=16, closer=named(rng.randbytes(32))
                )
            case _:
                return index_messages.MarkReply(split=False)

    async with field(8) as grown:
        for number in range(6):
            liar = grown.swarm.node(Identity.from_seed(f"liar {number}"))
            serve_links(liar, index_messages.FAMILY, index_messages.INDEX, lie)
            links = grown.links(liar)
            for honest in grown.networks:
                me = index_messages.ContactInfo(peer=liar.peer_id, addresses=(*there()[:6], *liar.addresses))
                question = index_messages.FindPeers(key=routing_key(honest.peer_id), sender=me)
                await links.call(honest.peer_id, honest.addresses, question)
        began = trio.current_time()
        while trio.current_time() < began + 600:
            for index in grown.indexes[:2]:
                await index.query(EVERY_CPU, 16)
            await trio.sleep(60)
        dials = sum(count for where, count in grown.swarm.strays.items() if f"/{VICTIM}/" in where)
        assert 0 < dials <= 8 * 20  # without the rules there are 23,682 dials
        for network in grown.networks:
            contacts = network.table.closest(bytes(32), 1000)
            assert not [contact for contact in contacts if VICTIM in "".join(contact.addresses)]
        matches = {
            sighting.advert.name for sighting in (await grown.indexes[3].query(EVERY_CPU, 200)).devices
        }
        assert matches >= {f"honest-{number}" for number in range(8)}


class Doors:
    """A victim on this machine: sockets that count connections."""

    def __init__(self, count: int) -> None:
        self.sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
        self.came = 0

    @property
    def addresses(self) -> list[str]:
        return [f"/ip4/127.0.0.1/tcp/{one.getsockname()[1]}" for one in self.sockets]

    async def count(self) -> None:
        async with trio.open_nursery() as nursery:
            for one in self.sockets:
                nursery.start_soon(self._count, trio.SocketListener(trio.socket.from_stdlib_socket(one)))

    async def _count(self, listener: trio.SocketListener) -> None:
        while True:
            async with await listener.accept():
                self.came += 1


@asynccontextmanager
async def victims_doors(count: int) -> AsyncIterator[Doors]:
    doors = Doors(count)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(doors.count)
        yield doors
        nursery.cancel_scope.cancel()
    for one in doors.sockets:
        one.close()


@pytest.mark.real
async def test_over_real_sockets_a_node_of_the_lan_is_not_sent_to_its_own_loopback() -> None:
    with trio.fail_after(30):
        async with (
            victims_doors(8) as doors,
            open_host(Identity.from_seed("r node"), listen=["/ip4/127.0.0.1/tcp/0"]) as node,
        ):
            node.swarm.rules = DialRules(listening=lambda: ("/ip4/192.0.2.7/tcp/4001",))
            index = Index(node, rng=random.Random(1), remote_address=node.remote_address)
            async with trio.open_nursery() as nursery:
                await nursery.start(index.run)
                for number in range(4):
                    index.introduce(Contact(Identity.from_seed(number).peer_id, tuple(doors.addresses)))
                await trio.sleep(0.5)
                while index._server.meeting:
                    await trio.sleep(0.05)
                nursery.cancel_scope.cancel()
            assert doors.came == 0


# -- squatting: many fake identities ---------------------------------------------------------------------------------------

RARE: Final = Requirement(clauses=(parse_clause("label.board == rb5"),))


def fake(number: int) -> Identity:
    return Identity.from_seed(f"fake {number}")


async def squat(grown: Field, count: int) -> None:
    """Fakes whose addresses are in as many networks claim to have the attribute, and send their adverts to its holders as anybody may."""
    for number in range(count):
        node = grown.swarm.node(fake(number), False)
        node.table.learn(Contact(grown.networks[0].peer_id, grown.networks[0].addresses))
        index = Index(node, rng=random.Random(number))
        await grown.nursery.start(index.run)
        where = (f"/ip4/9.{number}.1.1/tcp/4001",)
        await index.publish(
            Advert(
                peer=node.peer_id, seq=0, device="f", name="fake", addresses=where, labels={"board": "rb5"}
            )
        )


@pytest.mark.slow
async def test_an_honest_device_is_found_among_forty_fakes_of_forty_networks(autojump_clock: Jumping) -> None:
    async with field(6) as grown:
        await squat(grown, 40)
        honest, index = grown.networks[4], grown.indexes[4]
        await index.publish(
            Advert(peer=honest.peer_id, seq=0, device="d", name="honest", labels={"board": "rb5"})
        )
        reader = grown.indexes[2]
        assert "honest" in {s.advert.name for s in (await reader.query(RARE, 64)).devices}
        request = 0
        while "honest" not in {s.advert.name for s in (await reader.query(RARE, 16)).devices}:
            request += 1  # a scheduler asks again while it has work, and each look shows other devices
        assert request < 12


@pytest.mark.parametrize("cursor", [None, 32])
@pytest.mark.parametrize("attribute", [EVERYBODY, "label:board=rb5"])
async def test_holders_that_sit_around_a_key_on_purpose_hide_nobody_from_those_who_share_a_gate(
    autojump_clock: Jumping, cursor: int | None, attribute: str
) -> None:
    """The forty nodes nearest to an attribute's key are liars: they take every advert, show their own fakes, and name nobody else.
    `cursor`: they claim on every page that more follows.
    """
    key = shard_key("", attribute, 0, 0)
    liars = near(key, 40, [fake(number) for number in range(3000)])
    fakes = tuple(
        index_messages.ListedAdvert(
            advert=signed(one, addresses=(f"/ip4/9.{n}.1.1/tcp/1",), labels={"board": "rb5"}), age_s=1.0
        )
        for n, one in enumerate(liars[:8])
    )

    async with MemorySwarm(random.Random(1), latency_s=0.01) as swarm, trio.open_nursery() as nursery:
        names: list[index_messages.ContactInfo] = []

        async def lie(link: Link, message: Message) -> Message:
            match message:
                case index_messages.FindPeers():
                    return index_messages.FoundPeers(contacts=tuple(names[:8]))
                case index_messages.StoreAdverts():
                    return index_messages.StoreReply(
                        items=tuple(index_messages.StoredItem(verdict=StoreVerdict.OK) for _ in message.items)
                    )
                case index_messages.QueryShard():
                    return index_messages.ShardPage(adverts=fakes, matches=8, count=8, cursor=cursor)
                case _:
                    return index_messages.MarkReply(split=False)

        gate = swarm.node(Identity.from_seed("gate"))
        contact = Contact(gate.peer_id, gate.addresses)
        indexes = []
        for name in ("gate", "worker", "scheduler"):
            node = gate if name == "gate" else swarm.node(Identity.from_seed(name), name == "worker")
            index = Index(node, rng=random.Random(name), anchors=lambda: (contact,))
            await nursery.start(index.run)
            indexes.append(index)
            node.table.learn(contact)
            for liar in liars if name == "gate" else ():
                evil = swarm.node(liar)
                serve_links(evil, index_messages.FAMILY, index_messages.INDEX, lie)
                names.append(index_messages.ContactInfo(peer=evil.peer_id, addresses=evil.addresses))
            for one in names[:20]:
                node.table.learn(Contact(one.peer, one.addresses))
        worker, scheduler = indexes[1:]
        advert = Advert(peer=gate.peer_id, seq=0, device="d", name="honest", labels={"board": "rb5"})
        await worker.publish(advert)
        with trio.fail_after(60):  # on virtual time
            matches = {s.advert.name for s in (await scheduler.query(RARE, 16)).devices}
        assert matches == {"honest", "n"}  # "n": the fakes
        nursery.cancel_scope.cancel()


async def test_sixty_members_behind_one_router_are_all_found_and_strangers_there_have_eight_places(
    autojump_clock: Jumping,
) -> None:
    async with MemorySwarm(random.Random(1), latency_s=0.01) as swarm, trio.open_nursery() as nursery:
        members = [Identity.from_seed(f"member {number}") for number in range(60)]
        known = {one.peer_id for one in members}
        gate = swarm.node(Identity.from_seed("gate"))
        contact = Contact(gate.peer_id, gate.addresses)
        index = Index(
            gate,
            rng=random.Random(1),
            exempt=known.__contains__,
            remote_address=lambda peer: "/ip4/8.8.4.4/tcp/50000",
        )
        await nursery.start(index.run)
        reader = Index(
            swarm.node(Identity.from_seed("reader"), False), rng=random.Random(2), anchors=lambda: (contact,)
        )
        await nursery.start(reader.run)
        for number, one in enumerate([*members, *map(fake, range(20))]):
            node = swarm.node(one, False)
            node.table.learn(contact)
            client = Index(node, rng=random.Random(number), anchors=lambda: (contact,))
            await nursery.start(client.run)
            where = (f"/ip4/8.8.4.4/tcp/{4001 + number}",)
            await client.publish(
                Advert(
                    peer=node.peer_id,
                    seq=0,
                    device="d",
                    name="member" if number < 60 else "fake",
                    addresses=where,
                )
            )
        results = [s.advert.name for s in (await reader.everybody(256)).devices]
        assert (results.count("member"), results.count("fake")) == (60, 8)
        nursery.cancel_scope.cancel()


# -- forged, replayed and expired adverts ----------------------------------------------------------------------------------


@asynccontextmanager
async def one_holder(kind: str) -> AsyncIterator[tuple[Index, Links, Identity, Contact]]:
    """A holder, and an attacker with its own links to it, in memory or over sockets."""
    me = Identity.from_seed("thief")
    async with AsyncExitStack() as stack:
        if kind == "memory":
            swarm = await stack.enter_async_context(MemorySwarm(random.Random(1)))
            holder: Network = swarm.node(Identity.from_seed("holder"))
            thief: Network = swarm.node(me, False)
        else:
            listen = ["/ip4/127.0.0.1/tcp/0"]
            holder = await stack.enter_async_context(open_host(Identity.from_seed("holder"), listen=listen))
            thief = await stack.enter_async_context(open_host(me))
        async with trio.open_nursery() as nursery:
            index = Index(holder, rng=random.Random(1), remote_address=holder.remote_address)
            await nursery.start(index.run)
            yield (
                index,
                Links(thief, index_messages.FAMILY, index_messages.INDEX, nursery),
                me,
                Contact(holder.peer_id, holder.addresses),
            )
            nursery.cancel_scope.cancel()


NODE: Final = (index_messages.StoreItem(attribute=EVERYBODY),)


@pytest.mark.parametrize("kind", ["memory", "sockets"])
async def test_nobody_gets_an_advert_kept_that_is_not_his_own_word_of_now(kind: str) -> None:
    honest = Identity.from_seed("honest")
    with trio.fail_after(20):
        async with one_holder(kind) as (index, links, me, holder):

            async def call(message: Message) -> Message:
                return await links.call(holder.peer, holder.addresses, message)

            async def store(advert: SignedAdvert) -> StoreVerdict:
                answer = await call(index_messages.StoreAdverts(advert=advert, items=NODE))
                assert isinstance(answer, index_messages.StoreReply)
                return answer.items[0].verdict

            async def shown() -> set[str]:
                answer = await call(index_messages.QueryShard(attribute=EVERYBODY))
                assert isinstance(answer, index_messages.ShardPage)
                return {read_advert(listed.advert.body).name for listed in answer.adverts}

            good = signed(me, seq=5, name="good")
            assert await store(good) is StoreVerdict.OK
            changed = SignedAdvert(body=good.body.replace(b"good", b"evil"), signature=good.signature)
            for bad in (
                signed(me, by=honest, seq=6, name="evil"),  # another peer's signature
                signed(honest, by=me, name="evil"),  # an id whose key the attacker does not have
                signed(honest, name="evil"),  # another peer's advert, truly signed
                changed,  # one field is changed
                SignedAdvert(body=good.body, signature=bytes(64)),
                SignedAdvert(body=good.body + b"\x00", signature=good.signature),
                signed(me, seq=4, name="evil"),  # its own earlier advert
                signed(me, seq=5, name="evil"),  # two adverts with one number
            ):
                assert await store(bad) is StoreVerdict.REFUSED
            assert await shown() == {"good"}
            assert await store(signed(me, seq=2**53, ttl_s=3600, name="last")) is StoreVerdict.OK
            assert await store(signed(me, seq=6, name="evil")) is StoreVerdict.REFUSED
            assert await shown() == {"last"}
            assert index.refused["store-refused"] == 9


def test_a_flood_of_identities_from_one_network_leaves_room_for_others() -> None:
    holder = ShardStore()
    crowd = [fake(number) for number in range(MAX_OF_NETWORK + 20)]
    for one in crowd:
        holder.store(0, one.peer_id, "9.9.9.0/24", signed(one), ())
    assert holder.nodes == MAX_OF_NETWORK
    holder.store(0, crowd[-1].peer_id, "", signed(crowd[-1]), NODE)
    assert holder.nodes == MAX_OF_NETWORK + 1
    assert holder.expire(10_000) == MAX_OF_NETWORK + 1
    assert (holder.nodes, holder.size, +holder._sources) == (0, 0, {})


# -- hearsay: whose claims about a device count ------------------------------------------------------------------------


async def test_a_device_counts_as_present_by_a_chosen_holder_that_sees_it_and_by_nobody_elses_word(
    autojump_clock: Jumping,
) -> None:
    """A liar's claim that its invented devices are present is believed no more than its adverts."""
    invented = [Identity.from_seed(f"invented {number}") for number in range(8)]
    listed = tuple(
        index_messages.ListedAdvert(advert=signed(each), age_s=1.0, present=True) for each in invented
    )

    async def lie(link: Link, message: Message) -> Message:
        match message:
            case index_messages.FindPeers():
                return index_messages.FoundPeers()
            case _:
                return index_messages.ShardPage(adverts=listed, matches=len(listed), count=len(listed))

    async with field(4) as grown:
        liar = grown.swarm.node(Identity.from_seed("liar"))
        serve_links(liar, index_messages.FAMILY, index_messages.INDEX, lie)
        gate = Contact(grown.networks[0].peer_id, grown.networks[0].addresses)
        reader = grown.swarm.node(Identity.from_seed("reader"), False)
        for known in (gate, Contact(liar.peer_id, liar.addresses)):
            reader.table.learn(known)
        index = Index(reader, rng=random.Random(5), anchors=lambda: [gate])
        await grown.nursery.start(index.run)
        found = {each.advert.peer for each in (await index.query(EVERY_CPU, 64)).devices}
        honest = {network.peer_id for network in grown.networks}
        assert found >= honest | {each.peer_id for each in invented}
        assert {peer for peer in found if not index.hearsay(peer)} == honest
        grown.swarm.kill(grown.networks[3].peer_id)
        await trio.sleep(1000)
        await index.query(EVERY_CPU, 64)
        assert index.hearsay(grown.networks[3].peer_id)
