"""Requests and adverts that cost the index, or its readers, more than their sender."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Final

import trio

from protocol.messages import index as index_messages
from protocol.messages.index import ContactInfo
from protocol.messages.reach import REACH, DialBack
from protocol.values.advert import Advert
from protocol.values.index_keys import EVERYBODY
from protocol.values.requirement import Clause, Op, Requirement
from protocol.wire.base import Message
from protocol.words import ProtocolId
from swarm.net.identity import Identity, routing_key
from swarm.net.link import Link
from swarm.net.links import Links, serve_links
from tests.rig.attack import STRANGERS, Attack, Facts, Node, Target
from tests.rig.attacks.wire import (
    BROKEN,
    Replies,
    a_peer,
    call,
    connect,
    honest_adverts,
    invented,
    listed,
    publish,
    publish_many,
    signed,
)

PAGES_AT_ONCE: Final = 4
CLAUSES: Final = 32
CROWD: Final = 500
"""Adverts, each under its own key, that make a page long to read."""
BLACK_HOLES: Final = 100
SILENT: Final = {"addresses": ("/ip4/127.0.0.1/tcp/9",)}
"""An address where nobody listens."""


def crowd_of(count: int, **fields: object) -> list[tuple[Identity, Advert]]:
    keys = [Identity.fresh() for _ in range(count)]
    return [(key, invented(key, **fields)) for key in keys]


PAGE: Final = index_messages.QueryShard(
    attribute=EVERYBODY,
    limit=1,
    requirement=Requirement(
        clauses=tuple(
            Clause(attribute="soc", op=Op.LIKE, value="*" + "*".join("amd epyc"[: 1 + n % 8]) + "*")
            for n in range(CLAUSES)
        )
    ),
)
"""A page request of a few KiB, all of whose patterns match. Each pattern is compared with every advert."""


@asynccontextmanager
async def page_bomb(target: Target) -> AsyncIterator[Facts]:
    """Options: `node`, the victim: `gate` or `worker`; `keys`: how many peers ask at a time."""
    facts: Counter[str] = Counter()
    victim = target.gate if target.options.get("node", "gate") == "gate" else target.workers[0]
    crowd = crowd_of(target.options.get("crowd", CROWD))
    await publish_many(victim, crowd, facts)

    async def ask() -> None:
        while True:
            try:
                async with connect(victim) as link:
                    stream = await link.speak(index_messages.FAMILY)
                    replies = Replies(link, stream, index_messages.INDEX, index_messages.FAMILY)
                    while True:
                        await link.data(stream, call(index_messages.INDEX, PAGE) * PAGES_AT_ONCE)
                        facts["asked"] += PAGES_AT_ONCE
                        for _ in range(PAGES_AT_ONCE):
                            page = await replies.next()
                            facts["pages" if isinstance(page, index_messages.ShardPage) else "refused"] += 1
            except* BROKEN:
                await trio.sleep(0.1)

    async with trio.open_nursery() as nursery:
        for _ in range(target.options.get("keys", 1)):
            nursery.start_soon(ask)
        yield facts
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def black_holes(target: Target) -> AsyncIterator[Facts]:
    """Invented devices, published under their own keys, at an address that accepts connections and says nothing."""
    facts: Counter[str] = Counter()
    async with trio.open_nursery() as nursery:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        port = listener.socket.getsockname()[1]

        async def silent(stream: trio.SocketStream) -> None:
            facts["connections to the victim"] += 1
            with suppress(trio.BrokenResourceError):
                while await stream.receive_some():
                    pass

        nursery.start_soon(trio.serve_listeners, silent, [listener])
        there = {"addresses": (f"/ip4/127.0.0.1/tcp/{port}",)}
        await publish_many(target.gate, crowd_of(BLACK_HOLES, **there), facts)
        yield facts
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def lying_holders(target: Target) -> AsyncIterator[Facts]:
    """Holders that answer every request with invented devices, and with themselves as the nearest holders."""
    facts: Counter[str] = Counter()
    crowd = crowd_of(64, **SILENT)
    pages = tuple(index_messages.ListedAdvert(advert=signed(*each), age_s=1.0) for each in crowd)
    liars: list[Node] = []

    async def lie(link: Link, message: Message) -> Message:
        facts[message.type] += 1
        contacts = tuple(ContactInfo(peer=each.peer_id, addresses=each.addresses) for each in liars)
        match message:
            case index_messages.FindPeers():
                return index_messages.FoundPeers(contacts=contacts)
            case index_messages.StoreAdverts():
                items = tuple(
                    index_messages.StoredItem(verdict=index_messages.StoreVerdict.OK) for _ in message.items
                )
                return index_messages.StoreReply(items=items, closer=contacts)
            case index_messages.QueryShard():
                start = 32 * (facts[message.type] % 2)
                return index_messages.ShardPage(
                    adverts=pages[start : start + 32],
                    matches=10_000,
                    count=10_000,
                    cursor=32,
                    closer=contacts,
                )
            case _:
                return index_messages.MarkReply(split=False)

    async with AsyncExitStack() as stack:
        for number in range(4):
            network, _, nursery = await stack.enter_async_context(a_peer(target))
            serve_links(network, index_messages.FAMILY, index_messages.INDEX, lie)
            liars.append(Node(f"liar {number}", network.peer_id, network.addresses[0]))
            me = ContactInfo(peer=network.peer_id, addresses=network.addresses)
            links = Links(network, index_messages.FAMILY, index_messages.INDEX, nursery)
            for node in (target.gate, *target.workers):
                with suppress(*BROKEN):
                    await links.call(
                        node.peer_id,
                        node.addresses,
                        index_messages.FindPeers(key=routing_key(node.peer_id), sender=me),
                    )
        await trio.sleep(2)
        yield facts


@asynccontextmanager
async def slow_names(target: Target) -> AsyncIterator[Facts]:
    """Contacts whose addresses are names that resolve slowly or never, wherever a stranger may name contacts."""
    facts: Counter[str] = Counter()
    number = 0

    def names() -> tuple[str, ...]:
        nonlocal number
        number += 1
        return tuple(f"/dns4/x{number}-{n}.rig.invalid/tcp/4101" for n in range(4))

    async def ask(node: Node) -> None:
        while True:
            try:
                async with connect(node) as link:
                    gates = tuple(
                        ContactInfo(peer=Identity.fresh().peer_id, addresses=names()) for _ in range(2)
                    )
                    await link.speak(ProtocolId.REACH, call(REACH, DialBack(ports=(9,), gates=gates)))
                    me = ContactInfo(peer=Identity.fresh().peer_id, addresses=names())
                    for _ in range(4):
                        await link.speak(
                            index_messages.FAMILY,
                            call(index_messages.INDEX, index_messages.FindPeers(key=bytes(32), sender=me)),
                        )
                    facts["names"] += 12
                    await trio.sleep(0.2)
            except* BROKEN:
                await trio.sleep(0.1)

    async with trio.open_nursery() as nursery:
        for node in (target.gate, *target.workers):
            for _ in range(3):
                nursery.start_soon(ask, node)
        crowd = crowd_of(32)
        adverts = [(key, advert.model_copy(update={"addresses": names()})) for key, advert in crowd]
        await publish_many(target.gate, adverts, facts)
        yield facts
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def store_flood(target: Target) -> AsyncIterator[Facts]:
    """Adverts of the maximum size, each under a fresh key and every possible attribute."""
    facts: Counter[str] = Counter()
    labels = {f"k{n}": "x" * 24 for n in range(12)}

    async def more() -> None:
        while True:
            key = Identity.fresh()
            await publish_many(target.gate, [(key, invented(key, labels=labels))], facts)

    async def look() -> None:
        honest = {node.peer_id for node in target.workers}
        while True:
            with suppress(*BROKEN):
                found = await listed(target.gate, honest)
                facts["looks"] += 1
                facts["honest adverts gone"] = max(facts["honest adverts gone"], len(honest - found.keys()))
            await trio.sleep(1)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(look)
        for _ in range(6):
            nursery.start_soon(more)
        await trio.sleep(2)
        yield facts
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def forged_adverts(target: Target) -> AsyncIterator[Facts]:
    """Forged adverts: an honest worker's own advert with a new number, signed by another key, and its tombstone."""
    facts: Counter[str] = Counter()
    own: Counter[str] = Counter()
    async with a_peer(target) as (_, index, nursery):
        await nursery.start(index.run)
        honest = await honest_adverts(index, target)

        async def forge() -> None:
            for seq in itertools.count(max(advert.seq for advert in honest) + 2**40):
                for advert, update in itertools.product(honest, (SILENT, {"gone": True})):
                    forged = advert.model_copy(update={"seq": seq, **update})
                    stored = await publish(target.gate, Identity.fresh(), forged)
                    facts["unanswered" if stored is None else "stored" if stored else "refused"] += 1
                await publish_many(target.gate, crowd_of(1), own)
                facts["own adverts stored"] = own["adverts stored"]
                shown = await listed(target.gate, [advert.peer for advert in honest])
                facts["looks"] += 1
                facts["replaced"] += sum(
                    advert.peer not in shown or shown[advert.peer].seq >= 2**40 for advert in honest
                )
                await trio.sleep(0.2)

        nursery.start_soon(forge)
        yield facts
        nursery.cancel_scope.cancel()


def none_stored(rows: object, facts: Facts) -> list[str]:
    words = {"stored": "forged adverts were stored", "replaced": "times an honest advert was replaced"}
    return [f"{facts[name]} {what}" for name, what in words.items() if facts.get(name)]


def none_gone(rows: object, facts: Facts) -> list[str]:
    gone = facts.get("honest adverts gone", 0)
    return [f"{gone} honest adverts were evicted"] if gone else []


ATTACKS: Final = (
    Attack(
        "page-bomb",
        "3",
        "pages with 32 patterns over 500 adverts, asked of the gate again and again",
        page_bomb,
        evidence={"adverts offered": 80, "asked": 20},
        short=True,
        brief={"crowd": 100},
        leaves=True,
    ),
    Attack(
        "page-bomb-worker",
        "3",
        "the same, asked of a worker",
        page_bomb,
        {"node": "worker"},
        leaves=True,
        evidence={"adverts offered": 400, "asked": 20},
    ),
    Attack(
        "page-bomb-crowd",
        "3",
        "the same, asked of the gate under 16 keys at a time",
        page_bomb,
        {"keys": 16},
        evidence={"adverts offered": 400, "asked": 20},
        leaves=True,
    ),
    Attack(
        "black-holes",
        "7, D5",
        "100 invented devices at an address that takes connections and says nothing; the campaign admits strangers",
        black_holes,
        evidence={"adverts offered": 90},
        campaign=STRANGERS,
        strangers=True,
        leaves=True,
    ),
    Attack(
        "lying-holders",
        "7, D3, D4",
        "four holders answer every question with invented devices and with one another",
        lying_holders,
        evidence={index_messages.QueryShard.type: 1},
        campaign=STRANGERS,
        strangers=True,
        leaves=True,
    ),
    Attack(
        "slow-names",
        "8",
        "contacts whose addresses are names that do not resolve",
        slow_names,
        leaves=True,
        evidence={"names": 200},
    ),
    Attack(
        "store-flood",
        "D6",
        "large adverts under fresh keys, as fast as they are taken",
        store_flood,
        evidence={"adverts offered": 60, "looks": 1},
        check=none_gone,
        leaves=True,
    ),
    Attack(
        "forged-adverts",
        "D2",
        "an honest worker's advert and tombstone, signed by somebody else",
        forged_adverts,
        evidence={"refused": 8, "own adverts stored": 1, "looks": 1},
        check=none_stored,
        leaves=True,
    ),
)
