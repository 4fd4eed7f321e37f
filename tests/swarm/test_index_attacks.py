"""Strangers that lie to the index: with forged and old adverts, fake identities and others' addresses, through the real handlers."""

from __future__ import annotations

import random
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final

import pytest
import trio
import trio.testing

from protocol import index_messages as say
from protocol.advert import Advert, SignedAdvert, UnitOffer, advert_body, advert_message
from protocol.base import Message
from protocol.index_messages import StoreVerdict
from protocol.requirement import Requirement, parse_clause
from swarm.dial_rules import DialRules
from swarm.host import open_host
from swarm.identity import Identity, routing_key
from swarm.index import Index
from swarm.link import Link, Links, serve_links
from swarm.memory import MemoryNetwork, MemorySwarm
from swarm.network import Contact, Network

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
                network.learn(Contact(self.networks[0].peer_id, self.networks[0].addresses))
            await self.nursery.start(index.run)
            units = (UnitOffer(unit=CPU, runtime="r"),)
            advert = Advert(peer=network.peer_id, seq=0, device="d", name=f"honest-{number}", units=units)
            await index.publish(advert)

    def links(self, network: Network) -> Links:
        return Links(network, say.FAMILY, say.INDEX, self.nursery)

    async def knock(self, network: Network, message: Message, at: int = 0) -> Message:
        """One call of an attacker."""
        gate = self.networks[at]
        links = Links(network, say.FAMILY, say.INDEX, self.nursery)
        return await links.call(gate.peer_id, gate.addresses, message)


@asynccontextmanager
async def field(count: int) -> AsyncIterator[Field]:
    async with MemorySwarm(random.Random(1), latency_s=0.01) as swarm, trio.open_nursery() as nursery:
        grown = Field(swarm, nursery)
        await grown.grow(count)
        await trio.sleep(15)
        yield grown
        nursery.cancel_scope.cancel()


# -- reflection: others' addresses -------------------------------------------------------------------------------------


def near(key: bytes, count: int, ids: Sequence[Identity]) -> list[Identity]:
    target = int.from_bytes(key, "big")
    return sorted(ids, key=lambda one: int.from_bytes(routing_key(one.peer_id), "big") ^ target)[:count]


async def test_a_swarm_that_is_told_a_victims_address_in_every_way_hardly_knocks_there(
    autojump_clock: Jumping,
) -> None:
    """Six liars say that they themselves, and hundreds of others near whatever key is asked for, are to be found at the victim's."""
    crowd = [Identity.from_seed(f"crowd {number}") for number in range(200)]
    rng = random.Random(7)

    def there() -> tuple[str, ...]:
        return tuple(f"/ip4/{VICTIM}/tcp/{rng.randrange(1, 65_535)}" for _ in range(8))

    def named(key: bytes) -> tuple[say.ContactInfo, ...]:
        return tuple(
            say.ContactInfo(peer=one.peer_id, addresses=there()) for one in near(key, say.MAX_CONTACTS, crowd)
        )

    fakes = tuple(say.Listed(advert=signed(one, addresses=there()), age_s=1.0) for one in crowd[:16])

    async def lie(link: Link, message: Message) -> Message:
        match message:
            case say.Find():
                return say.Found(contacts=named(message.key))
            case say.Store():
                items = tuple(say.StoredItem(verdict=StoreVerdict.OK) for _ in message.items)
                return say.Stored(items=items, closer=named(rng.randbytes(32)))
            case say.Page():
                return say.Paged(adverts=fakes, matches=16, count=16, closer=named(rng.randbytes(32)))
            case _:
                return say.Marked(split=False)

    async with field(8) as grown:
        for number in range(6):
            liar = grown.swarm.node(Identity.from_seed(f"liar {number}"))
            serve_links(liar, say.FAMILY, say.INDEX, lie)
            links = grown.links(liar)
            for honest in grown.networks:
                me = say.ContactInfo(peer=liar.peer_id, addresses=(*there()[:6], *liar.addresses))
                question = say.Find(key=routing_key(honest.peer_id), sender=me)
                await links.call(honest.peer_id, honest.addresses, question)
        began = trio.current_time()
        while trio.current_time() < began + 600:
            for index in grown.indexes[:2]:
                await index.query(EVERY_CPU, 16)
            await trio.sleep(60)
        dials = sum(count for where, count in grown.swarm.strays.items() if f"/{VICTIM}/" in where)
        assert 0 < dials <= 8 * 20  # without the rules it is 23,682
        for network in grown.networks:
            contacts = network.closest(bytes(32), 1000)
            assert not [contact for contact in contacts if VICTIM in "".join(contact.addresses)]
        found = {sighting.advert.name for sighting in (await grown.indexes[3].query(EVERY_CPU, 200)).found}
        assert found >= {f"honest-{number}" for number in range(8)}


class Doors:
    """What a victim on this machine sees: sockets that count who comes."""

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
            open_host(Identity.from_seed("r node"), listen=["/ip4/127.0.0.1/tcp/0"], server=True) as node,
        ):
            node._swarm.rules = DialRules(listening=lambda: ("/ip4/192.0.2.7/tcp/4001",))
            index = Index(node, rng=random.Random(1), remote_address=node.remote_address)
            async with trio.open_nursery() as nursery:
                await nursery.start(index.run)
                for number in range(4):
                    index.introduce(Contact(Identity.from_seed(number).peer_id, tuple(doors.addresses)))
                await trio.sleep(0.5)
                while index._desk._meeting:
                    await trio.sleep(0.05)
                nursery.cancel_scope.cancel()
            assert doors.came == 0
